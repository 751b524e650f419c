"""Which board of the accuracy page a run is shown on."""

from collections.abc import Iterable, Sequence

from traincast.calibrate.runs.run import GROUPINGS, RunRow

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
