"""Which simulated ranks a file of single operations shows. Letter: R simulated ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from traincast.errors import ConfigError
from traincast.simulation.result import Result

if TYPE_CHECKING:
    from traincast.workload.program import Program, Timeline


class Choice(NamedTuple):
    """Chosen ranks, and why these."""

    indices: tuple[int, ...]
    """Indices into the program's ``rank_R``, ascending."""
    reason: str
    """For the reader of the file."""


def simulated(result: Result) -> "tuple[Program, Timeline]":
    """Return the operations of a result and their times.

    Raises
    ------
    ConfigError
        If the result holds none, as one read back from JSON.
    """
    if result.program is None or result.timeline is None:
        raise ConfigError("this result holds no single operations; simulate again to get them")
    return result.program, result.timeline


def choose_ranks(result: Result, size_R: Sequence[int], limit: int, unit: str) -> Choice:
    """Choose whole ranks whose sizes together stay within a limit.

    The ranks that explain a step come first: the first rank, the last, the one ending last,
    the one computing longest; then the others in order, as many as fit. One rank is always
    shown, however large.

    `size_R` says how many lines or slices (the `unit`) each simulated rank would take.
    """
    if sum(size_R) <= limit:
        return Choice(tuple(range(len(size_R))), "every simulated rank is shown")
    chosen: list[int] = []
    left = limit
    for index in _by_interest(result, len(size_R)):
        if size_R[index] <= left or not chosen:
            chosen.append(index)
            left -= size_R[index]
    reason = (
        f"at most {limit:,} {unit}: the first rank, the last, the one ending last, the one computing longest, "
        "then in order, as many as fit"
    )
    return Choice(tuple(sorted(chosen)), reason)


def _by_interest(result: Result, count: int) -> list[int]:
    program, _ = simulated(result)
    index_of = {int(rank): index for index, rank in enumerate(program.rank_R)}
    known = [rank for rank in result.ranks if rank.rank in index_of]
    first = [0, count - 1]
    if known:
        # max() keeps the first of equals: the lowest rank.
        first.append(index_of[max(known, key=lambda rank: rank.end_s).rank])
        first.append(index_of[max(known, key=lambda rank: rank.compute_s).rank])
    return list(dict.fromkeys([*first, *range(count)]))
