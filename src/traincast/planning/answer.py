"""The answer of a plan: the layouts to run, each with its forecast and what speaks for it."""

from collections.abc import Hashable, Mapping
from typing import Any

from msgspec import Struct

from traincast.analysis.summary import Advice, TrainingRun
from traincast.diagnostics import Note
from traincast.job.levels import BEST
from traincast.job.request import JobRequest
from traincast.planning.changes import Start
from traincast.planning.layout import Estimate, Layout
from traincast.planning.sensitivity import Sensitivity
from traincast.planning.tuning import Effort, Switched
from traincast.simulation.columns import Table, table_of
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.units import counted, format_time


class LayoutToRun(Struct, frozen=True, kw_only=True):
    """What other layouts are compared with."""

    layout: Layout
    step_s: float
    breakdown_s: Mapping[str, float]
    """Its parts."""


class Choice(Struct, frozen=True, kw_only=True):
    """A layout that was simulated."""

    model: str
    cluster: str
    layout: Layout
    result: Result
    """Its forecast."""
    tokens_per_step: int
    screened_s: float
    """Its step by the closed forms of the screen."""
    peak_bytes: float
    """Memory of the GPU that needs most."""
    usable_bytes: float
    """Memory that programs can use."""
    probability: float
    """That it is the fastest of those simulated, given how far off forecasts are."""
    regret: float
    """How much longer its step is than the fastest one's on average, as a share."""
    tied: bool
    """Whether it cannot be told from the fastest."""
    cautious_s: float
    """The step that errors of its own, which it does not share with the others, exceed in one of five cases."""
    risks: tuple[str, ...] = ()
    """What of it hardly any published run has, in words."""
    training: TrainingRun | None = None
    """A whole run with it, where its tokens are given."""
    doubts: Mapping[str, Mapping[Hashable, float]] = {}
    """What its forecast may be off by (`traincast.simulation.differences`); not in documents."""

    @property
    def step_s(self) -> float:
        """Seconds of its step."""
        return self.result.iteration_time_s

    @property
    def to_run(self) -> LayoutToRun:
        """What of it other layouts are compared with, where it is the one to run."""
        return LayoutToRun(layout=self.layout, step_s=self.step_s, breakdown_s=self.result.breakdown_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all GPUs train on in a second."""
        return self.tokens_per_step / self.step_s

    def per_token(self, name: str) -> float | None:
        """Return the ``cost`` or the ``energy_mwh`` of a token; None where no run was asked for or it is not known."""
        whole = None if self.training is None else getattr(self.training, name)
        return None if self.training is None or whole is None else float(whole / self.training.tokens)

    @property
    def identity(self) -> tuple[str, str, Layout]:
        """What tells it from every other layout."""
        return self.model, self.cluster, self.layout

    @property
    def limits(self) -> tuple[tuple[str, float], ...]:
        """What its step is spent on: parts with their shares, the largest first."""
        parts = self.result.breakdown_s
        shares = [(key, parts[key] / self.step_s) for key in BREAKDOWN_KEYS if parts[key] > 0]
        return tuple(sorted(shares, key=lambda each: -each[1]))


class Asked(Struct, frozen=True, kw_only=True):
    """What was asked for, as it can be asked for again."""

    request: JobRequest
    """Only what was fixed of its layout."""
    model: str
    """Name or file of the model."""
    cluster: str
    """Name or file of the cluster."""


class WhyNot(Struct, frozen=True, kw_only=True):
    """Why a layout that a user names is not the best."""

    asked: str
    """What was asked for."""
    verdict: str
    """``impossible``, ``too large``, ``slower``, or ``best``."""
    text: str
    layout: Layout | None = None
    """The best that has what was asked for."""
    step_s: float | None = None
    """Its simulated step, where it fits."""
    change: str | None = None
    """The single change of what was asked for that helps most."""


class Plan(Struct, frozen=True, kw_only=True):
    """The best layouts of a model on a cluster."""

    model: str
    cluster: str
    framework: str
    gpus: int
    seq_length: int
    global_batch: int
    space: str
    """How large the space was: ``default`` or ``full``."""
    tuned: str = BEST
    """How far software is tuned, of `traincast.job.levels.LEVELS`."""
    efforts: tuple[Effort, ...] = ()
    """What each level of effort reaches, the least first."""
    switched: tuple[Switched, ...] = ()
    """What of the framework's software the layout to run has switched on, the most saving first."""
    evaluated: int
    """Layouts whose step and memory were worked out."""
    feasible: int
    """Those of them that fit into memory."""
    screen_s: float
    """Seconds that took."""
    simulated: int
    """Layouts that were simulated."""
    ties: int
    """Those of them that cannot be told from the fastest, it included."""
    screen_error: float
    """Mean difference of screened and simulated steps, as a share."""
    screen_error_most: float
    """The largest one."""
    best: tuple[Choice, ...]
    """The layout to run, then the others by their simulated steps."""
    pareto: tuple[Choice, ...]
    """The simulated layouts that no other beats in both step and memory, the fastest first."""
    estimated: tuple[Estimate, ...] = ()
    """The fastest layouts by the screen, and the fastest of those that need less memory; not in documents."""
    explained: tuple[WhyNot, ...] = ()
    """Why not the layouts that were asked for."""
    start: Start | None = None
    """The job that one has, where the plan begins with one, and what changes of it save."""
    sensitivities: tuple[Sensitivity, ...] = ()
    """What better hardware would do for the layout to run, the most saving first."""
    advice: tuple[Advice, ...] | None = None
    """What else to change of the layout to run, in order; None: `traincast.planning.advice.advice_of_plan` tells."""
    asked: Asked
    assumptions: tuple[Note, ...]
    warnings: tuple[Note, ...]

    def __repr__(self) -> str:
        """Say what is best, in a line."""
        best = self.best[0]
        where = f"{self.model} on {self.gpus} GPUs of {self.cluster}"
        took = format_time(best.result.iteration_time_s)
        return f"<Plan: {best.layout.text} takes {took}, of {counted(self.evaluated, 'layout')} of {where}>"

    def table(self) -> Table:
        """Return the layouts of `shown` for data frames, one a row: ``polars.DataFrame(plan.table())``."""
        return table_of([_line(each) for each in self.shown])

    @property
    def shown(self) -> tuple[Choice, ...]:
        """The best layouts, then those of the Pareto set that are not among them."""
        return tuple({each.identity: each for each in (*self.best, *self.pareto)}.values())


def _line(choice: Choice) -> dict[str, Any]:
    """Return a layout as a row of a table."""
    run = choice.training
    return {
        **{"model": choice.model, "cluster": choice.cluster, "layout": choice.layout.text},
        **{each: getattr(choice.layout, each) for each in choice.layout.__struct_fields__},
        **{"step_s": choice.result.iteration_time_s, "mfu": choice.result.mfu, "peak_bytes": choice.peak_bytes},
        **{"probability": choice.probability, "regret": choice.regret, "tied": choice.tied},
        **({} if run is None else {"days": run.days, "gpu_hours": run.gpu_hours, "cost": run.cost}),
    }
