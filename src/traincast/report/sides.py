"""What a user names, as a side of a comparison: a result, a job to forecast, a measured trace, a training log."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from msgspec.structs import replace

from traincast.analysis.comparison import Side, measured_side
from traincast.analysis.logged import logged_side
from traincast.analysis.timed_program import timed_program
from traincast.analysis.whole_step import measured_breakdown
from traincast.dialects.recognise import draft_of_file
from traincast.errors import FormatError, TraincastError
from traincast.files import input_of, read_bytes, read_head
from traincast.formats.contract import FileKind
from traincast.formats.open import identify
from traincast.formats.training_log import TRAINING_LOG
from traincast.formats.training_log.facts import FACTS
from traincast.formats.training_log.job import draft_of_log
from traincast.formats.training_log.reader import read_log
from traincast.formats.training_log.record import TrainingLog
from traincast.job.draft import Draft
from traincast.job.job_file import read_job_file
from traincast.report.json import result_from_json
from traincast.simulation.result import Result
from traincast.simulation.sides import simulated_side
from traincast.workload.workload import Workload

_HEAD_BYTES = 4096

Given = str | PathLike[str] | Result | Workload | Draft
Forecast = Callable[[Draft | Result], Result]
Known = Result | Workload | TrainingLog


def sides_of(given: Sequence[Given], read: Callable[[Path], Workload], predict: Forecast) -> list[Side]:
    """Return what was given as sides of a comparison.

    A training log is held against what the other side says of its job, and takes from it what it is silent about.

    Parameters
    ----------
    given : sequence
        Results, jobs, workloads that were measured, or paths.
    read, predict : callable
        Read the traces of a run; forecast a job, or that of a result again.

    Raises
    ------
    TraincastError
        If something cannot be read or forecast, or says no measured step.
    """
    known = [_known(each, read, predict) for each in given]
    forecast = next((each for each, _ in known if isinstance(each, Result)), None)
    sides = [_side(each, name, forecast) for each, name in known]
    if all(isinstance(each, Result) and each.job is not None for each, _ in known):
        return [_doubted(side, each, predict) for side, (each, _) in zip(sides, known, strict=True)]
    return sides


def _doubted(side: Side, known: Known, predict: Forecast) -> Side:
    """Return a forecast with what it may be off by; one that was read does not say it, and is made again for it."""
    if side.doubts is not None or not isinstance(known, Result):
        return side
    try:
        return replace(side, doubts=predict(known).doubts)
    except TraincastError:
        return side


def _known(given: Given, read: Callable[[Path], Workload], predict: Forecast) -> tuple[Known, str]:
    """Return what was given, read or forecast, and its name for people."""
    if isinstance(given, Result):
        return given, ", ".join(file.path for file in given.inputs[:1]) or "result"
    if isinstance(given, Workload):
        return given, given.name
    if isinstance(given, Draft):
        return predict(given), f"job of {given.inputs[0].path}" if given.inputs else "job"
    return _opened(Path(given), read, predict), str(given)


def _opened(path: Path, read: Callable[[Path], Workload], predict: Forecast) -> Known:
    """Return what a file or folder holds."""
    written = path / "result.json"
    # A folder that a simulation wrote to holds other files too; what it says is its result.
    if written.is_file():
        return result_from_json(read_bytes(written), str(written))
    if path.is_file() and (described := draft_of_file(path)) is not None:
        return predict(described)
    if path.suffix == ".toml":
        return predict(read_job_file(str(path)))
    kind = _kind(path)
    if kind is TRAINING_LOG:
        return read_log(path)
    if kind is None and (path.suffix == ".json" or _begins_like_json(path)):
        return result_from_json(read_bytes(path), str(path))
    return read(path)


def _kind(path: Path) -> FileKind | None:
    """Return what kind of file it is; None for folders, patterns, and files that nobody knows."""
    try:
        return identify(path)
    except FormatError:
        # Who reads it says why it cannot be read.
        return None


def _begins_like_json(path: Path) -> bool:
    try:
        return read_head(path, _HEAD_BYTES).lstrip().startswith(b"{")
    except FormatError:
        return False


def _side(known: Known, name: str, forecast: Result | None) -> Side:
    if isinstance(known, Result):
        return simulated_side(known, name)
    if isinstance(known, TrainingLog):
        return logged_side(known, name, {} if forecast is None else _said(forecast))
    if known.measured is None:
        raise FormatError(
            "says no measured step; simulate it first (traincast simulate FILE --out DIR) and compare DIR", name
        )
    side = measured_side(known.measured, name)
    if known.program is None or known.timeline is None:
        return side
    return replace(side, breakdown_s=measured_breakdown(timed_program(known.program, known.timeline)))


def _said(forecast: Result) -> dict[str, int]:
    """Return what a result says of its run, in the words of a training log."""
    said = {"gpus": forecast.parallel.world_size}
    for told in filter(None, (forecast.parallel, forecast.job)):
        said |= {name: getattr(told, name) for name in FACTS if name in told.__struct_fields__}
    if forecast.job is not None:
        said["layers"] = sum(forecast.job.stage_layers)
    return said


def job_of_log(path: Path) -> Draft | None:
    """Return the job of a training log; None of other files.

    Raises
    ------
    FormatError
        If the log lists no arguments, or not those that describe a job.
    """
    if not path.is_file() or _kind(path) is not TRAINING_LOG:
        return None
    draft = draft_of_log(read_log(path))
    if draft is None:
        raise FormatError("is a training log that does not list the arguments of its job; give a job file", str(path))
    return replace(draft, inputs=(input_of(path, TRAINING_LOG.name),))
