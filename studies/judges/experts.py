"""What a plan reaches that is told only what is trained on what, against published recipes that their makers tuned.

A group is what ran on one machine: model, GPUs, batch, sequence and precision, over all releases of a table in a year.
Its recipe is the setting of its fastest run. A plan is asked the same question without the recipe's answer: of the job
it gets what is trained and in which software, of its layout and its switches nothing. Both are forecasts, so that what
is between them is what the plan did not find, or what it found and nobody tried.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from forecasts import timed_rows
from judges.board import Board, board_of
from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.errors import TraincastError
from traincast.job.frameworks import framework_names
from traincast.job.request import JobRequest
from traincast.planning.answer import Choice
from traincast.planning.options import PlanOptions
from traincast.planning.plan import plan
from traincast.simulation.forecast import forecast_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.step import Setting

NEWEST = ("megatron-bridge-perf-summary", "2026", "pretrain")
"""Source, year and task of the groups that are judged: those of the newest table of one vendor."""
EFFORTS = ("out-of-the-box", "usual", "best")
"""Levels of effort of a plan."""
LEVEL = "best"
"""The one that is judged: what an expert reaches."""
SAID = (
    *("model", "gpus", "seq_length", "global_batch", "precision", "fp8_recipe", "framework", "year"),
    *("task", "lora_rank", "lora_targets", "packed_length", "packed_lengths", "optimizer", "dropout"),
    *("mtp_layers", "vocab_multiple", "moe_routing", "expert_imbalance", "gpus_used_per_node"),
)
"""What of a job a plan is told: what is trained, on how many GPUs, in which numbers and by which software."""
WITHIN, AHEAD = 0.02, 0.05
"""Shares of the recipe's step by which a plan may be slower, and from which on its being faster needs a reason."""
_OF_RECIPES, _OF_RUNS = "plans, against forecasts of tuned recipes", "plans, against the fastest tuned run"
_ASKED = {"within": 90.0, "worst": 5.0}
_ASKED_OF_STEPS = {"median": 6.0, "p90": 15.0}


class Group(NamedTuple):
    """Tuned runs of one question."""

    source: str
    year: str
    task: str
    model: str
    gpu: str
    gpus: int
    batch: int
    sequence: int
    precision: str
    runs: tuple[MeasuredRun, ...]
    """The fastest first."""

    @property
    def best(self) -> MeasuredRun:
        """The fastest run, whose recipe is that of the group."""
        return self.runs[0]

    @property
    def measured_s(self) -> float:
        """Its step."""
        return self.best.measured_s or 0.0

    @property
    def name(self) -> str:
        """The question in a line."""
        task = "" if self.task == "pretrain" else f" {self.task}"
        where = f"{self.gpus} {self.gpu}, {self.batch} x {self.sequence}"
        return f"{self.source} {self.year}: {self.model}{task}, {where}, {self.precision}"

    @property
    def setting(self) -> Setting:
        """Where it ran."""
        return Setting(cluster=self.best.cluster, engine="kernel")


class Forecast(NamedTuple):
    """A job as it was forecast."""

    request: JobRequest
    result: Result
    done: JobStep

    @property
    def step_s(self) -> float:
        """Its step."""
        return self.result.iteration_time_s

    @property
    def peak_bytes(self) -> float:
        """Memory of the GPU that needs most."""
        return self.result.peak_bytes


class Reached(NamedTuple):
    """What a plan came to."""

    level: str
    choice: Choice | None
    reason: str = ""
    """Why there is none."""

    @property
    def step_s(self) -> float:
        """Its step; infinite without a layout."""
        return float("inf") if self.choice is None else self.choice.step_s


def boards() -> list[Board]:
    """Return the boards of plans: against forecasts of recipes, and against the fastest runs."""
    judged = groups_of(tuned_runs(), NEWEST)
    steps = [reached(group, LEVEL).step_s for group in judged]
    return boards_of(LEVEL, steps, [recipe_of(group) for group in judged], judged)


def boards_of(level: str, steps: Sequence[float], recipes: Sequence[Forecast], judged: Sequence[Group]) -> list[Board]:
    """Return both boards of what plans of one level reached."""
    return [against_recipes(level, steps, recipes), against_runs(level, steps, judged)]


@cache
def tuned_runs() -> tuple[MeasuredRun, ...]:
    """Return the published runs whose recipe's settings are known, and that were measured."""
    return tuple(run for run in timed_rows() if "basis" in run.cells)


