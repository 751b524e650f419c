"""``report.html`` of what a user names: one step to explore, or two side by side."""

from collections.abc import Sequence
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path

from traincast.api.explanations import run_again
from traincast.api.files import Files, StrPath
from traincast.api.prediction import predict
from traincast.api.results import is_result
from traincast.api.simulation import simulate
from traincast.hardware.cluster import Cluster
from traincast.report.explorer.page import write_page
from traincast.report.files import write_whole
from traincast.report.html import title_of
from traincast.simulation.result import Result


def explore(
    run: Files | Result, out: StrPath, against: Files | Result | None = None, cluster: StrPath | Cluster | None = None
) -> None:
    """Write a page that shows a step to a browser, or two steps side by side.

    A step is a result, its ``result.json`` or the folder that it was written to, which is run again if it holds no
    operations; a job file, which is forecast; or workload and trace files, which are simulated.

    Parameters
    ----------
    run, against : path, sequence of paths, or Result
        The step, and a second one.
    out : path
        The page.
    cluster : str or Cluster, optional
        Where jobs and files run.

    Raises
    ------
    TraincastError
        If something cannot be read or run, or the page cannot be written.

    Examples
    --------
    >>> import traincast
    >>> traincast.explore("examples/megatron_pp4_tp2", "step.html")
    """
    steps = [_step(each, cluster) for each in (run, against) if each is not None]
    page = BytesIO()
    write_page(steps, page)
    write_whole(Path(out), page.getvalue())


def _step(given: Files | Result, cluster: StrPath | Cluster | None) -> tuple[str, Result]:
    """Return a step with its operations, and its name."""
    if isinstance(given, Result):
        whole = given if given.program is not None else run_again(given)
        return title_of(whole), whole
    paths = [given] if isinstance(given, (str, PathLike)) else list(given)
    name = _name(paths)
    if len(paths) == 1 and is_result(paths[0]):
        return name, run_again(paths[0])
    if len(paths) == 1 and Path(paths[0]).suffix == ".toml":
        return name, predict(paths[0], cluster, engine="auto")
    return name, simulate(given, cluster=cluster, engine="auto")


def _name(paths: Sequence[StrPath]) -> str:
    return fspath(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
