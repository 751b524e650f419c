"""A job as a file: for us, for frameworks, for a spreadsheet, as a picture."""

from collections.abc import Callable, Mapping
from io import BytesIO

from msgspec.structs import replace

from traincast import report
from traincast.dialects import WRITES
from traincast.errors import UnknownNameError
from traincast.job.job import Job
from traincast.job.record import RunRecord
from traincast.job.resolve import resolve_job
from traincast.report.job_files import job_file_of
from traincast.report.plain import csv_line
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.words import command_of, predicted, python_of
from traincast.serve.failures import without_paths
from traincast.serve.records.forecasts import Exported, ExportRecord
from traincast.simulation.reproducible import record_of
from traincast.simulation.result import Result


def export(asked: ExportRecord, bench: Workbench) -> Exported:
    """Write a job as a file: for us, for a framework, for a spreadsheet, as a picture."""
    form = asked.form
    if form == "command":
        return Exported(name="command.sh", text=f"{command_of(asked.job)}\n")
    if form == "python":
        return Exported(name="forecast.py", text=python_of(asked.job))
    if form not in _FORMS:
        raise UnknownNameError("form", form, ("command", "python", *_FORMS))
    name, write = _FORMS[form]
    text = write(replace(predicted(asked.job, bench), advice=()))
    return Exported(name=name, text=without_paths(text, str(bench.scratch)))


def _document(result: Result) -> str:
    return report.encode(report.result_to_dict(result)).decode()


def _job_file(result: Result) -> str:

    return job_file_of(_record(result))


def _record(result: Result) -> RunRecord:

    return record_of(result)


def _table(result: Result) -> str:
    """Return where the time goes, and the memory of every stage."""
    rows: list[tuple[object, ...]] = [("what", "part", "value", "unit")]
    rows += [("step", "", result.iteration_time_s, "s")]
    rows += [("breakdown", part, time_s, "s") for part, time_s in result.breakdown_s.items()]
    for stage, each in enumerate(result.memory_bytes or ()):
        parts = ("parameters", "gradients", "optimizer", "activations", "other", "peak")
        rows += [(f"memory of stage {stage}", part, getattr(each, part), "bytes") for part in parts]
    return "".join(f"{csv_line(row)}\n" for row in rows)


def _picture(name: str) -> Callable[[Result], str]:
    def draw(result: Result) -> str:
        out = BytesIO()
        report.REPORTS.get(name).write(result, out)
        return out.getvalue().decode()

    return draw


def _framework(name: str) -> Callable[[Result], str]:
    def write(result: Result) -> str:

        return WRITES[name](_decided(result))

    return write


def _decided(result: Result) -> Job:
    """Return the job of a forecast with everything decided."""
    record = _record(result)
    draft = record.draft()
    return draft if isinstance(draft, Job) else resolve_job(draft.request(), record.cluster)


_FORMS: Mapping[str, tuple[str, Callable[[Result], str]]] = {
    "job.toml": ("job.toml", _job_file),
    "result.json": ("result.json", _document),
    "csv": ("forecast.csv", _table),
    "svg": ("step.svg", _picture("picture")),
    "svg-dark": ("step-dark.svg", _picture("picture-dark")),
    "megatron": ("megatron.txt", _framework("megatron")),
    "bridge": ("bridge.txt", _framework("bridge")),
    "torchtitan": ("torchtitan.toml", _framework("torchtitan")),
}
"""What a forecast is written as: the name of the file, and what writes it."""
