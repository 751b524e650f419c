"""Jobs that were measured on one machine, forecast before and after what a careful user calibrates with there.

    python studies/own_machine.py ...        # on the machine: writes the tables and profiles
    traincast calibrate own_machine_operators.csv --gpu GPU --out mine.csv
    traincast calibrate own_machine_JOB.json.gz --job JOB.toml --out ours.toml
    traincast calibrate CALIBRATING_RUNS.csv --cluster h100 --out ours.toml

and the last two with ``--constants mine.csv``, too.

What a row is marked for (column ``use``) to calibrate with judges nothing.
"""

import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from datafiles import DATA, table_path
from judges.board import Board, board_of
from own_machine import JOBS_FILE, OPERATORS_FILE
from traincast.calibration.operator_calibration import calibrate_operators
from traincast.calibration.run_calibration import calibrate_runs
from traincast.calibration.run_memory import memory_of_run
from traincast.calibration.runs import GIB, MeasuredRun, job_of_run, read_runs
from traincast.calibration.tables import MOST_TABLE_BYTES, read_table
from traincast.calibration.trace_calibration import calibrate_trace
from traincast.errors import TraincastError
from traincast.estimate.factors import factors_on
from traincast.files import read_unpacked
from traincast.hardware.cluster import Cluster
from traincast.job.options import ConstantsFile
from traincast.simulation.confidence import interval
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting

CALIBRATES = "calibrates"
BEFORE, BY_OPERATORS, BY_TRACE, BY_RUNS = "before", "operators measured", "a step profiled", "few runs measured"
AND_OPERATORS = "operators measured, and "
ALL = "all"


class Known(NamedTuple):
    """What a user has found out before a forecast."""

    cluster: Cluster
    constants: ConstantsFile | None = None


def boards(folder: Path = DATA) -> list[Board]:
    """Return the boards of the jobs: of the steps of those that calibrate nothing, by what was known, and of memory.

    There are none until a machine was measured.
    """
    if not any((folder / f"{JOBS_FILE}{end}").is_file() for end in ("", ".gz")):
        return []
    runs = read_runs(read_table(table_path(JOBS_FILE, folder))).rows
    judged = [run for run in runs if run.cells.get("use") != CALIBRATES]
    timed = [run for run in judged if run.measured_s is not None]
    found = [board for way, known in ways(runs, folder).items() for board in of_steps(timed, way, known)]
    return [*found, *of_memory(runs)]


def ways(runs: Sequence[MeasuredRun], folder: Path) -> Mapping[str, Mapping[str, Known]]:
    """Return what is known of the machine by way and framework.

    Of a framework that a way says nothing of it is what was known before; ways without their file are missing.
    """
    base = runs[0].cluster
    frameworks = sorted({run.groups.framework for run in runs})
    before = dict.fromkeys(frameworks, Known(base))
    constants = operator_constants(base, folder)
    measured = dict.fromkeys(frameworks, Known(base, constants)) if constants else {}
    found: dict[str, Mapping[str, Known]] = {BEFORE: before, BY_OPERATORS: measured}
    for way, clusters in ((BY_TRACE, clusters_of_traces), (BY_RUNS, clusters_of_runs)):
        for name, rest, file in ((way, before, None), (f"{AND_OPERATORS}{way}", measured, constants)):
            own = {framework: Known(each, file) for framework, each in clusters(runs, folder, file)} if rest else {}
            found[name] = rest | own if own else {}
    return {way: known for way, known in found.items() if known}


def operator_constants(base: Cluster, folder: Path) -> ConstantsFile | None:
    """Return what the measured operators say of the GPU."""
    try:
        fitted = calibrate_operators([table_path(OPERATORS_FILE, folder)], base.gpu)
    except FileNotFoundError:
        return None
    return ConstantsFile(name="mine.csv", text=fitted.profile())


def clusters_of_traces(
    runs: Sequence[MeasuredRun], folder: Path, constants: ConstantsFile | None
) -> Iterator[tuple[str, Cluster]]:
    """Yield what a profile of a calibrating run says of the machine, by framework."""
    for run in runs:
        path = folder / f"own_machine_{run.id}.json.gz"
        if path.is_file():
            yield run.groups.framework, calibrate_trace([path], job_of_run(run), run.cluster, constants).cluster


def clusters_of_runs(
    runs: Sequence[MeasuredRun], folder: Path, constants: ConstantsFile | None
) -> Iterator[tuple[str, Cluster]]:
    """Yield what the steps of the calibrating runs say of the machine, by framework."""
    text = read_unpacked(table_path(JOBS_FILE, folder), MOST_TABLE_BYTES).decode()
    lines = [line for line in csv.DictReader(io.StringIO(text)) if line["use"] == CALIBRATES]
    for framework in sorted({line["framework"] for line in lines}):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "runs.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(lines[0]))
                table.writeheader()
                table.writerows(line for line in lines if line["framework"] == framework)
            yield framework, calibrate_runs([path], runs[0].cluster, constants=constants).cluster


class Judged(NamedTuple):
    """A forecast step, in seconds, next to what was measured."""

    run: MeasuredRun
    forecast_s: float
    inside: bool
    """Whether the measured step lies inside the interval of the forecast."""


def forecast(run: MeasuredRun, known: Known) -> Judged | None:
    """Return the forecast of a run; None where it cannot be made."""
    try:
        done = run_job(job_of_run(run), Setting(cluster=known.cluster, constants=known.constants))
    except TraincastError:
        return None
    between = interval(done, factors_on(known.cluster))
    return Judged(run, done.step_s, between.low_s <= (run.measured_s or 0.0) <= between.high_s)


def of_steps(runs: Sequence[MeasuredRun], way: str, known: Mapping[str, Known]) -> Iterator[Board]:
    """Yield the boards of steps by one way: of all jobs, and by framework, LoRA apart."""
    kinds: dict[str, list[Judged]] = {ALL: []}
    for run in runs:
        found = forecast(run, known[run.groups.framework])
        if found is not None:
            name = run.groups.framework if run.groups.task == "pretrain" else run.groups.task
            for kind in (ALL, name):
                kinds.setdefault(kind, []).append(found)
    for kind, rows in kinds.items():
        steps, measured = [each.forecast_s for each in rows], [each.run.measured_s or 0.0 for each in rows]
        yield board_of(f"own machine, {way}", kind, steps, measured, [each.inside for each in rows])


def of_memory(runs: Sequence[MeasuredRun]) -> Iterator[Board]:
    """Yield the boards of peaks as PyTorch's allocator has given out and holds them, and of verdicts."""
    found = [(run, memory_of_run(run)) for run in runs]
    ran = [(run, each.stage) for run, each in found if run.peak_bytes is not None and each.stage is not None]
    given = [stage.allocated for _, stage in ran], [run.peak_bytes or 0.0 for run, _ in ran]
    held = [stage.reserved for _, stage in ran], [GIB * float(run.cells["reserved_gib"]) for run, _ in ran]
    yield board_of("own machine, memory", "allocated", *given)
    yield board_of("own machine, memory", "reserved", *held)
    right = [each.fits == (run.outcome == "ok") for run, each in found]
    figures = {"rightly told": round(100 * sum(right) / max(1, len(right)), 2)}
    yield Board("own machine, memory", "fits or not", len(right), figures, {})
