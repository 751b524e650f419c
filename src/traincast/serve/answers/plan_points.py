"""Layouts of a plan as points: every one in columns, as they are estimated and in the end."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from traincast.planning.answer import Choice, Plan
from traincast.planning.layout import COLUMNS, Estimate, Layout
from traincast.serve.answers.bench import Workbench
from traincast.serve.records.plans import Points

_MOST_POINTS, _POINTS_EVERY_S = 6_000, 0.15
"""Points that are told while layouts are estimated, and how often; a plan has many more layouts than anybody sees."""


class FoundLayouts:
    """Layouts as they are estimated, told now and then: the first at once, of very many some."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._waiting: list[Estimate] = []
        self._left, self._last = _MOST_POINTS, 0.0

    def take(self, estimates: tuple[Estimate, ...]) -> None:
        """Keep layouts until it is time to tell of them."""
        kept = estimates[: min(self._left, max(1, self._left // 4))]
        self._waiting += kept
        self._left -= len(kept)
        if time.monotonic() - self._last >= _POINTS_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell of those that wait."""
        if self._waiting:
            self._bench.tell("points", Points(columns=_as_columns(list(map(_estimated, self._waiting)))))
        self._waiting, self._last = [], time.monotonic()


def _estimated(each: Estimate) -> dict[str, Any]:
    """Return a layout that was estimated as a point."""
    figures = {"step_s": each.step_s, "peak_bytes": each.peak_bytes, "simulated": False}
    return {"text": each.layout.text} | _fields_of(each.layout) | figures


def columns_of(plans: Sequence[Plan], kept: set[Any], first: Choice) -> dict[str, list[Any]]:
    """Return every layout that was estimated or simulated as columns."""
    rows: list[dict[str, Any]] = []
    for each in plans:
        done = {choice.layout: choice for choice in each.shown}
        rows += [_row(each, choice.layout, choice, kept, first) for choice in done.values()]
        rows += [
            {**_row(each, one.layout, None, kept, first), **_rates(each, one.step_s, one.peak_bytes)}
            for one in each.estimated
            if one.layout not in done
        ]
    return _as_columns(rows)


def _row(plan: Plan, layout: Layout, choice: Choice | None, kept: set[Any], first: Choice) -> dict[str, Any]:
    row: dict[str, Any] = {"model": plan.model, "cluster": plan.cluster, "text": layout.text}
    row |= _fields_of(layout)
    row["simulated"] = choice is not None
    if choice is None:
        return row | {"pareto": False, "tied": False, "chosen": False}
    marks = {"pareto": choice.identity in kept, "tied": choice.tied, "chosen": choice.identity == first.identity}
    return row | _figures(choice) | marks


def _figures(choice: Choice) -> dict[str, Any]:
    run = choice.training
    return {
        "step_s": choice.step_s,
        "peak_bytes": choice.peak_bytes,
        "tokens_per_s": choice.tokens_per_s,
        "mfu": choice.result.mfu,
        "days": None if run is None else run.days,
        "cost": None if run is None else run.cost,
        "energy_mwh": None if run is None else run.energy_mwh,
        "probability": choice.probability,
        "regret": choice.regret,
    }


def _rates(plan: Plan, step_s: float, peak_bytes: float) -> dict[str, Any]:
    """Return the figures of a layout that was estimated: those of the one to run, as much longer as its step is."""
    best = plan.best[0]
    longer, run = step_s / best.step_s, best.training
    return {
        "step_s": step_s,
        "peak_bytes": peak_bytes,
        "tokens_per_s": best.tokens_per_s / longer,
        "mfu": None if best.result.mfu is None else best.result.mfu / longer,
        "days": None if run is None else run.days * longer,
        "cost": None if run is None or run.cost is None else run.cost * longer,
        "energy_mwh": None if run is None or run.energy_mwh is None else run.energy_mwh * longer,
    }


def _fields_of(layout: Layout) -> dict[str, Any]:

    return {name: _cell(getattr(layout, name)) for name in COLUMNS if hasattr(layout, name)}


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}
