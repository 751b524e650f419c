"""The facade: what a Python user calls, and all that the command line calls."""

from collections.abc import Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from traincast.analysis.comparison import Comparison, Side
from traincast.analysis.comparison import compare as compare_sides
from traincast.errors import ConfigError, FormatError
from traincast.formats.contract import Format, Inspection
from traincast.formats.open import expand_inputs, identify
from traincast.report.json import result_from_json
from traincast.simulation.result import Result
from traincast.simulation.sides import measured_side, simulated_side
from traincast.simulation.simulate import simulate_workload
from traincast.spec.cluster import Cluster
from traincast.spec.clusters import cluster_names, load_cluster
from traincast.spec.flags import flag_of
from traincast.spec.notes import Note
from traincast.spec.options import LayoutOptions, SimulateOptions, make_options
from traincast.workload.workload import Workload

DEFAULT_CLUSTER = "h100"

_HEAD_BYTES = 4096

StrPath = str | PathLike[str]


def inspect(path: StrPath) -> Inspection:
    """Say what a file is: format, generation, contents, totals, oddities.

    Parameters
    ----------
    path : str or path
        The file; a folder or pattern that stands for one file (see `expand`).

    Returns
    -------
    Inspection

    Raises
    ------
    FormatError
        If no format knows the file, or it is damaged, or there are several.
    """
    file, *others = expand(path)
    if others:
        raise FormatError(f"stands for {1 + len(others)} files; inspect them one by one", str(path))
    return identify(file).inspect(file)


def expand(files: StrPath | Sequence[StrPath]) -> list[Path]:
    """Replace folders by the files in them, and patterns such as ``run/rank*.txt`` by what they match.

    Raises
    ------
    FormatError
        If a folder cannot be read or holds no file, or nothing matches a pattern.
    ConfigError
        If no file is given.
    """
    paths = [Path(files)] if isinstance(files, (str, PathLike)) else [Path(file) for file in files]
    if not paths:
        raise ConfigError("no file was given")
    return expand_inputs(paths)


def read(files: StrPath | Sequence[StrPath], layout: LayoutOptions | None = None) -> Workload:
    """Read the files of one run into the intermediate form.

    Parameters
    ----------
    files : path or sequence of paths
        One file, or the rank files of one run, or the folder they are in (see `expand`).
    layout : LayoutOptions, optional
        What to override of the files' layout.

    Returns
    -------
    Workload

    Raises
    ------
    FormatError
        If a file cannot be read, or the files are of different formats.
    ConfigError
        If no file is given, or an option is set that means nothing to their format.
    """
    paths = expand(files)
    formats = [identify(path) for path in paths]
    for path, form in zip(paths, formats, strict=True):
        if form is not formats[0]:
            raise FormatError(f"is of format {form.name}, but {paths[0]} is {formats[0].name}", str(path))
    chosen = layout or LayoutOptions()
    _refuse_meaningless(formats[0], chosen)
    return formats[0].read(paths, chosen)


def simulate(
    files: StrPath | Sequence[StrPath] | Workload,
    options: SimulateOptions | None = None,
    *,
    engine: str = "auto",
    **changes: Any,  # noqa: ANN401
) -> Result:
    """Simulate one step of a workload or of the files that describe it.

    Parameters
    ----------
    files : path, sequence of paths, or Workload
        What to simulate.
    options : SimulateOptions, optional
        All options at once.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine; all agree bit for bit.
    **changes
        Options as keywords, used when `options` is not given: the fields of
        `SimulateOptions` and `LayoutOptions`, such as ``cluster="h100"`` or ``tp=8``.

    Returns
    -------
    Result

    Raises
    ------
    TraincastError
        If the input cannot be read or cannot run.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("workload.txt", cluster="h100", vpp=2)  # doctest: +SKIP
    >>> result.iteration_time_s  # doctest: +SKIP
    """
    if options is not None and changes:
        raise ConfigError(f"give options or keywords, not both ({', '.join(sorted(changes))})")
    chosen = options or make_options(**changes)
    if isinstance(files, Workload) and chosen.layout != LayoutOptions():
        raise ConfigError("the layout of a workload is decided when it is read; give layout options to traincast.read")
    workload = files if isinstance(files, Workload) else read(files, chosen.layout)
    result = simulate_workload(workload, load_cluster(chosen.cluster or DEFAULT_CLUSTER), chosen, engine)
    return result if chosen.cluster else _with_default_cluster(result)


def compare(a: StrPath | Result | Workload, b: StrPath | Result | Workload) -> Comparison:
    """Put two steps side by side.

    Parameters
    ----------
    a, b : path, Result, or Workload
        A result, its ``result.json`` or the folder that holds one: the simulated step. A measured
        trace, or the folder of a run's rank traces, or a workload read from them: the measured
        step, which is not simulated.

    Returns
    -------
    Comparison
        Differences are those of `b` to `a`.

    Raises
    ------
    TraincastError
        If a side cannot be read, or says no measured step.

    Examples
    --------
    >>> import traincast
    >>> comparison = traincast.compare("run", "out/result.json")  # doctest: +SKIP
    >>> comparison.step.relative  # doctest: +SKIP
    """
    return compare_sides(_side(a), _side(b))


def load_result(path: StrPath) -> Result:
    """Read a ``result.json`` that was written before.

    Raises
    ------
    FormatError
        If the file cannot be read or is no result.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", str(path)) from None
    return result_from_json(data, str(path))


def clusters() -> list[Cluster]:
    """Return every preset cluster."""
    return [load_cluster(name) for name in cluster_names()]


def _side(given: StrPath | Result | Workload) -> Side:
    """Return what was given as a side of a comparison."""
    if isinstance(given, Result):
        return simulated_side(given, ", ".join(file.path for file in given.inputs[:1]) or "result")
    if isinstance(given, Workload):
        return _measured_side(given, given.name)
    path, name = Path(given), str(given)
    written = path / "result.json"
    # A folder that a simulation wrote to holds other files too; what it says is its result.
    if written.is_file():
        return simulated_side(load_result(written), str(written))
    if path.suffix == ".json" or _begins_like_json(path):
        return simulated_side(load_result(path), name)
    return _measured_side(read(path), name)


def _measured_side(workload: Workload, name: str) -> Side:
    if workload.measured is None:
        raise FormatError(
            "says no measured step; simulate it first (traincast simulate FILE --out DIR) and compare DIR", name
        )
    return measured_side(workload.measured, name)


def _begins_like_json(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES).lstrip().startswith(b"{")
    except OSError:
        # A folder or pattern; or who reads it next says why it cannot be read.
        return False


def _refuse_meaningless(form: Format, layout: LayoutOptions) -> None:
    """Refuse an option that the user set and the format does not know, lest it is ignored in silence."""
    for option in fields(layout):
        if option.name not in form.options and getattr(layout, option.name) != option.default:
            article = "an" if form.title[0] in "AEIOU" else "a"
            raise ConfigError(f"{flag_of(option.name)} has no meaning for {article} {form.title}")


def _with_default_cluster(result: Result) -> Result:
    text = f"no cluster was given; taken as {DEFAULT_CLUSTER}"
    assumptions = (*result.assumptions, Note("cluster-default", text))
    priced = sum(each.count for each in result.collectives)
    if not priced:
        return replace(result, assumptions=assumptions)
    warning = Note(
        "cluster-default",
        f"communication was priced for {DEFAULT_CLUSTER}, because no cluster was given (use --cluster)",
    )
    return replace(result, assumptions=assumptions, warnings=(*result.warnings, warning))
