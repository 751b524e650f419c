"""What there is to time for a job: the distinct operators of its step, and the collectives between its ranks.

Each has the count it has in a step on the rank that runs it most, and the share that forecasts expect of it, by which
the most important come first.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from traincast.estimate.operators import FAMILIES, estimate_operator, work_of
from traincast.measuring.timing import Task
from traincast.simulation.job_step import JobStep
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Operation

MOST_ELEMENTS = 2**28
"""A kernel over so many elements in a row is timed in the place of a longer one, which takes proportionally longer."""
_SMALLEST_BYTES, _STEP = 4096, 8
"""Further sizes of each collective, from the smallest up to the job's largest: a fit of latency and rate needs both."""
_FEWEST_SIZES, _FACTORS = 8, (0.5, 2.0, 0.25, 0.125, 4.0, 0.0625, 0.03125)
"""Sizes of each family that are timed at least, and over how many times the tokens where a job has fewer."""
_TOKENS = ("m", "rows", "queries", "keys", "tokens", "elements", "parameters")
"""Sizes that grow with the tokens of a rank."""
_IN_FP32 = ("optimizer",)
"""Families that PyTorch runs on fp32 alone: a fused step keeps no copy of the weights in 16 bits."""


class Tasks(Struct, frozen=True, kw_only=True):
    """All there is to time for a job."""

    name: str
    """Name of the job's model."""
    operators: tuple[Task, ...]
    collectives: tuple[Task, ...]


def tasks_of(done: JobStep) -> Tasks:
    """Return what to time for a job, by its simulated step."""
    return Tasks(name=done.job.model.name, operators=tuple(_operators(done)), collectives=tuple(_collectives(done)))


def calls_of(done: JobStep) -> dict[OperatorCall, float]:
    """Return every operator of a step, and how often the rank runs it that runs it most."""
    program, found = done.step.program, dict[OperatorCall, float]()
    for index in range(len(program.rank_R)):
        of_rank: dict[OperatorCall, float] = {}
        for row in program.row_N[program.rank_slice(index)].tolist():
            for call, count in program.ops.calls_T[row] or ():
                of_rank[call] = of_rank.get(call, 0.0) + count
        for call, count in of_rank.items():
            found[call] = max(found.get(call, 0.0), count)
    return found


def _operators(done: JobStep) -> Iterator[Task]:
    counts: dict[OperatorCall, float] = {}
    seconds: dict[OperatorCall, float] = {}
    for call, count in calls_of(done).items():
        time_s = count * estimate_operator(call, done.gpu).time_s
        parts = work_of(call).parts or (call,)
        for part in parts:
            timed = as_timed(part)
            counts[timed] = counts.get(timed, 0.0) + count
            seconds[timed] = seconds.get(timed, 0.0) + time_s / len(parts)
    total = sum(seconds.values())
    for call, count in counts.items():
        yield Task(operator_cells(call), count, seconds[call] / total)
    for call in _further(seconds):
        yield Task(operator_cells(call), 0.0, 0.0)


def _further(seconds: Mapping[OperatorCall, float]) -> Iterator[OperatorCall]:
    """Yield further sizes of families of which a job has few: a fit needs several, of which each tells something."""
    kinds: dict[OperatorCall, list[OperatorCall]] = {}
    for call in sorted(seconds, key=lambda call: -seconds[call]):
        kinds.setdefault(replace(call, shape=(), window=0), []).append(call)
    for calls in kinds.values():
        known = {call.shape for call in calls}
        scaled = (_scaled(call, factor) for factor in _FACTORS for call in calls)
        more = [call for call in dict.fromkeys(scaled) if call.shape not in known]
        yield from more[: max(0, _FEWEST_SIZES - len(calls))]


def _scaled(call: OperatorCall, factor: float) -> OperatorCall:
    """Return a call over another number of tokens."""
    names = [size.name for size in FAMILIES.get(call.family).sizes][-len(call.shape) :]
    shape = (
        max(1, round(size * factor)) if name in _TOKENS else size for name, size in zip(names, call.shape, strict=True)
    )
    return as_timed(replace(call, shape=tuple(shape)))


def as_timed(call: OperatorCall) -> OperatorCall:
    """Return the operator that PyTorch alone can run in the place of one of a job.

    Weight gradients are not added to those in fp32, which takes a kernel of a framework's own; kernels along one long
    row are cut; the optimizer has no weights in 16 bits. The row of the file says what was timed.
    """
    if call.direction == "wgrad":
        others = tuple(pair for pair in call.options if pair[0] != "accumulate")
        call = replace(call, options=(*others, ("accumulate", "none")))
    if call.family in _IN_FP32:
        options = tuple(pair for pair in call.options if pair[0] == "kind")
        call = replace(call, dtype="fp32", options=options)
    if len(call.shape) == 1:
        call = replace(call, shape=(min(call.shape[0], MOST_ELEMENTS),))
    return call


def operator_cells(call: OperatorCall) -> dict[str, str]:
    """Return the cells of a row of measured operators (`traincast.calibration.kinds.operators`)."""
    return {
        "family": call.family,
        "shape": "x".join(map(str, call.shape)),
        "dtype": call.dtype,
        "direction": call.direction,
        "causal": "true" if call.causal else "false",
        "window": str(call.window),
        "options": " ".join(f"{name}={value}" for name, value in call.options),
    }


def _collectives(done: JobStep) -> Iterator[Task]:
    """Yield the job's own, then further sizes of each kind; what they share is the time of all communication."""
    found: dict[tuple[str, int, tuple[int, ...]], list[float]] = {}
    for each in done.step.costs.communications:
        own = each.operation is Operation.SEND_RECV
        per_node = each.placement.members_per_node
        spread = ((2,) if each.placement.nodes == 1 else (1, 1)) if own else per_node
        entry = found.setdefault((each.operation.name.lower(), each.size_bytes, spread), [0.0, 0.0])
        entry[0] += each.count
        entry[1] += each.count * each.cost.time_s
    total = sum(seconds for _, seconds in found.values()) or 1.0
    largest: Mapping[tuple[str, tuple[int, ...]], int] = {
        (op, spread): max(size for other, size, where in found if (other, where) == (op, spread))
        for op, _, spread in found
    }
    for (op, size, spread), (count, seconds) in found.items():
        yield Task(collective_cells(op, size, spread), count, seconds / total)
    for (op, spread), most in largest.items():
        size = _SMALLEST_BYTES
        while size < most:
            if (op, size, spread) not in found:
                yield Task(collective_cells(op, size, spread), 0.0, 0.0)
            size *= _STEP


def collective_cells(op: str, size_bytes: int, per_node: tuple[int, ...]) -> dict[str, str]:
    """Return the cells of a row of measured collectives (`traincast.calibration.collectives`)."""
    return {
        "op": op,
        "size_bytes": str(size_bytes),
        "ranks": str(sum(per_node)),
        "nodes": str(len(per_node)),
        "per_node": "+".join(_runs(per_node)),
    }


def _runs(per_node: tuple[int, ...]) -> Iterator[str]:
    for members, nodes in groupby(per_node):
        count = len(list(nodes))
        yield str(members) if count == 1 else f"{count}x{members}"
