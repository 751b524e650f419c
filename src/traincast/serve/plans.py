"""Plans: every layout as a point, the best ones in full, and why not another one."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from traincast import api
from traincast.errors import ConfigError, UnknownNameError
from traincast.serve.forecasts import NoteShown, note_shown, run_shown
from traincast.serve.shown import Shown
from traincast.serve.words import Value, command_of, number_or_text, said, typed, words_of

if TYPE_CHECKING:
    from traincast.planning.answer import Choice, Plan
    from traincast.planning.layout import Estimate, Layout
    from traincast.planning.several import Plans
    from traincast.serve.bench import Workbench


class PlanRecord(Struct, frozen=True, kw_only=True):
    """What is planned: a job whose layout is open where it says nothing, and how."""

    job: dict[str, Value]
    plan: dict[str, Value] = {}
    """Words of ``traincast plan``: ``space``, ``max_tp``, ``fix`` (``"tp=8 micro_batch=1,2"``), ``headroom``,
    ``tokens``, ``gpu_hour_price``, ``days``, ``budget``, ``rank_by``; ``models``, ``clusters``, ``gpus``, by commas."""


class WhyRecord(PlanRecord, frozen=True, kw_only=True):
    """A plan, and a layout of which is asked why it is not the best."""

    layout: dict[str, Value]
    """Fields of it, such as ``{"tp": 8, "pp": 1}``."""


class BestLayout(Struct, frozen=True, kw_only=True):
    """A layout that was simulated."""

    text: str
    job: dict[str, Value]
    """All of a job that is laid out so, as `/api/forecast` takes it."""
    step: Shown
    low: Shown | None
    high: Shown | None
    mfu: Shown | None
    memory: Shown
    usable: Shown
    best: Shown
    """Probability that it is the fastest."""
    regret: Shown
    lost_to: str
    tied: bool
    """Whether it cannot be told from the fastest."""
    chosen: bool
    """Whether it is the one to run."""
    pareto: bool
    risks: tuple[str, ...]
    run: tuple[tuple[str, str, str], ...]
    """Of the whole run, where its tokens are said: what it takes, how much, and what that counts on, a line each."""


class WhyNotShown(Struct, frozen=True, kw_only=True):
    """Why a layout is not the best."""

    asked: str
    verdict: str
    """``impossible``, ``too large``, ``slower``, or ``best``."""
    text: str
    change: str | None
    step: Shown | None
    layout: str | None


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """The layouts of a plan."""

    headline: str
    facts: tuple[str, ...]
    columns: dict[str, list[Any]]
    """Every layout that is worth a point, a list a column: fields of the layout, ``text``, ``step_s``, ``peak_bytes``,
    ``tokens_per_s``, ``mfu``, ``days``, ``cost``, ``energy_mwh``, and whether it is ``simulated``, ``pareto``, ``tied``
    and ``chosen``."""
    best: tuple[BestLayout, ...]
    evaluated: int
    feasible: int
    simulated: int
    ties: int
    sensitivities: tuple[dict[str, Any], ...] = ()
    refused: tuple[dict[str, Any], ...] = ()
    """Cases that have no layout, and why."""
    explained: tuple[WhyNotShown, ...] = ()
    assumptions: tuple[NoteShown, ...]
    warnings: tuple[NoteShown, ...]
    command: str


def why(asked: WhyRecord, bench: "Workbench") -> WhyNotShown:
    """Say why a layout of a plan is not the best."""
    from traincast.planning.answer import Plan

    words, job = plan_words(asked.plan), words_of(asked.job, bench.scratch)
    for name in (*_SEVERAL, *_GOALS, "explain"):
        words.pop(name, None)
    job.pop("allow_oom", None)
    layout = {name: _plain(typed(name, value)) for name, value in said(asked.layout)}
    found = bench.kept.get(_key(asked))
    if not isinstance(found, Plan):
        found = api.plan(engine=bench.engine, **job, **words)
        bench.keep(_key(asked), found)
    return why_shown(api.planning.why(found, layout, engine=bench.engine, **job, **words))


def _plain(value: Any) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value


def _key(asked: PlanRecord) -> bytes:
    return msgspec.json.encode(
        [sorted(dict(said(asked.job)).items()), sorted(dict(said(asked.plan)).items())], order="sorted"
    )


class Points(Struct, frozen=True, kw_only=True):
    """Layouts as they are found."""

    columns: dict[str, list[Any]] = field(default_factory=dict)


_MOST_POINTS, _POINTS_EVERY_S = 6_000, 0.15
"""Points that are told while layouts are estimated, and how often; a plan has many more layouts than anybody sees."""


class _Found:
    """Layouts as they are estimated, told now and then: the first at once, of very many some."""

    def __init__(self, bench: "Workbench") -> None:
        self._bench = bench
        self._waiting: list[Estimate] = []
        self._left, self._last = _MOST_POINTS, 0.0

    def take(self, estimates: "tuple[Estimate, ...]") -> None:
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


def _estimated(each: "Estimate") -> dict[str, Any]:
    """Return a layout that was estimated as a point."""
    figures = {"step_s": each.step_s, "peak_bytes": each.peak_bytes, "simulated": False}
    return {"text": each.layout.text} | _fields_of(each.layout) | figures


def _fields_of(layout: "Layout") -> dict[str, Any]:
    from traincast.planning.layout import COLUMNS

    return {name: _cell(getattr(layout, name)) for name in COLUMNS if hasattr(layout, name)}


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


_SEVERAL = ("models", "clusters", "gpus")
_GOALS = ("days", "budget", "rank_by")


def plan(asked: PlanRecord, bench: "Workbench") -> PlanAnswer:
    """Find the best layouts of a job that leaves its layout open, on one cluster or several."""
    words = plan_words(asked.plan)
    job = words_of(asked.job, bench.scratch)
    with bench.telling("planning"):
        found = _planned(job, words, bench)
    bench.keep(_key(asked), found)
    return plan_answer(asked, found)


def _planned(job: dict[str, Any], words: dict[str, Any], bench: "Workbench") -> "Plan | Plans":
    several = {name: words.pop(name) for name in (*_SEVERAL, *_GOALS) if name in words}
    cluster, recipe = job.pop("cluster", None), job.pop("recipe", None)
    job.pop("allow_oom", None)
    if not several:
        points = _Found(bench)
        found = api.plan(cluster=cluster, recipe=recipe, engine=bench.engine, estimated=points.take, **job, **words)
        points.tell()
        return found
    if "models" in several:
        job.pop("model", None)
    if "gpus" in several:
        job.pop("gpus", None)
    from traincast.api import Draft

    model = job.pop("model", None)
    draft = Draft(model=model, cluster=cluster, fields=job)
    return api.plans(draft, recipe=recipe, engine=bench.engine, **several, **words)


def plan_words(asked: Mapping[str, Value]) -> dict[str, Any]:
    """Return how a plan is made, as `traincast.plan` takes it.

    Raises
    ------
    ConfigError
        If a word is not known or cannot be read.
    """
    from traincast.api.planning import PLAN_WORDS

    known = (*PLAN_WORDS, *_SEVERAL, *_GOALS)
    found: dict[str, Any] = {}
    for name, value in said(asked):
        if name not in known:
            raise UnknownNameError("word of a plan", name, known)
        found[name] = _fixed(value) if name == "fix" else _listed(value) if name in _SEVERAL else number_or_text(value)
    if "gpus" in found:
        found["gpus"] = [int(each) if str(each).isdigit() else each for each in found["gpus"]]
    return found


def _listed(value: Value) -> list[str]:
    return [str(each).strip() for each in (value.split(",") if isinstance(value, str) else _several(value)) if each]


def _several(value: Value) -> Sequence[object]:
    return value if isinstance(value, list) else (value,)


def _fixed(value: Value) -> dict[str, Any]:
    """Return ``tp=8 micro_batch=1,2`` as the values of each field."""
    found: dict[str, Any] = {}
    for each in str(value).replace(";", " ").split():
        name, equals, values = each.partition("=")
        if not equals or not values:
            raise ConfigError(f"{each!r} is not FIELD=VALUE, such as tp=8 or micro_batch=1,2", "fix")
        found[name.replace("-", "_")] = tuple(number_or_text(one) for one in values.split(","))
    return found


def plan_answer(asked: PlanRecord, found: "Plan | Plans") -> PlanAnswer:
    """Return a plan, or several, as a page shows them."""
    from traincast.planning.answer import Plan

    plans = (found,) if isinstance(found, Plan) else found.plans
    first = found.best[0]
    kept = {each.identity for each in found.pareto}
    return PlanAnswer(
        headline=f"Run {first.layout.text}",
        facts=_facts(found),
        columns=_columns(plans, kept, first),
        best=tuple(_best(asked, each, first, kept) for each in found.shown),
        evaluated=sum(each.evaluated for each in plans),
        feasible=sum(each.feasible for each in plans),
        simulated=sum(each.simulated for each in plans),
        ties=plans[0].ties,
        sensitivities=tuple(_sensitivities(plans[0])) if len(plans) == 1 else (),
        refused=()
        if isinstance(found, Plan)
        else tuple(
            {"model": each.model, "cluster": each.cluster, "gpus": each.gpus, "reason": each.reason}
            for each in found.refused
        ),
        explained=tuple(why_shown(each) for one in plans for each in one.explained),
        assumptions=tuple(map(note_shown, found.assumptions)),
        warnings=tuple(map(note_shown, found.warnings)),
        command=_command(asked),
    )


def _command(asked: PlanRecord) -> str:
    return command_of({**asked.job, **{name: value for name, value in asked.plan.items() if name != "fix"}}, "plan")


def _facts(found: "Plan | Plans") -> tuple[str, ...]:
    """Return what the terminal report says of a plan below its headline."""
    from traincast.planning.answer import Plan
    from traincast.report.terminal.plan import plan_lines

    return tuple(line for line, _ in plan_lines(found)) if isinstance(found, Plan) else ()


def _sensitivities(found: "Plan") -> list[dict[str, Any]]:
    from traincast.units import format_time

    return [
        {"better": each.better, "saving": Shown(each.saving_s, format_time(each.saving_s)), "step_s": each.step_s}
        for each in found.sensitivities
    ]


def _columns(plans: Sequence["Plan"], kept: set[Any], first: "Choice") -> dict[str, list[Any]]:
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


def _row(plan: "Plan", layout: "Layout", choice: "Choice | None", kept: set[Any], first: "Choice") -> dict[str, Any]:
    row: dict[str, Any] = {"model": plan.model, "cluster": plan.cluster, "text": layout.text}
    row |= _fields_of(layout)
    row["simulated"] = choice is not None
    if choice is None:
        return row | {"pareto": False, "tied": False, "chosen": False}
    marks = {"pareto": choice.identity in kept, "tied": choice.tied, "chosen": choice.identity == first.identity}
    return row | _figures(choice) | marks


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _figures(choice: "Choice") -> dict[str, Any]:
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


def _rates(plan: "Plan", step_s: float, peak_bytes: float) -> dict[str, Any]:
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


def _best(asked: PlanRecord, each: "Choice", first: "Choice", kept: set[Any]) -> BestLayout:
    from traincast.report.terminal import layout as ui
    from traincast.report.terminal.plan import most_lost
    from traincast.units import format_share, format_size, format_time

    interval, mfu = each.result.interval, each.result.mfu
    return BestLayout(
        text=each.layout.text,
        job=laid_out(asked.job, each),
        step=Shown(each.step_s, format_time(each.step_s)),
        low=None if interval is None else Shown(interval.low_s, format_time(interval.low_s)),
        high=None if interval is None else Shown(interval.high_s, format_time(interval.high_s)),
        mfu=None if mfu is None else Shown(mfu, format_share(mfu)),
        memory=Shown(each.peak_bytes, format_size(each.peak_bytes)),
        usable=Shown(each.usable_bytes, format_size(each.usable_bytes)),
        best=Shown(each.probability, ui.percent(each.probability)),
        regret=Shown(each.regret, format_share(each.regret)),
        lost_to=most_lost(each),
        tied=each.tied,
        chosen=each.identity == first.identity,
        pareto=each.identity in kept,
        risks=each.risks,
        run=run_shown(each.training),
    )


def laid_out(job: Mapping[str, Value], choice: "Choice") -> dict[str, Value]:
    """Return a job with a planned layout, in words."""
    said = {name: _said(value) for name, value in choice.layout.request().items() if value is not None}
    own: dict[str, Value] = {"model": choice.model, "cluster": choice.cluster, "gpus": choice.layout.gpus}
    named = {name: value for name, value in own.items() if name == "gpus" or not job.get(name)}
    return {**job, **named, **said}


def _said(value: Any) -> Value:  # noqa: ANN401
    return list(value) if isinstance(value, tuple) else value


def why_shown(each: Any) -> WhyNotShown:  # noqa: ANN401
    """Return why a layout is not the best, as a page shows it."""
    from traincast.units import format_time

    return WhyNotShown(
        asked=each.asked,
        verdict=each.verdict,
        text=each.text,
        change=each.change,
        step=None if each.step_s is None else Shown(each.step_s, format_time(each.step_s)),
        layout=None if each.layout is None else each.layout.text,
    )
