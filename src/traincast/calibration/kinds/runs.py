"""Training runs, against full simulations of their jobs: their steps, and the memory that they report.

A run's memory may be what PyTorch's allocator has given out, what it holds, or what the driver shows (``memory_kind``).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from traincast.calibration.kind import (
    KINDS,
    FloatArray,
    Grouping,
    Labels,
    MeasurementKind,
    Predictions,
    Ratios,
    Request,
)
from traincast.calibration.run_factors import Forecast, forecast_runs, without_each
from traincast.calibration.run_jobs import SHAPE_COLUMNS
from traincast.calibration.run_memory import RunMemory, memory_of_run
from traincast.calibration.runs import GROUPINGS as LABELS
from traincast.calibration.runs import (
    HARD,
    MeasuredRun,
    assumed_framework,
    assumed_frameworks,
    holds_memory,
    holds_steps,
    is_fitted,
    precision_class,
    read_runs,
)
from traincast.calibration.tables import MeasurementTable, Skipped
from traincast.diagnostics import Note
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable, factors_on, shipped_factors
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.job.parallel import DEGREES
from traincast.units import format_share

BOARD = "board"
"""Grouping by what the accuracy page shows: pretraining runs with a full layout (``dense BF16/FP16`` ... ``MoE``),
those without, adapters, and of sweeps over layouts the fastest repeats (``best``) and all others."""
FIT = "fit"
"""Grouping by what the shipped factors know of a run: fitted to it, not fitted to its kind, or too far off (`HARD`)."""
GROUPINGS = (BOARD, FIT, "moe", "precision", "gpu", "chip", "framework", "source", "task", "layout")
LEAVES_OUT = ("family", "source", "chip", "source+chip", "framework", "model")
"""What can be left out of the fit; of two, rows that share both."""
MEMORY_GROUPINGS = ("source", "gpu", "model", "framework")
ONE_DEVIATION = 0.68
"""Share of a normal distribution within one standard deviation."""
_OUTCOMES = {"ok": "ran", "crashed": "crashed"}


def predict_steps(table: MeasurementTable, request: Request) -> Predictions:
    """Return runs with the forecasts of their steps, in seconds; those without one are skipped with their reason.

    The cluster of the request is that of every row; else each row's own, by its GPU. It can leave out groups by
    `LEAVES_OUT`: the factors are then fitted again without each of them in turn.
    """
    runs, skipped = read_runs(table, request.cluster)
    rows = [run for run in runs if run.measured_s is not None]
    shipped, tell = shipped_factors(), request.progress

    def forecast(of: Sequence[MeasuredRun], by: Sequence[FactorTable]) -> list[Forecast]:
        return forecast_runs(of, by, None if tell is None else lambda count: tell(count, len(of)))

    known = request.kept if isinstance(request.kept, list) else None
    forecasts = forecast(rows, [factors_on(run.cluster) for run in rows]) if known is None else [*known]
    if request.leave_out is not None:
        tables = without_each(rows, forecasts, shipped, request.leave_out)
        changed = [index for index, each in enumerate(tables) if each is not shipped]
        again = forecast([rows[index] for index in changed], [tables[index] for index in changed])
        for index, each in zip(changed, again, strict=True):
            forecasts[index] = each
    return step_predictions(table, rows, forecasts, skipped)


def step_predictions(
    table: MeasurementTable, rows: Sequence[MeasuredRun], forecasts: list[Forecast], skipped: Sequence[Skipped]
) -> Predictions:
    """Return the predictions that forecasts of a table's runs make."""
    predicted = np.array([np.nan if each.step_s is None else each.step_s for each in forecasts], np.float64)
    reasons = [Skipped(run.id, each.reason) for run, each in zip(rows, forecasts, strict=True) if each.step_s is None]
    labels = labels_of(rows)
    details: dict[str, Labels] = {
        **{name: labels[name] for name in (BOARD, "source", "framework")},
        "framework_assumed": tuple("framework not known" if assumed_framework(run) else None for run in rows),
        **{name: labels[name] for name in ("model", "gpu", "precision")},
    }
    for name in ("gpus", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch", "seq_length", "recompute"):
        details[name] = tuple(getattr(run.request, name) for run in rows)
    return Predictions(
        ids=tuple(run.id for run in rows),
        measured=np.array([run.measured_s for run in rows], np.float64),
        predicted=predicted,
        details=details,
        groupings=tuple(Grouping.from_labels(name, labels[name]) for name in (*GROUPINGS, "family")),
        skipped=(*skipped, *reasons),
        rows=table.size,
        notes=assumed_frameworks(rows),
        inside=np.array([each.holds(run.measured_s) for run, each in zip(rows, forecasts, strict=True)], np.bool_),
        ratios=tuple(_ratios(rows, predicted)),
        kept=forecasts,
    )


def labels_of(runs: Sequence[MeasuredRun]) -> dict[str, tuple[str, ...]]:
    """Return the group of each run in each grouping of runs and in `BOARD`."""
    best = {run.id for run in fastest_repeats(runs)}
    labels = {name: tuple(run.groups.named(name) for run in runs) for name in LABELS}
    return labels | {BOARD: tuple(_board(run, best) for run in runs), FIT: tuple(map(_part_of_fit, runs))}


def fastest_repeats(runs: Iterable[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    """Return the fastest of the runs that are repeats of one layout (column ``repeat_of``); others are left out."""
    best: dict[str, tuple[float, MeasuredRun]] = {}
    for run in runs:
        name = run.cells.get("repeat_of")
        if name and run.measured_s is not None and (name not in best or run.measured_s < best[name][0]):
            best[name] = run.measured_s, run
    return tuple(run for _, run in best.values())


def _part_of_fit(run: MeasuredRun) -> str:
    if is_fitted(run):
        return "fitted to"
    return "too far off" if HARD in run.cells else "kind not fitted"


def _board(run: MeasuredRun, best: set[str]) -> str:
    if "sweep" in run.cells:
        return "best" if run.id in best else "others"
    if run.request.model.blocks:
        return "hybrids"
    if not run.full_layout:
        return "layout not full" if run.groups.task == "pretrain" else run.groups.task
    if run.groups.moe == "moe":
        return "MoE"
    precision = run.groups.precision
    return f"dense {'BF16/FP16' if precision in ('bf16', 'fp16') else precision.upper()}"


_SAME = (
    *("source", "source_url_or_repo_path", "model", *SHAPE_COLUMNS, "seq_len", "micro_batch", "gpu", "gpus_per_node"),
    *(name for name in DEGREES if name != "dp"),
    *("sequence_parallel", "recompute", "framework", "interconnect", "x_task"),
)
"""Columns that both runs of a pair share; an empty one is equal to an empty one."""


def weak_scaling_pairs(runs: Iterable[MeasuredRun]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Return each run with a step after the smallest that is alike but for GPUs and batch, at equal batch per GPU."""
    pairs = []
    # The kind of sharding without its group, which grows with the GPUs.
    kept = ((run, run.request, _sharding(run).rstrip("0123456789-()")) for run in runs)
    for alike in _alike(
        (run, (run.cells.get("precision"), sharding, job.global_batch / job.gpus)) for run, job, sharding in kept
    ):
        first, *others = sorted(alike, key=lambda run: (run.request.gpus, run.id))
        # Runs of one size are repeats: one of them stands for all.
        sizes = {run.request.gpus: run for run in reversed(others)}
        pairs += [(first, run) for gpus, run in sorted(sizes.items()) if gpus > first.request.gpus]
    return pairs


def precision_pairs(runs: Iterable[MeasuredRun]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Return each fp8 run with a step after the bf16 run that is alike but for the precision."""
    pairs = []
    for alike in _alike((run, (run.request.gpus, run.request.global_batch, _sharding(run))) for run in runs):
        by_class: dict[str, MeasuredRun] = {}
        for run in sorted(alike, key=lambda run: run.id):
            by_class.setdefault(precision_class(run.request.precision), run)
        if {"bf16", "fp8"} <= set(by_class):
            pairs.append((by_class["bf16"], by_class["fp8"]))
    return pairs


def _sharding(run: MeasuredRun) -> str:
    return run.cells.get("zero_or_fsdp", "")


def _alike(runs: Iterable[tuple[MeasuredRun, tuple[object, ...]]]) -> list[list[MeasuredRun]]:
    """Return the runs with a step that share `_SAME` and what stands next to them, where there are several."""
    found: defaultdict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
    for run, further in runs:
        if run.measured_s is not None:
            found[(*map(run.cells.get, _SAME), *further)].append(run)
    return [alike for alike in found.values() if len(alike) > 1]


def _ratios(rows: Sequence[MeasuredRun], predicted: FloatArray) -> Iterator[Ratios]:
    """Yield how well ratios of like runs are forecast."""
    seen = [run for run in rows if is_fitted(run)]
    step_s = {run.id: each for run, each in zip(rows, predicted.tolist(), strict=True)}
    for name, pairs in (("weak scaling", weak_scaling_pairs(seen)), ("fp8 over bf16", precision_pairs(seen))):
        if pairs:
            measured = [(second.measured_s or np.nan) / (first.measured_s or np.nan) for first, second in pairs]
            forecast = [step_s[second.id] / step_s[first.id] for first, second in pairs]
            yield Ratios(name, np.array(measured, np.float64), np.array(forecast, np.float64))


def predict_memory(table: MeasurementTable, request: Request) -> Predictions:
    """Return the memory of runs that print it, in bytes, and how many layouts are rightly called infeasible.

    Runs without memory are skipped, the counts of feasible ones are notes. Nothing can be left out: the model has no
    constant that is fitted to these runs.
    """
    runs, unread = read_runs(table, request.cluster)
    skipped = list(unread)
    kept: list[tuple[MeasuredRun, RunMemory]] = []
    judged: dict[str, list[RunMemory]] = {}
    for run in runs:
        if run.peak_bytes is None and run.outcome == "ok":
            skipped.append(Skipped(run.id, "its memory is not printed"))
            continue
        try:
            found = memory_of_run(run)
        except TraincastError as error:
            skipped.append(Skipped(run.id, str(error)))
            continue
        judged.setdefault(run.outcome, []).append(found)
        if run.peak_bytes is None:
            skipped.append(Skipped(run.id, f"it did not run; the model says it {'fits' if found.fits else 'cannot'}"))
        elif found.stage is None:
            skipped.append(Skipped(run.id, found.reason))
        else:
            kept.append((run, found))
    labels = {name: tuple(run.groups.named(name) for run, _ in kept) for name in MEMORY_GROUPINGS}
    details: dict[str, Labels] = dict(labels)
    details["meaning"] = tuple(found.meaning for _, found in kept)
    for name in ("parameters", "gradients", "optimizer", "activations", "other"):
        details[f"{name}_bytes"] = tuple(getattr(found.stage, name) for _, found in kept)
    measured = np.array([run.peak_bytes for run, _ in kept], np.float64)
    predicted = np.array([found.peak_bytes for _, found in kept], np.float64)
    notes = [_verdicts(outcome, found) for outcome, found in sorted(judged.items())]
    if kept:
        # How far the model is off: the deviation that `traincast.estimate.memory.fits` takes.
        within = format_share(float(np.quantile(np.abs(np.log(measured / predicted)), ONE_DEVIATION)))
        what = f"{within} (logarithm of measured over predicted memory)"
        notes.append(Note("spread", f"{format_share(ONE_DEVIATION, 0)} of the runs lie within {what}"))
    return Predictions(
        ids=tuple(run.id for run, _ in kept),
        measured=measured,
        predicted=predicted,
        details=details,
        groupings=tuple(Grouping.from_labels(name, each) for name, each in labels.items()),
        skipped=tuple(skipped),
        rows=table.size,
        notes=(*notes, *assumed_frameworks([run for run, _ in kept])),
    )


def _verdicts(outcome: str, found: list[RunMemory]) -> Note:
    """Say how many runs of an outcome the model calls infeasible, and how many a forecast would refuse."""
    called, refused = sum(not each.fits for each in found), sum(each.refused for each in found)
    shares = [format_share(count / len(found)) for count in (called, refused)]
    return Note(
        f"infeasible-{outcome}",
        f"of {len(found)} runs that {_OUTCOMES[outcome]}, {called} are called infeasible ({shares[0]}); "
        f"{refused} are refused ({shares[1]}): their chance of not fitting is above "
        f"{format_share(REFUSED_ABOVE, 0)}",
    )


KIND = KINDS.register("training-runs")(
    MeasurementKind(
        name="training-runs",
        title="steps of published training runs",
        quantity="step_s",
        fits=holds_steps,
        predict=predict_steps,
        by=(*GROUPINGS, "family"),
        leaves_out=LEAVES_OUT,
        shown=(BOARD, FIT),
        counted_once="source",
        worst_by="family",
    )
)
KINDS.register("memory-of-runs")(
    MeasurementKind(
        name="memory-of-runs",
        title="memory of published training runs",
        quantity="peak_bytes",
        # Files that have steps too are of the kind above; `validate` takes this one by its name.
        fits=lambda columns: holds_memory(columns) and not holds_steps(columns),
        predict=predict_memory,
        by=MEMORY_GROUPINGS,
    )
)
