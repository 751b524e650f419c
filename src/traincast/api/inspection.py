"""What a file is, and the bus bandwidths that a file of SimAI holds."""

from collections.abc import Iterator
from pathlib import Path

from traincast.api.files import Files, StrPath, expand, paths_of
from traincast.calibration.kind import TELLERS
from traincast.errors import FormatError
from traincast.fabric.inspect import inspect_file
from traincast.formats.contract import Inspection
from traincast.formats.recognise import bus_bandwidths as read_bus_bandwidths


def inspect(path: StrPath) -> Inspection:
    """Say what a file, or the one of a folder or pattern, is: format, generation, contents, totals, problems.

    Raises
    ------
    FormatError
        If no kind of file fits, or it is damaged, or there are several.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.inspect("examples/aicb_gpt_405b_1024gpu.txt")
    >>> found.format, found.layout["tp"], found.layout["pp"]
    ('aicb', 8, 16)
    """
    file, *others = expand(path)
    if others:
        raise FormatError(f"stands for {1 + len(others)} files; inspect them one by one", str(path))
    return inspect_file(file, (), TELLERS)


def inspect_all(files: Files) -> Iterator[Inspection]:
    """Say what each of several files is, in their order (see `inspect`); folders and patterns may stand for them.

    Where one in a folder that was given cannot be read, the error has a pattern to choose the others.

    Examples
    --------
    >>> from traincast import api
    >>> [found.format for found in api.inspect_all(["examples/aicb_*.txt", "examples/*.tsv"])]
    ['aicb', 'aicb', 'neusight']
    """
    given = paths_of(files)
    for path in expand(given):
        yield inspect_file(path, given, TELLERS)


def bus_bandwidths(path: StrPath) -> dict[str, float]:
    r"""Read SimAI's ``busbw.yaml`` for `SimulateOptions.busbw_bytes_per_s` (see `traincast.formats.busbw`).

    Examples
    --------
    >>> from pathlib import Path
    >>> from traincast import api
    >>> _ = Path("busbw.yaml").write_text("test\nTP:\n  allreduce,: 300\n")
    >>> api.bus_bandwidths("busbw.yaml")
    {'tp.all_reduce': 300000000000.0}
    """
    return read_bus_bandwidths(Path(path), TELLERS)
