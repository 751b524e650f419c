"""What made measured steps slower than the same steps without stragglers, for people."""

from collections.abc import Mapping, Sequence

from traincast.analysis.summary import Cause, Slowdowns
from traincast.report.terminal import layout as ui
from traincast.units import counted, format_share, format_time

_SHOWN = 4
_LEAST = 0.005
"""Slowdown above 1 from which a type, stage or worker is listed."""


def slowdown(told: Slowdowns | None, causes: Sequence[Cause]) -> ui.View:
    """Yield the causes with their evidence, and the slowdowns of types, stages and workers."""
    if told is None or (not causes and told.slowdown < 1 + _LEAST):
        return
    steps = "step" if told.steps == 1 else counted(told.steps, "step")
    yield ui.heading(f"Against the same {steps} without stragglers")
    times = f"mean step {format_time(told.step_s)}"
    if told.pauses > 1:
        times += f", without pauses of the host {format_time(told.without_pauses_s)}"
    yield ui.indented(f"{times}, with the usual time for every operation {format_time(told.usual_s)}")
    yield ui.indented(
        f"slowdown S {told.slowdown:.3f}; of it M_W (slowest 3 % of workers mended) {format_share(told.m_w)}, "
        f"M_S (last stage mended) {format_share(told.m_s)}"
    )
    for name, found in (("S_t", told.by_type), ("S_s of stages", told.by_stage), ("S_w of ranks", told.by_rank)):
        text = _highest(found)
        if text:
            yield ui.indented(f"{name}: {text}")
    if not causes:
        yield ui.indented(f"no single cause is a quarter of what is lost and {format_share(0.02)} of the step")
    for cause in causes:
        cost = f"{format_time(cause.saving_s)} of a step ({format_share(cause.share)})"
        yield ui.hanging("!", f"{cause.name}: {cost}; {cause.evidence}")


def _highest(found: Mapping[str, float]) -> str:
    high = sorted((name for name in found if found[name] >= 1 + _LEAST), key=lambda name: -found[name])
    shown = ", ".join(f"{name} {found[name]:.3f}" for name in high[:_SHOWN])
    return f"{shown} and {len(high) - _SHOWN} more" if len(high) > _SHOWN else shown
