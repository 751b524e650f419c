"""Measurements: what a file of them holds, predictions against them, two of them side by side."""

from collections.abc import Callable, Sequence

from traincast.api.files import Files, StrPath, expand
from traincast.api.named import draft_of
from traincast.calibration.collective_comparison import CollectiveComparison
from traincast.calibration.collective_comparison import compare_collectives as compare_files
from traincast.calibration.kind import kind_of_file
from traincast.calibration.trace_calibration import is_trace
from traincast.calibration.validate import Validation
from traincast.calibration.validate import validate as validate_file
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft


def compare_collectives(a: StrPath, b: StrPath) -> CollectiveComparison:
    """Put measured collectives of two files side by side: logs or reports of nccl-tests, or tables.

    Examples
    --------
    >>> from traincast import api
    >>> compared = api.compare_collectives("examples/all_reduce_a100.csv", "examples/all_reduce_a100.csv")
    >>> len(compared.pairs), compared.median_relative
    (22, 0.0)
    """
    return compare_files(a, b)


def kind_of_measurements(path: StrPath) -> str | None:
    """Return what a file of measurements, or the first of a folder or pattern, holds; None where it holds none.

    ``collectives``, ``operators``, ``training-logs``, ``training-runs``, ``memory-of-runs`` or ``traces``.

    Examples
    --------
    >>> from traincast import api
    >>> api.kind_of_measurements("examples/all_reduce_a100.csv"), api.kind_of_measurements("examples/training_runs.csv")
    ('collectives', 'training-runs')
    >>> api.kind_of_measurements("examples/megatron_pp4_tp2")
    'traces'
    """
    first = expand(path)[0]
    return "traces" if is_trace(first) else kind_of_file(first)


def validate(
    path: Files,
    cluster: StrPath | Cluster | None = None,
    by: Sequence[str] | str = (),
    cv: str | None = None,
    *,
    kind: str | None = None,
    job: StrPath | Draft | None = None,
    recipes: StrPath | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every measurement in a file and say how far off the predictions are.

    Parameters
    ----------
    path : path, or sequence of paths
        A CSV file, whose columns say what was measured, a log of nccl-tests, or a training log; or several of one
        kind. A folder or pattern stands for its files.
    cluster : str, path or Cluster, optional
        Cluster that all rows ran on; by default each row's GPU says its preset.
    by : sequence of str, optional
        Groupings to show, such as ``("gpu", "op")``, or ``("gpu+op",)`` for both at once; a text as after ``--by``; all
        that there are by default.
    cv : str, optional
        A grouping: the constants are fitted again without each of its groups, and predict it.
    kind : str, optional
        What to predict where a file holds several things: ``training-runs``, ``memory-of-runs``.
    job : path or Draft, optional
        What was trained, of a training log.
    recipes : path, optional
        A CSV file of further columns of the rows, by their ``id``: settings of the recipes that they ran. What a row
        says itself wins.
    progress : callable, optional
        Told how many rows are predicted, and of how many.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.validate("examples/kernels_a100.csv")
    >>> found.total.evaluated, found.total.median_abs_error < 0.2
    (8, True)
    """
    job = draft_of(job)
    shown = [name.strip() for name in by.split(",")] if isinstance(by, str) else by
    return validate_file(expand(path), cluster, shown, cv, kind=kind, job=job, recipes=recipes, progress=progress)
