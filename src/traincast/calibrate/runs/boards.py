"""Which runs are shown together: boards of the accuracy page, repeats of a layout, pairs that differ in one thing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from traincast.calibrate.runs.run import GROUPINGS, RunRow, precision_class

BOARD = "board"
"""Grouping by what the accuracy page shows: pretraining runs with a full layout (``dense 16 bit`` ... ``experts``),
those without, adapters, and of sweeps over layouts the fastest repeats (``best``) and all others."""


def labels_of(rows: Sequence[RunRow]) -> dict[str, tuple[str, ...]]:
    """Return the group of each run in each of `GROUPINGS` and `BOARD`."""
    best = {row.id for row in fastest_repeats(rows)}
    labels = {name: tuple(row.groups[name] for row in rows) for name in GROUPINGS}
    return labels | {BOARD: tuple(_board(row, best) for row in rows)}


def fastest_repeats(runs: Iterable[RunRow]) -> tuple[RunRow, ...]:
    """Return the fastest of the runs that are repeats of one layout (`RunRow.repeat_of`); others are left out."""
    best: dict[str, tuple[float, RunRow]] = {}
    for run in runs:
        if run.measured_s is None or not run.repeat_of:
            continue
        if run.repeat_of not in best or run.measured_s < best[run.repeat_of][0]:
            best[run.repeat_of] = run.measured_s, run
    return tuple(run for _, run in best.values())


def _board(row: RunRow, best: set[str]) -> str:
    if row.sweep:
        return "best" if row.id in best else "others"
    if not row.full_layout:
        return "layout not full" if row.groups["task"] == "pretrain" else row.groups["task"]
    if row.groups["moe"] == "moe":
        return "experts"
    precision = row.groups["precision"]
    return f"dense {'16 bit' if precision in ('bf16', 'fp16') else precision}"


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
