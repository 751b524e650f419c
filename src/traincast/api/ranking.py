"""Whether forecasts choose the right layout."""

from collections.abc import Callable
from pathlib import Path

from traincast.api.files import StrPath
from traincast.calibration.ranking import Ranking, rank_layouts
from traincast.hardware.cluster import Cluster


def rank(
    path: StrPath,
    cluster: StrPath | Cluster | None = None,
    *,
    leave_out: StrPath | None = None,
    recipes: StrPath | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Say whether forecasts choose the right layout among measured runs that differ in nothing else.

    Parameters
    ----------
    path : path
        A table of training runs (docs/data-files.md).
    cluster, recipes, progress
        As of `traincast.api.validate`.
    leave_out : path, optional
        File of the ids of rows that say nothing about layouts, one a line.

    Raises
    ------
    CalibrationError
        If no two rows are alternatives.

    Examples
    --------
    >>> import traincast
    >>> traincast.rank("examples/training_runs.csv").total.groups
    2
    """
    listed, settings = (None if each is None else Path(each) for each in (leave_out, recipes))
    return rank_layouts(path, cluster, leave_out=listed, recipes=settings, progress=progress)
