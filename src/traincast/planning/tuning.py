"""How far software is tuned: what each level of effort reaches, what each switch saves, and what more would.

Which option of some axes is best hardly depends on how a layout splits the work (kernels of attention, types of its
core): these are tried on the fastest layout alone, one after the other, as long as each saves something.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import TraincastError
from traincast.job.condition_facts import job_facts
from traincast.job.fields import FIELDS
from traincast.job.switches import Switch, allowed
from traincast.planning.degrees import Degrees, micro_batches_of
from traincast.planning.doubt import FORGIVEN, cautious_s
from traincast.planning.finalists import Finalist, Simulate, simulated
from traincast.planning.layout import Layout
from traincast.planning.screen.blocks import Key
from traincast.planning.screen.screen import Screen, Screened
from traincast.planning.software import by_framework
from traincast.planning.space import Space
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result

_LEAST_GAIN = 0.002
"""Share of the step that a switch must save: less is not a reason to touch a job."""
_TOLD = 0.001
"""Share of the step that a switch must save to stay on."""
_SIMULATED = 2
"""Layouts of a lower level of effort that are simulated."""
_KEPT = 48
"""Layouts of either end of a screen that lower levels are tried on: the fastest, and those of least memory."""
_ELSEWHERE = ("framework", "sharp")
"""What a plan does not switch: another framework, and what the network must be set up for."""


class Effort(Struct, frozen=True, kw_only=True):
    """What a level of effort reaches."""

    level: str
    """One of `traincast.job.levels.LEVELS`."""
    layout: Layout | None
    """Its fastest layout; None where nothing fits."""
    step_s: float | None
    peak_bytes: float | None


class Switched(Struct, frozen=True, kw_only=True):
    """A switch of software that the layout to run has on."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    saving_s: float
    """How much longer the step would be without it, all else the same."""
    frees_bytes: float
    """How much more memory it would need."""
    changes: str
    """What it changes in the numbers that a model learns from; empty: nothing."""
    asks: str
    """What else it asks of a user."""


def _with_effort(screen: Screen, screened: Screened, level: str) -> Screened | None:
    """Return the best few layouts with a lower level of effort, of those that a screen kept; None where none fits.

    Those are the fastest, and the fastest for less memory; where none of them fits with less effort, all are tried.
    """
    of_level = _of_level(screen, level)
    # Less effort makes no layout faster.
    kept, least_s = len(screened.layouts), dict[Key, float]()
    for place in dict.fromkeys((*range(kept)[:_KEPT], *range(kept)[-_KEPT:])):
        key = key_of(screened.layouts[place])
        least_s[key] = min(screened.step_s[place], least_s.get(key, math.inf))
    # How large a microbatch may be depends on what software keeps in memory.
    for degrees, _, schedule, vpp in tuple(least_s):
        for size in micro_batches_of(screen.space, degrees.dp):
            least_s.setdefault((degrees, size, schedule, vpp), math.inf)
    for search in (partial(of_level.run_some, least_s, longest=FORGIVEN), of_level.run):
        with suppress(TraincastError):
            if (found := search(keep=_SIMULATED)).layouts:
                return found
    return None


def reached(screen: Screen, screened: Screened, level: str, simulate: Simulate) -> Effort:
    """Return what a lower level of effort reaches: the best and one other of those that a screen kept, simulated.

    It is the layout whose step is least as a cautious forecast has it, as a plan chooses.
    """
    tried = _with_effort(screen, screened, level)
    found = () if tried is None else simulated(tried, simulate, _SIMULATED)
    if tried is not None and not found:
        found = simulated(_of_level(screen, level).run(_SIMULATED), simulate, _SIMULATED)
    if not found:
        return Effort(level=level, layout=None, step_s=None, peak_bytes=None)
    chosen = min(found, key=cautious_s)
    return Effort(level=level, layout=chosen.layout, step_s=chosen.step_s, peak_bytes=chosen.peak_bytes)


def as_carefully(screen: Screen, effort: Effort, best: Layout, step_s: float, simulate: Simulate) -> Effort:
    """Return what a lower level of effort reaches, as carefully chosen as the layout to run.

    Where it seems to reach more, that layout was chosen over faster ones for what is known of it: then it is the same
    with less effort.
    """
    if effort.step_s is None or effort.step_s >= step_s:
        return effort
    with suppress(TraincastError):
        tried = _of_level(screen, effort.level).run_some({key_of(best): step_s}, 1, math.inf)
        for found in simulated(tried, simulate, 1):
            return Effort(level=effort.level, layout=found.layout, step_s=found.step_s, peak_bytes=found.peak_bytes)
    return effort


def _of_level(screen: Screen, level: str) -> Screen:
    return dataclasses.replace(screen, space=replace(screen.space, tuned=level))


