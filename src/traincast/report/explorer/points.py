"""``plan.html`` and ``sweep.html``: many jobs to compare in a browser, as a chart and as a table.

A column that says the same of every job is a fact above the chart and no column.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from traincast.job.fields import FIELDS, limited
from traincast.planning.answer import Choice, Plan
from traincast.planning.layout import COLUMNS, Estimate
from traincast.planning.several import Plans
from traincast.report.explorer.page import points_page
from traincast.report.plain import Plain, encodable
from traincast.units import counted

MOST_ROWS = 20_000
"""Most jobs of a page."""
_COLOURS_PLAN = ("model", "cluster", *limited())
_MOST_COLOURS = 12
_TITLES = {"peak_bytes": "peak memory", "mfu": "MFU", "gpus": "GPUs", "tflops_per_gpu": "TFLOP/s per GPU"}
_MADE_BY = ("traincast_version", "sweep_sha256")
_TOLD_OF_POINTS = ("layout", "step_s", "mfu", "peak_memory_bytes", "cost_per_1e12_tokens")
_COMMON = ("layout", "step_s", "peak_bytes")
"""Columns of a plan that stay, whatever they say."""
Cell = str | int | float | bool | None


class Page(Struct, frozen=True, kw_only=True):
    """A page of many jobs."""

    title: str
    facts: Sequence[str]
    rows: Sequence[Mapping[str, Cell]]
    """Every job, column to value."""
    x: str
    y: str
    colour: Sequence[str]
    """The column that colours: the first of these with more than one value, and with few of them."""
    told: Sequence[str]
    """Columns that the tip of a point tells."""
    kept: Sequence[str] = ()
    """Columns that stay although they say the same of every job."""
    series: Sequence[str] = ()
    """Columns that a sweep varies; a line joins the jobs that differ in one of them alone."""
    joined: Sequence[int] = ()
    """Rows that a line joins on the axes that the page begins with."""
    faint: Sequence[int] = ()
    """Rows that are less certain than others."""
    best: Sequence[int] = ()
    """Rows that stand out."""
    texts: Mapping[str, str] = {}
    """Files to read next to it, by name."""

    def html(self) -> str:
        """Return the page."""
        rows = self.rows[:MOST_ROWS]
        names = list(dict.fromkeys(name for row in rows for name in row))
        varied = [name for name in names if len({row.get(name) for row in rows}) > 1]
        shown = [name for name in names if name in varied or name in (self.x, self.y, *self.kept)]
        told = [name for name in names if name not in shown and _said(rows[0], name)]
        same = [f"{_title(name)} {_text(rows[0][name])}".strip() for name in told]
        few = (name for name in self.colour if name in varied and len({row.get(name) for row in rows}) <= _MOST_COLOURS)
        left = len(self.rows) - len(rows)
        facts = [
            *self.facts,
            ", ".join(same),
            f"of {len(self.rows):,} the first {len(rows):,} are here" if left else "",
        ]
        table: list[Plain] = [[at, *(_cell(row.get(name)) for name in shown)] for at, row in enumerate(rows)]
        columns: list[Plain] = [{"name": name, "title": _title(name), "unit": _unit(name, rows)} for name in shown]
        data: dict[str, Plain] = {
            "facts": [encodable(fact) for fact in facts if fact],
            "columns": [{"name": "row", "title": "row", "unit": "number"}, *columns],
            "rows": table,
            **{"x": self.x, "y": self.y, "colour": next(few, "")},
            "told": [name for name in self.told if name in shown],
            "series": [name for name in self.series if name in shown],
            "joined": list(self.joined),
            "faint": list(self.faint),
            "best": list(self.best),
            "texts": [{"name": name, "text": encodable(text)} for name, text in self.texts.items()],
        }
        return points_page(encodable(self.title), data)


def _said(row: Mapping[str, Cell], name: str) -> bool:
    return row.get(name) not in (None, False, "")


def _title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    for ending in ("_bytes", "_s"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _text(value: Cell) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is True else str(value)


def _cell(value: Cell) -> Plain:
    return encodable(value) if isinstance(value, str) else value


def _unit(name: str, rows: Sequence[Mapping[str, Cell]]) -> str:
    """Return how the numbers of a column are written."""
    kinds = {type(row.get(name)) for row in rows} - {type(None)}
    if not kinds <= {int, float}:
        return "words"
    shares = ("mfu", "probability", "regret", "screen_error_most")
    return (
        "share" if name in shares else "s" if name.endswith("_s") else "bytes" if name.endswith("_bytes") else "number"
    )


def plan_page(plan: Plan | Plans, title: str, files: Mapping[str, str]) -> str:
    """Return the page of a plan, or of several, with the files of its layouts to run.

    Shown are the simulated layouts and the others that the screen kept: the fastest, and the fastest of those that need
    less memory.
    """
    cases = (plan,) if isinstance(plan, Plan) else plan.plans
    pareto = {each.identity for each in plan.pareto}
    best = {case.best[0].identity for case in cases}
    rows: list[dict[str, Cell]] = []
    front: list[int] = []
    chosen: list[int] = []
    for each in plan.shown:
        front += [len(rows)] if each.identity in pareto else []
        chosen += [len(rows)] if each.identity in best else []
        rows.append(_simulated_row(each, pareto=each.identity in pareto))
    seen = {each.identity for each in plan.shown}
    for case in cases:
        others = (each for each in case.estimated if (case.model, case.cluster, each.layout) not in seen)
        rows += [_row(case.model, case.cluster, each) for each in others]
    evaluated, feasible = (sum(getattr(case, name) for case in cases) for name in ("evaluated", "feasible"))
    told = (
        f"{evaluated:,} layouts were worked out, {feasible:,} fit into memory; here are {len(rows):,}, of which "
        f"{len(plan.shown):,} are simulated and the others, in pale, estimated"
    )
    page = Page(
        title=title,
        facts=[told, *(f"to run: {case.model} on {case.cluster}, {case.best[0].layout.text}" for case in cases)],
        rows=rows,
        x="peak_bytes",
        y="step_s",
        colour=_COLOURS_PLAN,
        told=("model", "cluster", "gpus", *_COMMON, "simulated", "mfu", "probability", "days", "cost"),
        kept=_COMMON,
        joined=front if isinstance(plan, Plan) else (),
        faint=range(len(plan.shown), len(rows)),
        best=chosen,
        texts=files,
    )
    return page.html()


def _simulated_row(choice: Choice, *, pareto: bool) -> dict[str, Cell]:
    run = choice.training
    return {
        **_row(choice.model, choice.cluster, choice),
        **{"simulated": True, "pareto": pareto},
        **{"tokens_per_second": choice.tokens_per_s, "mfu": choice.result.mfu, "probability": choice.probability},
        **{"regret": choice.regret, "tied": choice.tied},
        **({} if run is None else {"days": run.days, "gpu_hours": run.gpu_hours, "cost": run.cost}),
    }


def _row(model: str, cluster: str, each: Choice | Estimate) -> dict[str, Cell]:
    """Return what is said of every layout, simulated or not."""
    layout = each.layout
    fields = [name for name in COLUMNS if FIELDS[name].change != "recompute"]
    return {
        **{"model": model, "cluster": cluster, "layout": layout.text},
        **{"step_s": each.step_s, "peak_bytes": each.peak_bytes, "simulated": False, "pareto": False},
        **{name: getattr(layout, name) for name in fields},
        "etp": layout.etp if layout.experts else None,
        "recompute": layout.recomputed,
    }


def sweep_page(title: str, keys: Sequence[str], rows: Iterable[Mapping[str, Cell]]) -> str:
    """Return the page of a sweep: the step of every point over the key that varies most often."""
    decided = {key.rpartition(".")[2] for key in keys}
    found = [{name: value for name, value in row.items() if name not in (*decided, *_MADE_BY)} for row in rows]
    values = {key: {row.get(key) for row in found} for key in keys}
    numbers = [key for key in keys if all(isinstance(value, int | float) for value in values[key])]
    across = max(numbers or keys, key=lambda key: len(values[key]), default="point")
    ok = [at for at, row in enumerate(found) if row.get("status") == "ok"]
    fastest = sorted(ok, key=lambda at: float(found[at].get("step_s") or 0.0))[:1]
    page = Page(
        title=title,
        facts=[f"{counted(len(found), 'point')}, {len(ok):,} ok"],
        rows=found,
        x=across,
        y="step_s",
        colour=[key for key in keys if key != across],
        told=(*keys, *_TOLD_OF_POINTS),
        series=keys,
        best=fastest,
    )
    return page.html()
