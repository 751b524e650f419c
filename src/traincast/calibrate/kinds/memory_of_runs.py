"""The memory that training runs report, against the memory model.

A run's memory may be what PyTorch's allocator has given out, what it holds, or what the driver shows
(``memory_kind``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.calibrate.contract import KINDS, FloatArray, Grouping, Kind, Labels, Predictions, Request
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.runs.rows import assumed_frameworks, has_steps, is_runs_table, read_runs
from traincast.calibrate.runs.run import RunRow, job_of_run
from traincast.calibrate.runs.schema import common_columns
from traincast.calibrate.tables import Table
from traincast.diagnostics import Note
from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory import StageMemory, fits, stage_memory
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.schedules.plan import SCHEDULES
from traincast.units import format_share

ONE_DEVIATION = 0.68
"""Share of a normal distribution within one standard deviation."""

GROUPINGS = ("source", "gpu", "model", "framework")


@dataclass(frozen=True, slots=True)
class RunMemory:
    """What is predicted of one run.

    Parameters
    ----------
    stage : StageMemory or None
        Of the stage that is printed; None where the layout cannot be run at all.
    meaning : str
        ``allocated``, ``reserved`` or ``device``.
    fits : bool
        Whether every stage fits, taking the memory model at its word.
    refused : bool
        Whether a forecast would refuse it: it cannot be run, or fitting is very unlikely.
    reason : str
        Why it cannot be run, or what it lacks.
    """

    stage: StageMemory | None
    meaning: str
    fits: bool
    refused: bool
    reason: str = ""

    @property
    def peak_bytes(self) -> float:
        """The peak in the source's meaning."""
        if self.stage is None:
            return float("nan")
        return {"allocated": self.stage.allocated, "reserved": self.stage.reserved}.get(self.meaning, self.stage.peak)


def memory_of_run(run: RunRow) -> RunMemory:
    """Return the memory of a measured run.

    Parameters
    ----------
    run : RunRow
        The run.

    Returns
    -------
    RunMemory

    Raises
    ------
    TraincastError
        If the run cannot be described.
    """
    meaning = run.memory_kind
    try:
        job = job_of_run(run)
    except InfeasibleError as error:
        return RunMemory(None, meaning, False, True, str(error))
    parallel = job.parallel
    plan = SCHEDULES.get(job.schedule)(parallel.pp, parallel.vpp, parallel.microbatches)
    stages = stage_memory(job, plan)
    printed = stages[0] if run.first_stage_memory else max(stages, key=lambda stage: stage.peak)
    verdict = fits(job, plan, run.cluster.gpu.memory_bytes, run.cluster.gpus_per_node)
    return RunMemory(printed, meaning, verdict.fits, verdict.refused, "" if verdict.fits else verdict.text)


def holds_memory(columns: Sequence[str]) -> bool:
    """Say whether columns are those of runs with their memory but without their step.

    Files that have both are of the kind that predicts the step; `validate` takes this kind by its name.
    """
    return has_memory(columns) and not has_steps(columns)


def has_memory(columns: Sequence[str]) -> bool:
    """Say whether a file with these columns can be held against the memory model."""
    return is_runs_table(columns) and "x_peak_mem_gib" in common_columns(columns)


def predict(table: Table, request: Request) -> Predictions:
    """Return the memory of runs that print it, and how many layouts are rightly called infeasible.

    Parameters
    ----------
    table : Table
        With columns of the common schema, or of a public table that rules bring to it.
    request : Request
        Its cluster is that of every row; else each row's own, by its GPU. Leaves nothing out: the
        model has no constant that is fitted to these runs.

    Returns
    -------
    Predictions
        In bytes; runs without memory are skipped, the counts of feasible ones are notes.
    """
    runs = read_runs(table, request.cluster)
    skipped = list(runs.skipped)
    kept: list[tuple[RunRow, RunMemory]] = []
    judged: dict[str, list[RunMemory]] = {}
    for run in runs.rows:
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
    return _predictions(table, kept, skipped, judged)


def _predictions(
    table: Table, kept: list[tuple[RunRow, RunMemory]], skipped: list[Skipped], judged: dict[str, list[RunMemory]]
) -> Predictions:
    details: dict[str, Labels] = {name: tuple(run.groups[name] for run, _ in kept) for name in GROUPINGS}
    details["meaning"] = tuple(found.meaning for _, found in kept)
    for name in ("parameters", "gradients", "optimizer", "activations", "other"):
        details[f"{name}_bytes"] = tuple(getattr(found.stage, name) for _, found in kept)
    measured = np.array([run.peak_bytes for run, _ in kept], np.float64)
    predicted = np.array([found.peak_bytes for _, found in kept], np.float64)
    notes = [_verdicts(outcome, found) for outcome, found in sorted(judged.items())]
    return Predictions(
        ids=tuple(run.id for run, _ in kept),
        measured=measured,
        predicted=predicted,
        details=details,
        groupings=tuple(Grouping.of(name, [run.groups[name] for run, _ in kept]) for name in GROUPINGS),
        skipped=tuple(skipped),
        rows=table.size,
        notes=(*notes, *_spread(measured, predicted), *assumed_frameworks([run for run, _ in kept])),
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


def _spread(measured: FloatArray, predicted: FloatArray) -> list[Note]:
    """Say how far the model is off: the deviation that `traincast.estimate.memory.fits` takes."""
    if not measured.size:
        return []
    within = float(np.quantile(np.abs(np.log(measured / predicted)), ONE_DEVIATION))
    text = (
        f"{format_share(ONE_DEVIATION, 0)} of the runs lie within {format_share(within)} (logarithm of measured over "
        "predicted memory)"
    )
    return [Note("spread", text)]


_OUTCOMES = {"ok": "ran", "crashed": "crashed"}

KINDS.register("memory-of-runs")(
    Kind(
        name="memory-of-runs",
        title="memory of published training runs",
        quantity="peak_bytes",
        fits=holds_memory,
        predict=predict,
        by=GROUPINGS,
    )
)