def key_of(layout: Layout) -> Key:
    """Return what decides the block of a layout."""
    degrees = Degrees(**{name: getattr(layout, name) for name in Degrees.__struct_fields__})
    return degrees, layout.micro_batch, layout.schedule, layout.vpp


def tuned_further(best: Finalist, space: Space, limit_bytes: float, simulate: Simulate) -> tuple[Finalist, ...]:
    """Return the fastest layout with what else saves something, switch by switch; nothing where nothing does."""
    found: list[Finalist] = []
    for switch in _late(space):
        now = found[-1] if found else best
        facts = job_facts(now.done.job, space.cluster)
        if allowed(switch, {**facts, **dict(switch.settings)}) is not None:
            continue
        software = tuple(sorted({**dict(now.layout.software), **dict(switch.settings)}.items()))
        layout = replace(now.layout, software=software)
        try:
            result, done = simulate(layout)
        except TraincastError:
            continue
        peak = result.peak_bytes
        if result.iteration_time_s < (1 - _LEAST_GAIN) * now.step_s and peak < limit_bytes:
            found.append(_changed(now, layout, result, done))
    return tuple(found[-1:])


def _changed(now: Finalist, layout: Layout, result: Result, done: JobStep) -> Finalist:
    """Return a finalist with other software, as far off its screen as it was: that did not see the change."""
    screened_s = now.screened_s * result.iteration_time_s / now.step_s
    return Finalist(layout=layout, screened_s=screened_s, peak_bytes=result.peak_bytes, result=result, done=done)


def _late(space: Space) -> Iterator[Switch]:
    """Yield the switches that are tried on the fastest layout alone."""
    screened = {each for options in space.software.axes.values() for each in options}
    for each in space.software.switches:
        offloads = any(FIELDS[name].group == "offload" for name, _ in each.settings)
        elsewhere = any(name in _ELSEWHERE for name, _ in each.settings)
        if each not in screened and not elsewhere and (space.allow_offload or not offloads):
            yield each


def settled(
    best: Finalist, space: Space, limit_bytes: float, simulate: Simulate
) -> tuple[Finalist, tuple[Switched, ...]]:
    """Return a layout without the switches that save nothing, and what each of the others saves, the most first.

    What frees memory that the layout needs stays.
    """
    said = {**dict(best.layout.software), **_ways(best.layout)}
    own = by_framework(space.framework, said, space.request)
    now, found, taken = best, list[Switched](), list(_taken(space.software.switches, said, own))
    for each in taken.copy():
        if each.axis in space.software.forced:
            continue  # without it the framework does what cannot run here
        layout = _without(now.layout, {name: own.get(name) for name, _ in each.settings})
        try:
            result, done = simulate(layout)
        except TraincastError:
            continue
        saving_s, peak = result.iteration_time_s - now.step_s, result.peak_bytes
        facts = job_facts(done.job, space.cluster)
        needed = any(allowed(other, facts) is not None for other in taken if other is not each)
        if saving_s <= _TOLD * now.step_s and peak < limit_bytes and not needed:
            taken.remove(each)
            now = _changed(now, layout, result, done)
        else:
            told = {name: getattr(each, name) for name in ("name", "settings", "changes", "asks")}
            found.append(Switched(saving_s=saving_s, frees_bytes=peak - now.peak_bytes, **told))
    return now, tuple(sorted(found, key=lambda each: -each.saving_s))


def _ways(layout: Layout) -> dict[str, Any]:
    return {"moe_dispatcher": layout.moe_dispatcher, "moe_a2a_overlap": layout.moe_a2a_overlap}


def _taken(switches: Sequence[Switch], said: dict[str, Any], own: dict[str, Any]) -> Iterator[Switch]:
    """Yield the switches that settings have, where the framework does something else by itself; of an axis one."""
    axes: dict[str, Switch] = {}
    for each in switches:
        fields = dict(each.settings)
        if all(said.get(name) == value for name, value in fields.items()) and any(
            own.get(name) != value for name, value in fields.items()
        ):
            known = axes.get(each.axis)
            axes[each.axis] = each if known is None or len(each.settings) >= len(known.settings) else known
    found = list(axes.values())
    # What is a part of another switch is not one by itself.
    yield from (each for each in found if not any(set(each.settings) < set(other.settings) for other in found))


def _without(layout: Layout, off: dict[str, Any]) -> Layout:
    """Return a layout with some fields as the framework has them by itself."""
    of_layout = {name: value for name, value in off.items() if name in Layout.__struct_fields__}
    rest = {name: value for name, value in layout.software if name not in off}
    if of_layout.get("moe_a2a_overlap") is False:
        rest.pop("delay_wgrad", None)  # which has no effect without
    return replace(layout, software=tuple(sorted(rest.items())), **of_layout)
