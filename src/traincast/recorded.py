"""Results that are run again from what they hold; a part of the facade beside `traincast.api`."""

from os import PathLike
from pathlib import Path

from traincast.api import load_result, read
from traincast.errors import ConfigError
from traincast.files import read_head
from traincast.job.options import SimulateOptions
from traincast.job.record import RunRecord
from traincast.simulation.result import Result
from traincast.simulation.runs import record_of, run_job_of, run_workload_of, unchanged_files

_HEAD_BYTES = 4096
"""The schema is the first key of a result."""


def is_result(path: str | PathLike[str]) -> bool:
    """Say whether a file, or the ``result.json`` of a folder, is a result of traincast."""
    file = Path(path)
    file = file / "result.json" if file.is_dir() else file
    return file.is_file() and b'"traincast.result/' in read_head(file, _HEAD_BYTES)


def load_record(path: str | PathLike[str]) -> RunRecord:
    """Read what a ``result.json`` was made from: job or options, and the cluster with every override.

    Parameters
    ----------
    path : path
        The file, or the folder that it was written to.

    Raises
    ------
    TraincastError
        If the file cannot be read, is no result, or does not hold it.
    """
    return record_of(load_result(path), str(path))


def run_again(result: str | PathLike[str] | Result, *, engine: str = "auto") -> Result:
    """Run a result again from what it holds; with the same version the bytes of its ``result.json`` are the same.

    Parameters
    ----------
    result : path or Result
        A ``result.json``, the folder that it was written to, or a result.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine; all agree bit for bit.

    Returns
    -------
    Result

    Raises
    ------
    TraincastError
        If it does not hold what it was made from, or a file of its workload is not what it was.
    """
    record = record_of(result) if isinstance(result, Result) else load_record(result)
    if record.command == "predict":
        return run_job_of(
            record.draft(),
            record.options,
            record.cluster,
            cluster_assumed=record.cluster_assumed,
            allow_oom=record.allow_oom,
            engine=engine,
        )
    return simulate_record(record, engine=engine)


def simulate_record(record: RunRecord, options: SimulateOptions | None = None, *, engine: str = "auto") -> Result:
    """Simulate the files of a record again, perhaps with other options.

    Parameters
    ----------
    record : RunRecord
        Of a simulated workload.
    options : SimulateOptions, optional
        Those of the record by default; its cluster, where it names one, goes before that of the record.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.

    Raises
    ------
    TraincastError
        If a file of the workload is not what it was, or cannot run.
    """
    if record.command != "simulate":
        raise ConfigError("is the result of a forecast; run traincast predict on it", "run.command")
    chosen = options or record.options
    workload = read(unchanged_files(record.inputs), chosen.layout)
    if chosen.cluster is not None:
        return run_workload_of(workload, chosen, engine)
    return run_workload_of(
        workload, chosen, engine, record.cluster, cluster_assumed=record.cluster_assumed, described_by=record.inputs
    )
