"""What a sweep says of a point: a row of one table."""

from collections.abc import Mapping
from typing import Any

from traincast.job.draft import Draft
from traincast.planning.answer import Plan
from traincast.planning.layout import COLUMNS as LAYOUT_COLUMNS
from traincast.planning.layout import software_text
from traincast.simulation.result import Result
from traincast.simulation.result_records import RESULT_DEGREES

Row = dict[str, str | int | float | bool | None]
"""Column to value; None where a point has none."""

HOUR_S = 3600.0
TERA = 1e12

_PARALLEL = ("world_size", *RESULT_DEGREES, "microbatches")
_CHOICE = ("probability", "regret", "ties", "evaluated", "feasible", "simulated", "screen_error_most")
COLUMNS = (
    *("status", "step_s", "step_low_s", "step_high_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"),
    *("peak_memory_bytes", *_PARALLEL),
    *("gpu_hours_per_1e12_tokens", "cost_per_1e12_tokens", "message"),
)
"""Columns after those of the keys that vary. ``status``: ``ok``, ``infeasible``, ``refused`` (the job is wrong) or
``failed`` (a defect, or its worker died); the last three say why in ``message``."""

_DECIDED = tuple(name for name in LAYOUT_COLUMNS if name not in (*COLUMNS, "gpus"))
_LAYOUT = ("layout", *_DECIDED, "software")
PLAN_COLUMNS = (*COLUMNS[:-1], *_LAYOUT, *_CHOICE, "message")
"""The same of points that are plans: the figures of the layout to run, what else of it was decided, how likely it is
the best, how many are tied with it, and how many layouts were worked out, fit, and were simulated."""


def row_of(result: Result, draft: Draft, prices: Mapping[str, float]) -> Row:
    """Return what a forecast says of its point."""
    peaks = [stage.peak for stage in result.memory_bytes or ()]
    interval = result.interval
    tokens_per_s = result.tokens_per_s_per_gpu
    hours = TERA / tokens_per_s / HOUR_S if tokens_per_s else None
    price = prices.get(str(draft.cluster)) if hours is not None else None
    found: dict[str, Any] = {
        "status": "ok",
        "step_s": result.iteration_time_s,
        "step_low_s": None if interval is None else interval.low_s,
        "step_high_s": None if interval is None else interval.high_s,
        "tokens_per_s_per_gpu": tokens_per_s,
        "tflops_per_gpu": result.tflops_per_gpu,
        "mfu": result.mfu,
        "peak_memory_bytes": int(max(peaks)) if peaks else None,
        **{name: getattr(result.parallel, name) for name in _PARALLEL},
        "gpu_hours_per_1e12_tokens": hours,
        "cost_per_1e12_tokens": None if hours is None or price is None else hours * price,
    }
    return found


def row_of_plan(plan: Plan, draft: Draft, prices: Mapping[str, float]) -> Row:
    """Return what a plan says of its point: the layout to run, and how sure it is."""
    best = plan.best[0]
    layout = {name: _cell(getattr(best.layout, name)) for name in _DECIDED}
    layout["software"] = software_text(best.layout)
    found = {
        **row_of(best.result, draft, prices),
        "layout": best.layout.text,
        **layout,
        "probability": best.probability,
        "regret": best.regret,
        "ties": plan.ties - 1,
        **{name: getattr(plan, name) for name in ("evaluated", "feasible", "simulated", "screen_error_most")},
    }
    return found | {"peak_memory_bytes": int(best.peak_bytes)}


def _cell(value: Any) -> str | int | float | bool | None:  # noqa: ANN401
    return " ".join(map(str, value)) or None if isinstance(value, tuple) else value


def row_without(status: str, message: str) -> Row:
    """Return what is said of a point that has no forecast."""
    return {"status": status, "message": " ".join(message.split())}
