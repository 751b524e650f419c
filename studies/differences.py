"""What was said of a change, and what it was: all pairs of published runs that differ in one thing.

    python studies/differences.py [--kind WORDS] [--worst N] [--by GROUPS]

Prints the board (`judges/differences.py`): of each kind of change how far what was said is off, in points, whether the
sign of a clear one was right, and how many of the measured changes lie inside their interval; then what changes of each
size that was said turned out to be, and the worst pairs of each kind. ``--by source+model`` leaves out of the fits what
is of one source and model, and not all of the source.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from fit_differences import Told, told_pairs
from judges.differences import CLEAR, boards_of, left_out_spreads, worst_of

_SIZES = (-0.5, -0.2, -0.1, -0.05, -0.03, -0.01, 0.01, 0.03, 0.05, 0.1, 0.2, 0.5)
"""Ends of the classes of changes as they were said."""


def lines(told: Sequence[Told], worst: int) -> Iterator[str]:
    """Yield the board, what changes of each size turned out to be, and the worst of each kind."""
    yield f"{len(told)} pairs; a change is clear from {CLEAR:.0%} on"
    for board in boards_of(told):
        figures = "  ".join(f"{name} {value:.1f}" for name, value in board.figures.items())
        yield f"  {board.name}: {board.rows} pairs, {figures}"
    changes = [each for each in told if not each.is_one_job]
    spread_J = left_out_spreads(changes)
    yield "when we said this, it was that (median, and 80 % of them):"
    yield from map(_indented, _by_size(changes))
    for kind in sorted({each.pair.kind for each in changes}):
        mine = [each for each in changes if each.pair.kind == kind]
        yield f"{kind}, the worst of {len(mine)}:"
        for each in list(worst_of(mine))[:worst]:
            yield _indented(line(each, float(spread_J[changes.index(each)])))


def _by_size(told: Sequence[Told]) -> Iterator[str]:
    said, measured = (np.array([each.ratio - 1 for each in told]), np.array([each.pair.ratio - 1 for each in told]))
    class_J = np.digitize(said, _SIZES)
    for place in range(len(_SIZES) + 1):
        mine_J = class_J == place
        if mine_J.any():
            low, middle, high = map(_points, np.quantile(measured[mine_J], (0.1, 0.5, 0.9)))
            yield f"{_points(np.median(said[mine_J]))}: {middle} ({low} to {high}), {mine_J.sum()} pairs"


def line(each: Told, spread: float) -> str:
    """Return a pair in a line; `spread` is how far the logarithm of its ratio may be off."""
    low, high = (_points(each.ratio * np.exp(sign * spread) - 1) for sign in (-1, 1))
    before, after = each.pair.before.run, each.pair.after.run
    return (
        f"said {_points(each.ratio - 1)} ({low} to {high}), was {_points(each.pair.ratio - 1)}: {before.id} -> "
        f"{after.id}, {before.groups.model} on {before.request.gpus} {before.groups.gpu}, {each.pair.text}"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _indented(text: str) -> str:
    return f"  {text}"


def main() -> int:
    """Print the board; return the exit code."""
    parser = argparse.ArgumentParser(description="hold what was said of changes against what they were")
    parser.add_argument("--kind", default="", metavar="WORDS", help="only kinds that hold all of these words")
    parser.add_argument("--worst", type=int, default=5, help="pairs of each kind that are shown")
    parser.add_argument("--by", default="source", metavar="GROUPS", help="what is left out of the fits")
    given = parser.parse_args()
    told = [each for each in told_pairs(by=given.by) if all(word in each.pair.kind for word in given.kind.split())]
    print(*lines(told, given.worst), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