def groups_of(runs: Iterable[MeasuredRun], like: Sequence[str] = ()) -> list[Group]:
    """Return the groups of runs whose recipes can be forecast, by name; `like` is how their keys begin."""
    found: dict[tuple[str | int, ...], list[MeasuredRun]] = {}
    for run in runs:
        if (key := _key(run))[: len(like)] == tuple(like) and _runs(run):
            found.setdefault(key, []).append(run)
    return [_group(key, each) for key, each in sorted(found.items(), key=lambda each: tuple(map(str, each[0])))]


def _key(run: MeasuredRun) -> tuple[str | int, ...]:
    request, groups = run.request, run.groups
    recipe = request.fp8_recipe if request.precision == "fp8" and request.fp8_recipe else ""
    precision = f"{request.precision or 'open'} {recipe}".strip()
    # Long sequences of some tables keep their tokens by smaller batches: they are questions of their own.
    numbers = (request.gpus, request.global_batch, request.seq_length)
    return groups.source, year_of(run), groups.task, groups.model, groups.gpu, *numbers, precision


def year_of(run: MeasuredRun) -> str:
    """Return the year of the release that ran; empty where its table does not say it."""
    found = re.search(r"\b20(2\d)\b|\b(2\d)\.(?:\d\d|x)", run.cells.get("framework", ""))
    return "" if found is None else f"20{found[1] or found[2]}"


def _runs(run: MeasuredRun) -> bool:
    try:
        job_of_run(run)
    except TraincastError:
        return False
    return True


def _group(key: tuple[str | int, ...], runs: Iterable[MeasuredRun]) -> Group:
    names = dict(zip(Group._fields, key, strict=False))
    return Group(**names, runs=tuple(sorted(runs, key=lambda run: run.measured_s or 0.0)))  # type: ignore[arg-type]


def asked(run: MeasuredRun) -> JobRequest:
    """Return what a plan is told of a run; all else is open."""
    told = {name: getattr(run.request, name) for name in SAID}
    return JobRequest(**{**told, "framework": of_release(str(run.request.framework), year_of(run))})


def of_release(framework: str, year: str) -> str:
    """Return the framework of a release: runs are described by the code whose factors they have, and their settings.

    That is the latest of its name up to the year of the release; itself where nothing says the year.
    """
    stem, _, own = framework.rpartition("-")
    years = [each.rpartition("-")[2] for each in framework_names() if each.rpartition("-")[0] == stem]
    return f"{stem}-{max((each for each in years if own <= each <= year), default=own)}" if stem else framework


def recipe_of(group: Group, run: MeasuredRun | None = None) -> Forecast:
    """Return the forecast of a group's recipe, or that of another of its runs, with all that is known of it."""
    job = job_of_run(run or group.best)
    result, done = forecast_step(job, group.setting, allow_oom=True)
    return Forecast((run or group.best).request, result, done)


def reached(group: Group, level: str) -> Reached:
    """Return what a plan of some effort chooses for a group."""
    try:
        made = plan(asked(group.best), group.setting, PlanOptions(**_effort(level)))
    except TraincastError as error:
        return Reached(level, None, str(error))
    return Reached(level, made.best[0])


def _effort(level: str) -> dict[str, Any]:
    return {"tuned": level} if "tuned" in PlanOptions.__struct_fields__ else {}


def against_recipes(level: str, steps: Sequence[float], recipes: Sequence[Forecast]) -> Board:
    """Return how many plans are at most `WITHIN` slower than the recipe, by how much the slowest, and the median."""
    ratio = np.array(steps) / [each.step_s for each in recipes]
    found = {
        "within": np.mean(ratio <= 1 + WITHIN),
        "worst": min(max(0.0, ratio.max() - 1), 9.99),
        "bias": np.median(ratio) - 1,
    }
    figures = {name: round(100 * float(value), 2) for name, value in found.items()}
    return Board(_OF_RECIPES, level, len(ratio), figures, _ASKED if level == LEVEL else {})


def against_runs(level: str, steps: Sequence[float], judged: Sequence[Group]) -> Board:
    """Return by how much the steps that plans promise are off the fastest that was measured."""
    pairs = [(step_s, group.measured_s) for step_s, group in zip(steps, judged, strict=True) if step_s < float("inf")]
    forecast, measured = zip(*pairs, strict=True) if pairs else ((), ())
    return board_of(_OF_RUNS, level, forecast, measured, (), **(_ASKED_OF_STEPS if level == LEVEL else {}))


def claims(steps: Sequence[float], recipes: Sequence[Forecast]) -> Iterator[int]:
    """Yield the numbers of groups in which a plan is faster than the recipe by more than `AHEAD`."""
    for number, (step_s, recipe) in enumerate(zip(steps, recipes, strict=True)):
        if step_s < recipe.step_s * (1 - AHEAD):
            yield number
