"""Whether forecasts choose the right layout: measured runs that differ in nothing else, told apart by their steps.

A group is all runs of one source that share model, GPU, GPU count, sequence, global batch and precision. Of each of its
layouts there is a forecast and the mean of what its repeats measured, without what sets sessions apart where rows name
theirs (`_paces`). The layout whose forecast is the shortest is the
choice; its regret is how much longer it was measured than the best of the group. What a plan would not run cannot be
chosen, whether it ran or not: layouts that do not fit by the memory model, where an allocator frees memory and maps it
again in every microbatch if they run at all, and tensor parallelism over nodes.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from os import PathLike
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.columns import read_measurements
from traincast.calibration.kind import ClusterLike, FloatArray
from traincast.calibration.run_factors import Forecast, forecast_runs
from traincast.calibration.run_memory import memory_of_run
from traincast.calibration.runs import HARD, MeasuredRun, precision_class, read_runs
from traincast.calibration.tables import MeasurementTable, Row, Skipped
from traincast.calibration.validate import spearman
from traincast.errors import CalibrationError, FormatError, TraincastError
from traincast.estimate.factors import factors_on
from traincast.files import read_bytes
from traincast.job.fields import FIELDS, fields
from traincast.job.request import JOB_FIELDS
from traincast.units import counted, format_share

MANY = 10
"""Layouts from which the order within a group is judged, and not only its choice."""


class RankedLayout(Struct, frozen=True, kw_only=True):
    """One layout of a group."""

    name: str
    """What of it differs within its group: ``tp 4, pp 2``."""
    ids: tuple[str, ...]
    """Its repeats."""
    measured_s: float | None
    """Mean of their steps at the mean pace of their sessions; None where none of them ran."""
    predicted_s: float | None
    """Forecast; None where there is none."""
    refused: bool
    """Whether the memory model says that it cannot run."""
    planned: bool
    """Whether a plan would run it: it fits, taking the memory model at its word, with tensor parallelism in a node."""


class RankedGroup(Struct, frozen=True, kw_only=True):
    """Layouts that are each other's alternatives."""

    source: str
    name: str
    """What they share: model, GPUs, batch."""
    layouts: tuple[RankedLayout, ...]
    """The shortest forecast first, those without one last."""
    chosen: RankedLayout
    """The first that ran of those that a plan would run, or where there is none of those that are not refused."""
    best: RankedLayout
    """The shortest measured one."""
    crashed_first: int
    """Layouts that would have been chosen before it and did not run."""
    spearman: float | None
    """Rank correlation of forecasts and measurements; None below `MANY` layouts that ran."""
    ceiling: float | None
    """What the noise of repeats lets a perfect forecast reach; None where nothing is repeated."""

    @property
    def regret(self) -> float:
        """How much longer the choice took than the best, as a fraction of the best."""
        return _measured(self.chosen) / _measured(self.best) - 1.0

    @property
    def random_regret(self) -> float:
        """Mean regret of a choice at random among the layouts that forecasts chose among and that ran."""
        ran = [each.measured_s for each in _open_to_choice(self.layouts) if each.measured_s is not None]
        return float(np.mean(ran)) / _measured(self.best) - 1.0


class RankingFigures(Struct, frozen=True, kw_only=True):
    """Figures over some groups; None where there is nothing to count."""

    source: str
    groups: int
    mean_regret: float
    random_regret: float
    """Mean regret of choosing at random."""
    p90_regret: float
    worst_regret: float
    crashed_choices: int
    """Groups whose first choice did not run."""
    large_groups: int
    """Groups with `MANY` layouts and more."""
    spearman: float | None
    """Mean over these."""
    ceiling: float | None


class Ranking(Struct, frozen=True, kw_only=True):
    """How well forecasts choose among the layouts of a table of runs."""

    path: str
    total: RankingFigures
    """Over the groups of all sources."""
    sources: tuple[RankingFigures, ...]
    groups: tuple[RankedGroup, ...]
    """The largest regret first."""
    skipped: tuple[Skipped, ...]
    left_out: int
    """Rows that were left out because they were asked to be."""
    sessions: int
    """Sessions whose pace was taken out of what layouts took."""

    def __repr__(self) -> str:
        """Say how good the choices are, in a line."""
        groups = counted(self.total.groups, "group")
        return f"<Ranking: mean regret {format_share(self.total.mean_regret)} over {groups}>"


