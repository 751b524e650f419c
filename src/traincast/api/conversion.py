"""Write runs in other formats of the field."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traincast.api.files import Files, StrPath, read
from traincast.api.results import is_result, load_record
from traincast.errors import ConfigError, FormatError
from traincast.formats.writer import WRITERS, Conversion, Run, Writer, Written
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.job_file import read_job_file
from traincast.job.options import LayoutOptions, SimulateOptions, make_options
from traincast.job.request import JobRequest
from traincast.job.words import SIMULATE_WORDS, sorted_out, takes
from traincast.model.load import load_model
from traincast.report.files import refuse_existing, write_files, write_whole
from traincast.simulation.convert import run_of_job, run_of_workload
from traincast.simulation.reproducible import choose, unchanged_files
from traincast.workload.workload import Workload


@takes(SIMULATE_WORDS)
def convert(
    source: Files | Workload | Job | JobRequest | Draft,
    out: StrPath,
    to: str,
    *,
    options: SimulateOptions | None = None,
    force: bool = False,
    engine: str = "fast",
    **words: Any,  # noqa: ANN401
) -> Conversion:
    """Write a run in a format of the field.

    Parameters
    ----------
    source : path, sequence of paths, Workload, Job, JobRequest or Draft
        A job, the file of one, the files of a workload or trace, or a ``result.json``, whose run it is.
    out : path
        The file to write; of a format of one file per rank the folder.
    to : str
        Name of the format: ``"aicb"``, ``"chakra"``, ... (`traincast.formats.writer.WRITERS`).
    options : SimulateOptions, optional
        Cluster, layout of files and how ranks are simulated; or as keywords, as of `traincast.simulate`.
    force : bool
        Write over files that are there.
    **words
        Options of the format's writer, and the words of `SimulateOptions`; a name of both is the writer's.

    Raises
    ------
    ConfigError
        If an option of the writer is not known, or a file is there already.
    FormatError
        If the run cannot be written in that format, with the reason.

    Examples
    --------
    >>> import traincast
    >>> traincast.convert("examples/aicb_gpt405b_1024gpu.toml", "workload.txt", "aicb").files
    ('workload.txt',)
    """
    writer = WRITERS.get(to)
    if isinstance(source, (str, PathLike)) and Path(source).suffix == ".toml":
        source = read_job_file(str(source))
    own = {option.name: option.name for option in writer.options}
    choices, said = (words, {}) if options is not None else sorted_out(words, own, SIMULATE_WORDS)
    options = options or make_options(**said)
    filling = _job_that_fills(writer, source, choices.get("model", ""), options)
    said_by = source if isinstance(source, Draft) else Draft() if filling is None else filling[0]
    chosen, target = writer.chosen(choices, said_by.convert), Path(out)
    if writer.one_file and not force:
        refuse_existing(target)
    run = (
        _run_for(writer, source, options, engine) if filling is None else _run_filling(writer, filling, options, engine)
    )
    written = writer.write(run, chosen)
    files = write_files(target, written.files, force=force) if not writer.one_file else _write_one(target, written)
    return _conversion(writer, run, files, written)


def _conversion(writer: Writer, run: Run, files: Sequence[Path], written: Written) -> Conversion:
    return Conversion(
        format=writer.name,
        files=tuple(map(str, files)),
        size_bytes=sum(file.stat().st_size for file in files if file.is_file()),
        lost=written.lost,
        assumptions=run.workload.assumptions,
        warnings=run.workload.warnings,
    )


def _write_one(target: Path, written: Written) -> list[Path]:
    ((_, content),) = written.files
    write_whole(target, content)
    return [target]


def _job_that_fills(
    writer: Writer, source: Files | Workload | Job | JobRequest | Draft, said: str, options: SimulateOptions
) -> tuple[Draft, Workload] | None:
    """Return the job whose times fill files, and these: of a job file, or of a model trained as the files imply."""
    if not said or writer.implied_fields is None:
        return None
    if isinstance(source, (Job, JobRequest, Draft)):
        raise ConfigError("fills the times of files; a job has its own", "option model")
    workload = source if isinstance(source, Workload) else read(source, options.layout)
    if {each.format for each in workload.inputs} != {writer.name}:
        raise ConfigError(f"fills a file that is an {writer.title} already", "option model")
    if said.endswith(".toml"):
        return read_job_file(said), workload
    return Draft(model=said, fields=writer.implied_fields(workload, load_model(said))), workload


def _run_filling(writer: Writer, filling: tuple[Draft, Workload], options: SimulateOptions, engine: str) -> Run:
    """Return the run of a job that fills files."""
    job, fills = filling
    return replace(_run_for(writer, job, replace(options, layout=LayoutOptions()), engine), fills=fills)


def _run_for(
    writer: Writer, source: Files | Workload | Job | JobRequest | Draft, options: SimulateOptions, engine: str
) -> Run:
    """Return the run of what is to be converted."""
    if isinstance(source, (str, PathLike)) and is_result(source):
        record = load_record(source)
        chosen = choose(options, record.cluster if options.cluster is None else options.cluster, engine)
        if record.command == "predict":
            return run_of_job(record.draft(), chosen, writer)
        layout = record.options.layout if options.layout == LayoutOptions() else options.layout
        return run_of_workload(read(unchanged_files(record.inputs), layout), chosen, writer)
    if isinstance(source, (Job, JobRequest, Draft)):
        if options.layout != LayoutOptions():
            raise ConfigError("applies to files; a job says its degrees and its schedule itself", "layout")
        said = source.cluster if isinstance(source, Draft) else None
        return run_of_job(source, choose(options, said if options.cluster is None else options.cluster, engine), writer)
    workload = source if isinstance(source, Workload) else read(source, options.layout, recorded=writer.as_traced)
    if writer.needs_job:
        raise FormatError(
            f"is a workload, and {writer.title} is written of a described job; give a job file or the result of a "
            "forecast",
            workload.name,
        )
    return run_of_workload(workload, choose(options, options.cluster, engine), writer)
