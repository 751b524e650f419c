"""From what one has: which single change of a layout saves most, which few together, and what each risks."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import TraincastError
from traincast.estimate.memory import chance_of_oom
from traincast.job.fields import FIELDS, left_open
from traincast.job.job import Job
from traincast.job.parallel import DEGREES
from traincast.job.request import JobRequest
from traincast.planning.doubt import chance_faster
from traincast.planning.finalists import Finalist, simulated
from traincast.planning.layout import COLUMNS, Layout, said
from traincast.planning.options import AXES
from traincast.planning.screen.screen import Screen, Screened
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.result_records import RESULT_DEGREES
from traincast.units import format_share, format_size

Simulate = Callable[[Layout], tuple[Result, JobStep]]

_SEVERAL = ("recompute", "pipeline", "experts", "sharding")
"""Changes of several fields at once, which are tried first."""


def _parts() -> Mapping[str, tuple[str, ...]]:
    """Return what may change of a layout, each with the fields that change with it."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(_SEVERAL, ())
    for field in (FIELDS[name] for name in COLUMNS):
        if field.axis:
            part = field.change or field.name
            found[part] = (*found.get(part, ()), field.name)
    return found


_PARTS = _parts()


def _followers() -> Mapping[str, set[str]]:
    """Return fields that a change takes along: they mean nothing, or something else, without it."""
    # State is shared among other ranks where others have equal parameters, and experts are split as the rest is.
    found = {"tp": {"shard", "etp"}, "pipeline": {"shard"}, "cp": {"shard"}}
    for name in COLUMNS:
        for degree in (need.partition(">")[0] for need in FIELDS[name].needs if FIELDS[name].axis == "axis"):
            if degree in DEGREES:
                found.setdefault(FIELDS[degree].change or degree, set()).add(name)
    return found


_FOLLOWS = _followers()

MOST_TOGETHER = 4
"""Most changes that are tried together."""
_TRIED = 3
"""Changes that are simulated for each number of them: the best that the screen has."""
_LEAST_GAIN = 0.002
"""Share of the step that a further change must save: less is not a reason to touch a job."""
_SURE = 0.9
_LITTLE_CHANCE = 0.01
"""Chances that are told: of being slower after all, of running out of memory."""


class LayoutChange(Struct, frozen=True, kw_only=True):
    """One change of a layout, or several together."""

    change: str
    """What changes, with both values."""
    parts: int
    """How many changes it is."""
    layout: Layout
    step_s: float
    saving_s: float
    probability: float
    """That it is faster at all, given how far off forecasts are."""
    peak_bytes: float
    free_bytes: float
    """Memory that stays free."""
    chance_of_oom: float
    risks: tuple[str, ...]
    """What speaks against it, in words."""


class Start(Struct, frozen=True, kw_only=True):
    """The job that one has, and what changing it would save."""

    layout: Layout
    step_s: float
    peak_bytes: float
    changes: tuple[LayoutChange, ...]
    """The best single change of each part of the layout, the most saving first."""
    together: tuple[LayoutChange, ...]
    """Two changes, three, and so on, each with one more than the one before."""


def open_request(job: Job, request: JobRequest) -> JobRequest:
    """Return a request that leaves open all that a plan decides, and keeps what is not a matter of layout."""
    return replace(request, **{**dict.fromkeys(left_open()), "precision": job.precision.dtype})


def layout_of(job: Job) -> Layout:
    """Return the layout of a job."""
    parallel, recompute = job.parallel, job.recompute
    groups = recompute.group > 1
    found: dict[str, Any] = {name: getattr(parallel, name) for name in (*RESULT_DEGREES, "microbatches")}
    found |= {"gpus": parallel.world_size, "etp": parallel.expert_tp}
    found |= {"recompute_layers": recompute.group if groups else recompute.layers}
    found |= {"recompute_method": "uniform" if groups else None}
    found |= {"recompute_modules": recompute.recomputed_modules or None}
    found |= {"moe_dispatcher": job.experts.dispatcher if job.model.experts else None}
    return Layout(**found, **{name: job.decided(name) for name in COLUMNS if name not in found})


def start_of(screen: Screen, job: Job, forecast: tuple[Result, JobStep], usable: float, simulate: Simulate) -> Start:
    """Return what changes of a job's layout save, one by one and a few together; all of them are simulated."""
    result, done = forecast
    peak = result.peak_bytes
    has = Finalist(layout=layout_of(job), screened_s=done.step_s, peak_bytes=peak, result=result, done=done)
    search = _Search(screen, simulate, has, usable)
    return Start(
        layout=has.layout,
        step_s=has.step_s,
        peak_bytes=peak,
        changes=tuple(sorted(search.single(), key=lambda each: -each.saving_s)),
        together=tuple(search.together()),
    )


