"""Why not another layout: what forbids it, what it lacks in memory, or the terms in which it loses to the best one."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from traincast.errors import TraincastError
from traincast.estimate.memory import JobMemory, fits
from traincast.hardware.host import host_of
from traincast.job.resolve import resolve_job
from traincast.planning.answer import LayoutToRun, WhyNot
from traincast.planning.finalists import Finalist, simulated
from traincast.planning.layout import Layout, said
from traincast.planning.screen.screen import Screen, Screened
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.units import format_share, format_size, format_time

Simulate = Callable[[Layout], tuple[Result, JobStep]]

_SHOWN = 3
_NOTHING = 1e-4
"""Share of a step below which a difference is not told."""
_NOTICED = 0.001
"""Share of a step by which a layout is faster in earnest."""
_OUTSIDE = "outside the default space, which has only what one would run (--space full has it)"
_FEW = 3
"""Layouts that are simulated for a question."""


def explain(screen: Screen, asked: Mapping[str, Any], chosen: LayoutToRun, simulate: Simulate) -> WhyNot:
    """Return why the best layouts do not have what was asked for."""
    simulate = _once(simulate)
    shown = ", ".join(f"{name} {said(value)}" for name, value in asked.items())
    found, outside = _screened(screen, asked)
    if found is None:
        return _impossible(screen, asked, shown, simulate)
    if not found.layouts:
        return _too_large(screen, asked, shown, simulate)
    finalists = simulated(found, simulate, _FEW)
    if not finalists:
        return _impossible(screen, asked, shown, simulate)
    best = finalists[0]
    text, verdict = _slower(shown, best, chosen)
    text += f"; {_OUTSIDE}" if outside else ""
    change = _change(screen, asked, best, simulate)
    return WhyNot(asked=shown, verdict=verdict, text=text, layout=best.layout, step_s=best.step_s, change=change)


def _once(simulate: Simulate) -> Simulate:
    """Return a simulation of each layout once: what is best is often the same whichever field is free."""
    known: dict[Layout, tuple[Result, JobStep]] = {}

    def again(layout: Layout) -> tuple[Result, JobStep]:
        if layout not in known:
            known[layout] = simulate(layout)
        return known[layout]

    return again


def _screened(screen: Screen, asked: Mapping[str, Any]) -> tuple[Screened | None, bool]:
    """Return the layouts that have what was asked for, and whether they are outside the space of the plan."""
    space = screen.space
    fixed = {**space.fixed, **{name: (value,) for name, value in asked.items()}}
    for full in sorted({space.full, True}):
        try:
            found = dataclasses.replace(screen, space=replace(space, full=full, fixed=fixed)).run(keep=50)
        except TraincastError:
            continue
        return found, full and not space.full
    return None, False


def _impossible(screen: Screen, asked: Mapping[str, Any], shown: str, simulate: Simulate) -> WhyNot:
    """Return what forbids a layout, in the words of a forecast of it, and which single change allows one."""
    text = "no layout of this model on these GPUs has that"
    try:
        resolve_job(replace(screen.space.request, **asked), screen.setting.cluster)
    except TraincastError as error:
        text = str(error)
    change = _change(screen, asked, None, simulate)
    return WhyNot(asked=shown, verdict="impossible", text=f"{shown}: {text}", change=change)


def _too_large(screen: Screen, asked: Mapping[str, Any], shown: str, simulate: Simulate) -> WhyNot:
    """Return by how much the smallest layout is too large, and what would free memory or fit."""
    found, _ = _screened(dataclasses.replace(screen, limit_bytes=float("inf")), asked)
    if found is None:
        return _impossible(screen, asked, shown, simulate)
    place = min(range(len(found.layouts)), key=lambda each: found.peak_bytes[each])
    layout, peak = found.layouts[place], found.peak_bytes[place]
    job = resolve_job(replace(screen.space.request, **layout.request()), screen.setting.cluster)
    gpu = screen.setting.cluster.gpu
    room = host_of(gpu, min(screen.setting.cluster.ranks_per_node, job.parallel.world_size)).memory_bytes
    gpus_per_node = screen.setting.cluster.gpus_per_node
    remedies = fits(JobMemory(job), gpu.memory_bytes, gpus_per_node, room).remedies
    helps = [f"{name} frees {format_size(size)}" for name, size in remedies[:_SHOWN]]
    text = (
        f"{shown}: the smallest such layout, {layout.text}, needs {format_size(peak)}, "
        f"{format_size(peak - screen.limit_bytes)} above the limit of {format_size(screen.limit_bytes)}"
    )
    fits_with = _change(screen, asked, None, simulate)
    change = "; ".join([*([", ".join(helps)] if helps else []), *([fits_with] if fits_with else [])]) or None
    return WhyNot(asked=shown, verdict="too large", text=text, layout=layout, change=change)


def _slower(shown: str, best: Finalist, chosen: LayoutToRun) -> tuple[str, str]:
    """Return the terms in which a layout loses."""
    behind = best.step_s / chosen.step_s - 1
    begin = f"{shown}: {best.layout.text}, which takes {format_time(best.step_s)}, is"
    if best.layout == chosen.layout:
        return f"{begin} the layout to run", "best"
    if behind <= -_NOTICED:
        return (
            f"{begin} {format_share(-behind)} faster than the layout to run, and outside the space of this plan",
            "best",
        )
    if behind <= 0:
        return f"{begin} no slower than the layout to run", "best"
    parts = [(best.result.breakdown_s[key] - chosen.breakdown_s[key], key.replace("_", " ")) for key in BREAKDOWN_KEYS]
    least = _NOTHING * chosen.step_s
    lost = [f"{name} +{format_time(size)}" for size, name in sorted(parts, reverse=True)[:_SHOWN] if size > least]
    won = [f"{name} -{format_time(-size)}" for size, name in sorted(parts)[:_SHOWN] if size < -least]
    text = (
        f"{shown}: the best such layout, {best.layout.text}, takes {format_time(best.step_s)}, {format_share(behind)} "
        f"longer ({', '.join([*lost, *won])})"
    )
    return text, "slower"


def _change(screen: Screen, asked: Mapping[str, Any], best: Finalist | None, simulate: Simulate) -> str | None:
    """Return the single field of what was asked for whose change helps most, and what it gives."""
    found = [(each.step_s, name, each) for name, each in _freed(screen, asked, simulate)]
    if not found:
        return None
    step_s, name, other = min(found, key=lambda each: each[:2])
    if best is not None and step_s >= best.step_s:
        return None
    value = getattr(other.layout, name)
    return f"{name} {said(value)} instead of {said(asked[name])} takes {format_time(step_s)}: {other.layout.text}"


def _freed(screen: Screen, asked: Mapping[str, Any], simulate: Simulate) -> Iterator[tuple[str, Finalist]]:
    for name in asked:
        rest = {field: value for field, value in asked.items() if field != name}
        found = _screened(screen, rest)[0] if rest else _all_of(screen)
        yield from ((name, each) for each in (simulated(found, simulate, 1) if found is not None else ()))


def _all_of(screen: Screen) -> Screened | None:
    """Return the layouts of the whole space; None where it has none."""
    try:
        return screen.run(keep=20)
    except TraincastError:
        return None
