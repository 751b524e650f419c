"""Whose each kernel of a profile is: of which named range, and forward or backward.

Takes the events of a Chrome trace of PyTorch as they stand, and needs no PyTorch. The forward pass has one thread, and
nothing of it runs twice.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from machine.watch import KERNELS, kernels_of

Event = dict[str, Any]
Key = tuple[str, str, str]
"""Range, direction and name."""

PREFIX = "part: "
"""Of the names of ranges, which tells them from what PyTorch annotates itself."""
NOBODY = "other", ""
_NAME = 80
_OPERATORS = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver")


class Sum(NamedTuple):
    """What some events took together."""

    time_s: float
    number: int


class Attributed(NamedTuple):
    """Kernels and calls of the host by range, direction and name, and for how long at least one kernel ran."""

    kernels: dict[Key, Sum]
    calls: dict[Key, Sum]
    """Launches, all in the range ``whole``, and what waits or copies."""
    busy_s: float


def attributed(events: list[Event]) -> Attributed:
    """Tell whose kernels and calls are."""
    owners = Owners(events)
    kernels = [((*owners.of_kernel(one), one["name"]), one) for one in events if one.get("cat") in KERNELS]
    calls = []
    for one in events:
        if one.get("cat") not in _CALLS:
            continue
        if "Synchronize" in one["name"] or "Memcpy" in one["name"]:
            calls.append(((owners.of(one)[0], "host", one["name"]), one))
        elif "Launch" in one["name"]:
            calls.append((("whole", "host", one["name"]), one))
    return Attributed(_summed(kernels), _summed(calls), kernels_of(events).busy_s)


class Owners:
    """Range and direction of what a host did, and of the kernels that it launched."""

    def __init__(self, events: list[Event]) -> None:
        operators = [one for one in events if one.get("cat") in _OPERATORS]
        calls = [one for one in events if one.get("cat") in _CALLS]
        self._around = _around(operators + calls)
        self._launches = {one["args"]["correlation"]: one for one in calls if "correlation" in one.get("args", {})}
        self._operators = {one["args"]["External id"]: one for one in operators if "External id" in one.get("args", {})}
        # Several operators begin with the same number: all but the last ended without a node of their own.
        self._forward = {
            one["args"]["Sequence number"]: one
            for one in sorted(operators, key=lambda one: float(one["ts"]))
            if "Sequence number" in one.get("args", {}) and not one["args"].get("Fwd thread id")
        }

    def of_kernel(self, kernel: Event) -> tuple[str, str]:
        """Return range and direction of a kernel: those of its launch, else of the operator that it names."""
        said = kernel.get("args", {})
        launch = self._launches.get(said.get("correlation"))
        return self.of(launch or self._operators.get(said.get("External id")))

    def of(self, one: Event | None) -> tuple[str, str]:
        """Return the innermost range around an operator or call; of a backward node, that of its forward operator."""
        while one is not None:
            said = one.get("args", {})
            if one["name"].startswith(PREFIX):
                return one["name"].removeprefix(PREFIX), "forward"
            if "AccumulateGrad" in one["name"]:
                return "accumulate gradient", "backward"
            if said.get("Fwd thread id") and "Sequence number" in said:
                return self.of(self._forward.get(said["Sequence number"]))[0], "backward"
            one = self._around.get(id(one))
        return NOBODY


def operators_as_kernels(events: list[Event]) -> list[Event]:
    """Return the innermost operators of a profile without a GPU, as if each had launched a kernel of its name."""
    operators = [one for one in events if one.get("cat") == "cpu_op"]
    outer = {id(one) for one in _around(operators).values()}
    return [one | {"cat": "kernel"} for one in operators if id(one) not in outer]


def _around(hosts: list[Event]) -> dict[int, Event]:
    """Return the innermost event around each on its thread, by the id of the inner one."""
    threads: dict[tuple[Any, Any], list[Event]] = {}
    for one in sorted(hosts, key=lambda one: (float(one["ts"]), -float(one["dur"]))):
        threads.setdefault((one["pid"], one["tid"]), []).append(one)
    around = {}
    for thread in threads.values():
        begun: list[Event] = []
        for one in thread:
            while begun and begun[-1]["ts"] + begun[-1]["dur"] <= one["ts"]:
                begun.pop()
            if begun:
                around[id(one)] = begun[-1]
            begun.append(one)
    return around


def _summed(owned: Iterable[tuple[Key, Event]]) -> dict[Key, Sum]:
    sums: dict[Key, Sum] = {}
    for (part, direction, name), one in owned:
        key = part, direction, name[:_NAME]
        time_s, number = sums.get(key, Sum(0.0, 0))
        sums[key] = Sum(time_s + one["dur"] / 1e6, number + 1)
    return sums