def rank_layouts(
    path: str | PathLike[str],
    cluster: ClusterLike | None = None,
    *,
    leave_out: Path | None = None,
    recipes: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Forecast every run of a table and say how good the choice by forecast is in each group of alternatives.

    Parameters
    ----------
    path : path
        A table of training runs (docs/data-files.md).
    cluster, progress
        As of `traincast.calibration.kind.Request`.
    leave_out : path, optional
        File of the ids of rows that say nothing about layouts, one a line; ``#`` begins a comment.
    recipes : path, optional
        As of `traincast.calibration.validate.validate`.

    Raises
    ------
    FormatError
        If a file cannot be read, or an id to leave out is in no row.
    CalibrationError
        If no two rows are alternatives.
    """
    table = read_measurements(Path(path), recipes)
    table, left_out = _without(table, leave_out)
    read, skipped = read_runs(table, cluster)
    # What makes them slow stands in no column, so they are not repeats of what has the same columns.
    runs = [run for run in read if HARD not in run.cells]
    skipped += tuple(Skipped(run.id, run.cells[HARD]) for run in read if HARD in run.cells)
    groups = {key: found for key, found in _alternatives(runs).items() if len(found) > 1}
    if not groups:
        raise CalibrationError("no two rows differ in their layout alone: nothing can be ranked", rows=0, needed_rows=2)
    each_once = [repeats[0] for found in groups.values() for repeats in found.values()]
    tell = None if progress is None else lambda count: progress(count, len(each_once))
    forecasts = forecast_runs(each_once, [factors_on(run.cluster) for run in each_once], tell)
    of_run = {run.id: forecast for run, forecast in zip(each_once, forecasts, strict=True)}
    paces = _paces(groups.values())
    noise = _noise_by_source(groups.values(), paces)
    ranked = [group for found in groups.values() if (group := _ranked(found, of_run, noise, paces)) is not None]
    if not ranked:
        raise CalibrationError("no group has two layouts that ran and can be forecast", rows=0, needed_rows=2)
    sources = sorted({group.source for group in ranked})
    return Ranking(
        path=table.path,
        total=_figures("all", ranked),
        sources=tuple(_figures(name, [group for group in ranked if group.source == name]) for name in sources),
        groups=tuple(sorted(ranked, key=lambda group: -group.regret)),
        skipped=(*skipped, *(Skipped(run.id, of_run[run.id].reason) for run in each_once if of_run[run.id].reason)),
        left_out=left_out,
        sessions=_told_apart(paces),
    )


def _without(table: MeasurementTable, path: Path | None) -> tuple[MeasurementTable, int]:
    if path is None:
        return table, 0
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    listed = [line.partition("#")[0].strip() for line in lines]
    known = {row.id for row in table.rows}
    for line, name in enumerate(listed, 1):
        if name and name not in known:
            raise FormatError(f"leaves out {name}, and {table.path} has no row of that id", str(path), line)
    kept: tuple[Row, ...] = tuple(row for row in table.rows if row.id not in set(listed))
    return replace(table, rows=kept), len(table.rows) - len(kept)


_Layout = tuple[tuple[str, object], ...]
"""What a run says of its layout: names and values."""
_Layouts = dict[_Layout, list[MeasuredRun]]
"""Runs by their layouts."""
_TRAINED = ("gpus", "seq_length", "global_batch", *(each.name for each in fields(group="finetuning")))
"""Of a job, what alternatives share in addition to their model, their GPU and the kind of their precision."""
_OF_LAYOUT = tuple(name for name in JOB_FIELDS if FIELDS[name].group != "run" and name not in (*_TRAINED, "precision"))
"""What they may differ in."""


def _alternatives(runs: Sequence[MeasuredRun]) -> dict[tuple[object, ...], _Layouts]:
    """Return runs by what alternatives share, then by layout; runs of one layout are repeats."""
    found: defaultdict[tuple[object, ...], _Layouts] = defaultdict(dict)
    for run in runs:
        job = run.request
        shared = (
            *(run.groups.source, replace(job.model, name="", source=""), run.cluster.gpu.name),
            *(getattr(job, name) for name in _TRAINED),
            precision_class(job.precision),
        )
        found[shared].setdefault(_layout(run), []).append(run)
    return found


def _layout(run: MeasuredRun) -> _Layout:
    return (*((name, getattr(run.request, name)) for name in _OF_LAYOUT), ("stage layers", run.stage_layers))


def _ranked(
    layouts: _Layouts, of_run: Mapping[str, Forecast], noise: Mapping[str, float], paces: "_Paces"
) -> RankedGroup | None:
    """Return a group in the order of its forecasts; None where fewer than two of its layouts ran and are forecast."""
    differing = _differing(list(layouts))
    found = [_ranked_layout(key, repeats, of_run, differing, paces) for key, repeats in layouts.items()]
    found.sort(key=lambda each: (each.predicted_s is None, each.predicted_s or 0.0))
    ran = [each for each in found if each.measured_s is not None and each.predicted_s is not None]
    open_to_choice = _open_to_choice(found)
    chosen = next((each for each in open_to_choice if each.measured_s is not None), None)
    if len(ran) < 2 or chosen is None:
        return None
    run = next(iter(layouts.values()))[0]
    job = run.request
    many = len(ran) >= MANY
    return RankedGroup(
        source=run.groups.source,
        name=f"{run.groups.model}, {job.gpus} x {run.cluster.gpu.name}, batch {job.global_batch}",
        layouts=tuple(found),
        chosen=chosen,
        best=min((each for each in found if each.measured_s is not None), key=_measured),
        crashed_first=open_to_choice.index(chosen),
        spearman=spearman(_column(ran, "predicted_s"), _column(ran, "measured_s")) if many else None,
        ceiling=_ceiling(ran, noise.get(run.groups.source)) if many else None,
    )


def _open_to_choice(layouts: Sequence[RankedLayout]) -> list[RankedLayout]:
    """Return what a plan would run; all that is not refused where none of that ran."""
    forecast = [each for each in layouts if each.predicted_s is not None]
    planned = [each for each in forecast if each.planned]
    if any(each.measured_s is not None for each in planned):
        return planned
    return [each for each in forecast if not each.refused]


def _ranked_layout(
    layout: _Layout,
    repeats: Sequence[MeasuredRun],
    of_run: Mapping[str, Forecast],
    differing: set[str],
    paces: "_Paces",
) -> RankedLayout:
    steps = _steps(repeats, paces)
    run = repeats[0]
    try:
        memory = memory_of_run(run)
        fits, refused = memory.fits, memory.refused
    except TraincastError:
        fits, refused = False, True
    told = [(name, value) for name, value in layout if name in differing]
    return RankedLayout(
        name=", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told if value is not None) or "as it is",
        ids=tuple(run.id for run in repeats),
        measured_s=float(np.mean(steps)) if len(steps) else None,
        predicted_s=of_run[repeats[0].id].step_s,
        refused=refused,
        planned=fits and (run.request.tp or 1) <= run.cluster.gpus_per_node,
    )


def _differing(layouts: Sequence[_Layout]) -> set[str]:
    """Return the names of what is not the same in all layouts."""
    return {pairs[0][0] for pairs in zip(*layouts, strict=True) if len(set(pairs)) > 1}


def _measured(layout: RankedLayout) -> float:
    return layout.measured_s if layout.measured_s is not None else float("inf")


def _column(layouts: Sequence[RankedLayout], name: str) -> FloatArray:
    return np.array([getattr(each, name) for each in layouts], np.float64)


_MEDIAN_DIFFERENCE = 0.6745 * math.sqrt(2)
"""Median absolute difference of two normal values of deviation 1."""
_Paces = dict[tuple[str, str], float]
"""Logarithm of how much longer than on average the same layouts took in a session, by source and session."""


def _session(run: MeasuredRun) -> tuple[str, str] | None:
    name = run.cells.get("session")
    return (run.groups.source, name) if name else None


def _paces(groups: Collection[_Layouts]) -> _Paces:
    """Return how the sessions of each source differ, by the layouts that ran in several of them.

    Steps are a layout's time by a session's pace; paces are the least squares of the logarithms, each layout apart, and
    average to none among sessions that layouts connect. A session that shares no layout with others keeps its times:
    its pace cannot be told from its layouts'. Means of repeats would otherwise compare sessions where layouts should be
    (the additive model of unbalanced two-way data: Searle, Linear Models, 1971, chapter 7).
    """
    ran = [
        [run for run in each if run.measured_s is not None and _session(run)] for of in groups for each in of.values()
    ]
    sessions = sorted({name for runs in ran for run in runs if (name := _session(run))})
    if not sessions:
        return {}
    design, logs = [], []
    for runs in filter(None, ran):
        of_run = np.array([[name == _session(run) for name in sessions] for run in runs], np.float64)
        of_runs = np.log(_steps(runs, {}))
        design.append(of_run - of_run.mean(axis=0))
        logs.append(of_runs - of_runs.mean())
    # The solution of least norm is 0 for what the data leave open.
    pace = np.linalg.lstsq(np.concatenate(design), np.concatenate(logs), rcond=1e-9)[0]
    return {name: pace if abs(pace) > 1e-9 else 0.0 for name, pace in zip(sessions, pace.tolist(), strict=True)}


def _told_apart(paces: _Paces) -> int:
    return sum(pace != 0.0 for pace in paces.values())


def _steps(runs: Sequence[MeasuredRun], paces: _Paces) -> FloatArray:
    """Return the steps of those that ran, at the mean pace of their sessions."""
    ran = [(run.measured_s, _session(run)) for run in runs if run.measured_s is not None]
    return np.array([step_s * math.exp(-paces.get(name, 0.0) if name else 0.0) for step_s, name in ran], np.float64)


def _noise_by_source(groups: Collection[_Layouts], paces: _Paces) -> dict[str, float]:
    """Return the variance of the logarithm of a step between repeats of a layout, by source.

    It is that of a normal distribution with the median absolute difference of two repeats that was found, so that a few
    runs that took many times as long do not speak for the others (the scale of differences of Rousseeuw and Croux,
    1993, with the median for their quartile: pairs of repeats are few).
    """
    differences: defaultdict[str, list[float]] = defaultdict(list)
    for layouts in groups:
        for repeats in layouts.values():
            logs = np.log(_steps(repeats, paces))
            differences[repeats[0].groups.source] += [abs(a - b) for a, b in combinations(logs.tolist(), 2)]
    return {
        source: (float(np.median(found)) / _MEDIAN_DIFFERENCE) ** 2 for source, found in differences.items() if found
    }


def _ceiling(layouts: Sequence[RankedLayout], noise: float | None) -> float | None:
    """Return the correlation that a perfect forecast has with means of noisy repeats: the root of their reliability.

    Reliability is the share of the variance that is not noise (Spearman 1904, The proof and measurement of association
    between two things).
    """
    if noise is None:
        return None
    variance = float(np.var(np.log(_column(layouts, "measured_s")), ddof=1))
    of_means = noise * float(np.mean([1.0 / len(each.ids) for each in layouts]))
    return float(np.sqrt(max(0.0, 1.0 - of_means / variance))) if variance else 0.0


def _figures(source: str, groups: Sequence[RankedGroup]) -> RankingFigures:
    regrets = np.array([group.regret for group in groups])
    orders = [group.spearman for group in groups if group.spearman is not None]
    ceilings = [group.ceiling for group in groups if group.ceiling is not None]
    return RankingFigures(
        source=source,
        groups=len(groups),
        mean_regret=float(regrets.mean()),
        random_regret=float(np.mean([group.random_regret for group in groups])),
        p90_regret=float(np.quantile(regrets, 0.9)),
        worst_regret=float(regrets.max()),
        crashed_choices=sum(group.crashed_first > 0 for group in groups),
        large_groups=len(orders),
        spearman=float(np.mean(orders)) if orders else None,
        ceiling=float(np.mean(ceilings)) if ceilings else None,
    )
