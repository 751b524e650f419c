"""Results as they are kept: written into a folder, read again, and what they were made from."""

from pathlib import Path

from traincast.api.files import StrPath
from traincast.files import read_bytes, read_head
from traincast.job.record import RunRecord
from traincast.report.files import write_directory
from traincast.report.json import result_from_json
from traincast.simulation.reproducible import record_of
from traincast.simulation.result import Result

_HEAD_BYTES = 4096


def load_result(path: StrPath) -> Result:
    """Read a ``result.json`` that was written before, or that of a folder.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2")
    >>> _ = traincast.save_result(result, "run")
    >>> traincast.load_result("run").iteration_time_s == result.iteration_time_s
    True
    """
    file = Path(path)
    if file.is_dir():
        file /= "result.json"
    return result_from_json(read_bytes(file), str(file))


def save_result(result: Result, out: StrPath, *reports: str) -> list[Path]:
    """Write a result into a folder, as ``--out`` does: ``result.json``, the explorer, operations, a timeline.

    Parameters
    ----------
    result : Result
        What to write.
    out : path
        The folder, which is made where there is none.
    *reports : str
        Further reports, as of ``--report``: ``picture``, ``endtoend``.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    TraincastError
        If a report is not known, or the files cannot be written; then none of them is left.

    Examples
    --------
    >>> import traincast
    >>> written = traincast.save_result(traincast.simulate("examples/megatron_pp4_tp2"), "run", "picture")
    >>> [each.name for each in written]
    ['ops.csv', 'report.html', 'result.json', 'trace.json.gz', 'step.svg']
    """
    return write_directory(result, Path(out), further=reports)


def is_result(path: StrPath) -> bool:
    """Say whether a file, or the ``result.json`` of a folder, is a result of traincast.

    Examples
    --------
    >>> from traincast import api
    >>> api.is_result("examples/llama3_70b_512gpu.toml")
    False
    """
    file = Path(path)
    file = file / "result.json" if file.is_dir() else file
    return file.is_file() and b'"traincast.result/' in read_head(file, _HEAD_BYTES)


def load_record(path: StrPath) -> RunRecord:
    """Read what a ``result.json``, or that of a folder, was made from: job or options, cluster with every override.

    Examples
    --------
    >>> import traincast
    >>> _ = traincast.save_result(traincast.simulate("examples/megatron_pp4_tp2"), "run")
    >>> record = traincast.api.load_record("run")
    >>> record.command, record.cluster.name, len(record.inputs)
    ('simulate', 'h100', 8)
    """
    return record_of(load_result(path), str(path))
