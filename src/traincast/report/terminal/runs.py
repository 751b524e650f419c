"""Long runs of like lines of a table: which to leave out, and how to say so."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.report.terminal.parts import indented, text

ALIKE = 0.01
"""Lines are alike if their times differ by less than this share of the step."""

_LONGEST_RUN = 16
_KEPT = 2
_LEGENDS = 2


def hidden_runs(times: Sequence[Sequence[float]], tolerance_s: float) -> list[range]:
    """Return the positions to leave out: the middles of long runs of like lines.

    Parameters
    ----------
    times : sequence of sequence of float
        The times of each line, in seconds.
    tolerance_s : float
        How far a line's times may be from those of the first line of its run.

    Returns
    -------
    list of range
        Positions, in rising order.
    """
    hidden, start = [], 0
    for position in range(1, len(times) + 1):
        if position < len(times) and _alike(times[start], times[position], tolerance_s):
            continue
        if position - start > _LONGEST_RUN:
            hidden.append(range(start + _KEPT, position - _KEPT))
        start = position
    return hidden


def shorten(rows: Sequence[Sequence[str]], hidden: Sequence[range]) -> list[Sequence[str]]:
    """Return the rows with a row of an ellipsis in the place of each hidden run."""
    kept: list[Sequence[str]] = []
    for position, row in enumerate(rows):
        run = next((run for run in hidden if position in run), None)
        if run is None:
            kept.append(row)
        elif position == run.start:
            kept.append(["...", *[""] * (len(row) - 1)])
    return kept


def legend(kind: str, numbers: Sequence[int], hidden: Sequence[range]) -> Iterator[RenderableType]:
    """Yield what to say of the lines that were left out.

    Parameters
    ----------
    kind : str
        What a line is: ``"stage"`` or ``"rank"``.
    numbers : sequence of int
        Its number on each line.
    hidden : sequence of range
        The positions that were left out.
    """
    told = []
    for run in hidden:
        model, first, final = (numbers[position] for position in (run.start - _KEPT, run.start, run.stop - 1))
        told.append(f"... {kind}s {first} to {final} are like {kind} {model}")
    if len(told) > _LEGENDS:
        told = [f"... {kind}s like the two above and below them"]
    for line in told:
        yield indented(text(f"{line}, within {100 * ALIKE:.0f} % of the step", "dim"))


def _alike(one: Sequence[float], other: Sequence[float], tolerance_s: float) -> bool:
    return all(abs(a - b) <= tolerance_s for a, b in zip(one, other, strict=True))
