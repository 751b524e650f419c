"""Pairs of published runs that differ in one thing alone: their ratio is known far better than either of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from traincast.calibrate.runs.run import RunRow, precision_class

_SAME = (
    "source",
    "source_url_or_repo_path",
    "model",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "experts",
    "topk",
    "moe_ffn",
    "seq_len",
    "micro_batch",
    "gpu",
    "gpus_per_node",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "sequence_parallel",
    "recompute",
    "framework",
    "interconnect",
    "x_task",
)
"""Columns that both runs of a pair share; an empty one is equal to an empty one."""


class Pair(NamedTuple):
    """Two runs; the ratio of interest is the second's step over the first's."""

    first: RunRow
    second: RunRow

    @property
    def measured_ratio(self) -> float:
        """Step of the second over that of the first, as measured; NaN where one did not run."""
        if self.first.measured_s is None or self.second.measured_s is None:
            return float("nan")
        return self.second.measured_s / self.first.measured_s


def weak_scaling_pairs(runs: Iterable[RunRow]) -> tuple[Pair, ...]:
    """Return each run paired with the smallest that is alike but for GPUs and batch, at the same batch per GPU.

    Parameters
    ----------
    runs : iterable of RunRow
        Runs with a step; others are left out.

    Returns
    -------
    tuple of Pair
        The smallest run first in each pair.
    """
    pairs = []
    for alike in _groups(runs, lambda run: (_printed(run, "precision"), _sharding(run), _batch_per_gpu(run))):
        ordered = sorted(alike, key=lambda run: (run.request.gpus, run.id))
        first = ordered[0]
        # Runs of one size are repeats: one of them stands for all.
        sizes = {run.request.gpus: run for run in reversed(ordered)}
        pairs += [Pair(first, run) for gpus, run in sorted(sizes.items()) if gpus > first.request.gpus]
    return tuple(pairs)


def precision_pairs(runs: Iterable[RunRow]) -> tuple[Pair, ...]:
    """Return each bf16 run paired with the fp8 run that is alike but for the precision.

    Parameters
    ----------
    runs : iterable of RunRow
        Runs with a step; others are left out.

    Returns
    -------
    tuple of Pair
        The bf16 run first.
    """
    pairs = []
    for alike in _groups(
        runs, lambda run: (run.request.gpus, run.request.global_batch, run.cells.get("zero_or_fsdp", ""))
    ):
        by_class: dict[str, RunRow] = {}
        for run in sorted(alike, key=lambda run: run.id):
            by_class.setdefault(precision_class(run.request.precision), run)
        if {"bf16", "fp8"} <= set(by_class):
            pairs.append(Pair(by_class["bf16"], by_class["fp8"]))
    return tuple(pairs)


def _groups(runs: Iterable[RunRow], further: Callable[[RunRow], tuple[object, ...]]) -> list[list[RunRow]]:
    """Return the runs that share `_SAME` and what `further` tells, where there are several."""
    found: defaultdict[tuple[object, ...], list[RunRow]] = defaultdict(list)
    for run in runs:
        if run.measured_s is not None:
            found[(*(_printed(run, name) for name in _SAME), *further(run))].append(run)
    return [alike for alike in found.values() if len(alike) > 1]


def _printed(run: RunRow, column: str) -> str:
    return run.cells.get(column, "")


def _batch_per_gpu(run: RunRow) -> float:
    return run.request.global_batch / run.request.gpus


def _sharding(run: RunRow) -> str:
    """Return the kind of sharding without its group, which grows with the GPUs."""
    return run.cells.get("zero_or_fsdp", "").rstrip("0123456789-()")
