"""What made measured steps slower than the same steps without stragglers, for people."""

from collections.abc import Iterator, Mapping, Sequence

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
    for cause in causes:
        cost = f"{format_time(cause.saving_s)} of the step ({format_share(cause.share)})"
        if cause.mean_saving_s is not None:
            cost += f", {format_time(cause.mean_saving_s)} of the mean step"
        yield ui.hanging("!", f"{cause.name}: {cost}; {cause.evidence}")
    if not causes:
        yield ui.indented(f"no single cause is a quarter of what is lost and {format_share(0.02)} of the step")
    yield ui.facts([fact for fact in _facts(told) if fact[1]])


def _facts(told: Slowdowns) -> Iterator[tuple[str, str]]:
    """Yield the means of the steps, and the slowdowns by their letters (arXiv 2505.05713)."""
    yield "mean step", format_time(told.step_s)
    if told.pauses > 1:
        yield "without pauses of the host", format_time(told.without_pauses_s)
    yield "all at typical times", format_time(told.usual_s)
    yield "slowdown S", f"{told.slowdown:.3f}"
    yield "M_W, slowest 3 % of workers", _of_slowdown(told.m_w)
    yield "M_S, last stage", _of_slowdown(told.m_s)
    yield "S_t, operation types", _highest(told.by_type)
    yield "S_s, stages", _highest(told.by_stage)
    yield "S_w, ranks", _highest(told.by_rank)


def _highest(found: Mapping[str, float]) -> str:
    high = sorted((name for name in found if found[name] >= 1 + _LEAST), key=lambda name: -found[name])
    shown = ", ".join(f"{_plain(name)} ({found[name]:.3f})" for name in high[:_SHOWN])
    return f"{shown} and {len(high) - _SHOWN} more" if len(high) > _SHOWN else shown


def _plain(name: str) -> str:
    """Return the function of a kernel without its type, template arguments and parameters; other names as they are."""
    if "(" not in name and "<" not in name:
        return name
    depth, kept = 0, []
    for letter in name.replace("(anonymous namespace)::", ""):
        depth += letter in "<(["
        if depth == 0:
            kept.append(letter)
        depth -= letter in ">)]"
    return "".join(kept).strip().rpartition(" ")[2] or name


def _of_slowdown(share: float) -> str:
    """Say how much of the slowdown goes away: what is faster than typical without it is all of it."""
    return "all of the slowdown" if share >= 1 else f"{format_share(max(share, 0.0))} of the slowdown"