class _Search(Struct, frozen=True):
    """Looks for changes of what one has."""

    screen: Screen
    simulate: Simulate
    has: Finalist
    usable_bytes: float

    def single(self) -> Iterator[LayoutChange]:
        """Yield the best change of every part that saves something, or that makes a job fit that does not."""
        for name in _PARTS:
            found = self._screened((name,))
            best = None if found is None else next(iter(simulated(found, self.simulate, 2)), None)
            if best is not None and self._helps(best, self.has) and _differences(self.has.layout, best.layout):
                yield self._change(best, 1)

    def together(self) -> Iterator[LayoutChange]:
        """Yield the best two changes, then with a third one, and so on, as long as each saves something.

        Of two every pair is tried, for what neither does alone (half the tp for twice the cp); the others join them.
        """
        names = [name for name in _PARTS if self._varies(name)]
        chosen, now = self._best([(name,) for name in names])
        for count in range(2, MOST_TOGETHER + 1):
            sets: list[tuple[str, ...]] = list(combinations(names, 2))
            if count > 2:
                sets = [(*chosen, name) for name in names if name not in chosen]
            chosen, best = self._best(sets)
            if best is None or not self._helps(best, now or self.has):
                return
            now = best
            yield self._change(best, count)

    def _helps(self, one: Finalist, before: Finalist) -> bool:
        too_large = before.peak_bytes > self.screen.limit_bytes >= one.peak_bytes
        return too_large or one.step_s < before.step_s * (1 - _LEAST_GAIN)

    def _varies(self, part: str) -> bool:
        """Return whether a part may be anything else than it is."""
        found = self._screened((part,), limited=False)
        return found is not None and any(_differences(self.has.layout, each) for each in found.layouts)

    def _best(self, sets: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], Finalist | None]:
        """Return the parts whose change saves most, with the layout after it; the screen's best few are simulated."""
        screened = [(each, found) for each in sets if (found := self._screened(each)) is not None]
        screened.sort(key=lambda each: each[1].step_s[0])
        tried = [(parts, best) for parts, each in screened[:_TRIED] for best in simulated(each, self.simulate, 1)]
        return min(tried, key=lambda each: each[1].step_s) if tried else ((), None)

    def _screened(self, parts: tuple[str, ...], *, limited: bool = True) -> Screened | None:
        """Return the layouts that differ in some parts alone, the fastest first; None where none fits.

        They are among those that one would run, unless the others are asked for or what is held is none of these.
        """
        layout, space = self.has.layout, self.screen.space
        free = {field for part in parts for field in (*_PARTS[part], *_FOLLOWS.get(part, ()))}
        held = {name: (getattr(layout, name),) for name in AXES if name not in free}
        if layout.moe_dispatcher is None:
            held = {name: value for name, value in held.items() if name not in ("ep", "etp", "moe_dispatcher")}
        if layout.recompute_method == "uniform" and "recompute" not in parts:
            space = replace(space, request=replace(space.request, recompute_method="uniform"))
        limit = self.screen.limit_bytes if limited else float("inf")
        for full in sorted({space.full, True}):
            fixed = {**held, **space.fixed}
            try:
                found = dataclasses.replace(
                    self.screen, limit_bytes=limit, space=replace(space, full=full, fixed=fixed, held=layout.software)
                ).run(keep=20)
            except TraincastError:
                continue
            return found if found.layouts else None
        return None

    def _change(self, best: Finalist, parts: int) -> LayoutChange:
        faster = chance_faster(best, self.has)
        return LayoutChange(
            change=", ".join(_differences(self.has.layout, best.layout)),
            parts=parts,
            layout=best.layout,
            step_s=best.step_s,
            saving_s=self.has.step_s - best.step_s,
            probability=faster,
            peak_bytes=best.peak_bytes,
            free_bytes=self.usable_bytes - best.peak_bytes,
            chance_of_oom=self._chance(best),
            risks=tuple(self._risks(best, faster)),
        )

    def _chance(self, best: Finalist) -> float:
        return chance_of_oom(best.peak_bytes, self.usable_bytes, self.screen.space.framework.name)

    def _risks(self, best: Finalist, faster: float) -> Iterator[str]:
        """Yield what speaks against a change: memory, doubt, groups between nodes, what is assumed for it."""
        more, chance = best.peak_bytes - self.has.peak_bytes, self._chance(best)
        if more > 0 and chance > _LITTLE_CHANCE:
            yield f"{format_size(more)} more memory, runs out of it with {format_share(chance)}"
        if faster < _SURE:
            yield f"is faster with {format_share(faster)} only"
        crossing = _crossing(best.result) - _crossing(self.has.result)
        if crossing:
            yield f"{' '.join(sorted(crossing))} between nodes"
        known = {note.code for note in (*self.has.result.assumptions, *self.has.result.warnings)}
        assumed = [note for note in best.result.assumptions if note.code.startswith("assumed-")]
        new = [note.text for note in (*best.result.warnings, *assumed) if note.code not in known]
        yield from dict.fromkeys(new)


def _crossing(result: Result) -> set[str]:
    """Return the kinds of groups that communicate between nodes."""
    return {each.group for each in result.collectives if each.nodes > 1}


def _differences(before: Layout, after: Layout) -> list[str]:
    """Return what differs, with both values; what follows from other fields is left out."""
    found = []
    for name in AXES:
        old, new = getattr(before, name), getattr(after, name)
        if old != new and _matters(name, after):
            known = f"{said(old)} -> " if _matters(name, before) else ""
            found.append(f"{name} {known}{said(new)}")
    return found


def _matters(name: str, layout: Layout) -> bool:
    """Return whether a field of a layout is a choice of its own."""
    field = FIELDS[name]
    return field.matters(layout) and (name != "shard" or layout.shard < layout.replicas)
