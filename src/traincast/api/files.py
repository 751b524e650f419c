"""The files of a run: which are meant, and reading them."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from traincast.errors import ConfigError, FormatError
from traincast.formats.contract import Format
from traincast.formats.open import OpenRun, expand_inputs, identify_run
from traincast.formats.recognise import workload_format
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.options import LayoutOptions
from traincast.job.request import JobRequest
from traincast.workload.workload import Workload

StrPath = str | PathLike[str]
JobLike = Job | JobRequest | Draft | StrPath
Files = StrPath | Sequence[StrPath]
"""One file, several, or folders and patterns that stand for files (`expand`)."""


def expand(files: Files) -> list[Path]:
    """Replace folders by the files in them, and patterns such as ``run/rank*.txt`` by what they match.

    Raises
    ------
    FormatError
        If a folder cannot be read or holds no file, or nothing matches a pattern.

    Examples
    --------
    >>> from traincast import api
    >>> len(api.expand("examples/megatron_pp4_tp2"))
    8
    """
    paths = paths_of(files)
    if not paths:
        raise ConfigError("no file was given")
    return expand_inputs(paths)


def read(files: Files, layout: LayoutOptions | None = None, *, recorded: bool = False) -> Workload:
    """Read the files of one run into the intermediate form; `layout` says what to override of theirs.

    A measured trace is read into what each rank does in a step, which can be made another run of; with `recorded` it is
    taken as it is, with its measured times (`Workload.timeline`), unless the layout asks for another run.

    Raises
    ------
    FormatError
        If a file cannot be read, or the files are of different formats.
    ConfigError
        If no file is given, or what is overridden means nothing to their format.

    Examples
    --------
    >>> import traincast
    >>> traincast.read("examples/aicb_scaled_512gpu.txt").parallel.world_size
    512
    >>> traincast.read("examples/aicb_scaled_512gpu.txt", traincast.LayoutOptions(gpus=1024)).parallel.dp
    16
    """
    return open_run(files).read(layout or LayoutOptions(), recorded=recorded)


def open_run(files: Files) -> OpenRun:
    """Return the files of one run, to be read in one layout or in several (errors as `read`).

    Examples
    --------
    >>> import traincast
    >>> run = traincast.api.files.open_run("examples/aicb_scaled_512gpu.txt")
    >>> [run.read(traincast.LayoutOptions(gpus=gpus)).parallel.dp for gpus in (512, 1024)]
    [8, 16]
    """
    given = paths_of(files)
    paths = expand(given)
    return OpenRun(_workload_format(paths, given), paths)


def _workload_format(paths: Sequence[Path], given: Sequence[Path]) -> Format:
    """Return the format of a run's files; what else a file may be is only looked for where it has none."""
    try:
        return identify_run(paths, given)
    except FormatError:
        # Measurements are not loaded to simulate a file.
        from traincast.calibration.kind import TELLERS

        return workload_format(paths, given, TELLERS)


def paths_of(files: Files) -> list[Path]:
    """Return what a user gave as paths: files, folders and patterns."""
    return [Path(files)] if isinstance(files, (str, PathLike)) else list(map(Path, files))
