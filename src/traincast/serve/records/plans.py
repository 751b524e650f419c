"""What is planned, layouts as they are found, the plan, and why not another layout."""

from typing import Any

from msgspec import Struct, field

from traincast.serve.records.forecasts import NoteShown
from traincast.serve.records.values import Shown, Value


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


class Points(Struct, frozen=True, kw_only=True):
    """Layouts as they are found."""

    columns: dict[str, list[Any]] = field(default_factory=dict)


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


class CaseShown(Struct, frozen=True, kw_only=True):
    """The layout to run of a model on some GPUs of a cluster."""

    model: str
    cluster: str
    gpus: int
    layout: str
    step: Shown
    tokens_per_s: Shown
    memory: Shown
    days: Shown | None = None
    cost: Shown | None = None
    energy: Shown | None = None
    """In MWh, of the whole run."""
    behind: str
    """How far behind the first of its model, ``first`` of that itself."""
    tied: bool
    """Whether it is too close to the first to tell."""
    meets: bool | None = None
    """Whether it is within the days and the money that were given."""
    chance: str = ""
    """Of that."""


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
    cases: tuple[CaseShown, ...] = ()
    """Of several models, clusters or numbers of GPUs where each stands, the best first."""
    explained: tuple[WhyNotShown, ...] = ()
    assumptions: tuple[NoteShown, ...]
    warnings: tuple[NoteShown, ...]
    command: str
