"""What files of single operations share: which simulated ranks they show, and the words for an operation.

Letters: R simulated ranks, T template operations.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from traincast.errors import ConfigError
from traincast.simulation.result import Result
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

if TYPE_CHECKING:
    from traincast.analysis.timed_program import TimedProgram
    from traincast.workload.ops import OpTable
    from traincast.workload.program import Program

_AT_ONCE = 20_000
"""Operations that are written together, to bound the memory."""


class RankChoice(NamedTuple):
    """Chosen ranks, and why these."""

    indices: tuple[int, ...]
    """Indices into the program's ``rank_R``, ascending."""
    reason: str
    """For the reader of the file."""


def simulated(result: Result) -> "TimedProgram":
    """Return the operations of a result with their times.

    Raises
    ------
    ConfigError
        If the result holds none, as one read back from JSON.
    """
    if result.timed is None:
        raise ConfigError("this result does not hold single operations; simulate again to get them")
    return result.timed


def choose_ranks(result: Result, size_R: Sequence[int], limit: int, unit: str) -> RankChoice:
    """Choose whole ranks whose sizes together stay within a limit.

    The ranks that explain a step come first: the first rank, the last, the one ending last,
    the one computing longest; then the others in order, as many as fit. One rank is always
    shown, however large.

    `size_R` says how many lines or slices (the `unit`) each simulated rank would take.
    """
    if sum(size_R) <= limit:
        return RankChoice(tuple(range(len(size_R))), "every simulated rank is shown")
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
    return RankChoice(tuple(sorted(chosen)), reason)


def _by_interest(result: Result, count: int) -> list[int]:
    program = simulated(result).program
    index_of = {int(rank): index for index, rank in enumerate(program.rank_R)}
    known = [rank for rank in result.ranks if rank.rank in index_of]
    first = [0, count - 1]
    if known:
        # max() keeps the first of equals: the lowest rank.
        first.append(index_of[max(known, key=lambda rank: rank.end_s).rank])
        first.append(index_of[max(known, key=lambda rank: rank.compute_s).rank])
    return list(dict.fromkeys([*first, *range(count)]))


def pieces(program: "Program", index: int) -> Iterator[slice]:
    """Yield the operations of a simulated rank in program order, in pieces that fit in memory."""
    span = program.rank_slice(index)
    for start in range(span.start, span.stop, _AT_ONCE):
        yield slice(start, min(start + _AT_ONCE, span.stop))


class Described(NamedTuple):
    """A template operation in words; None for what does not apply."""

    phase: str
    kind: str
    name: str
    layer: int | None
    stream: str
    group: str | None
    operation: str | None
    size_bytes: int | None


def described(ops: "OpTable") -> list[Described]:
    """Return every template operation in words, [T]."""
    return [
        Described(
            Phase(ops.phase_T[row]).name.lower(),
            Kind(ops.kind_T[row]).name.lower(),
            ops.name_T[row],
            _known(ops.layer_T[row]),
            Stream(ops.stream_T[row]).name.lower(),
            None if ops.group_T[row] == Group.NONE else Group(ops.group_T[row]).name.lower(),
            None if ops.operation_T[row] == Operation.NONE else Operation(ops.operation_T[row]).name.lower(),
            _known(ops.size_bytes_T[row]),
        )
        for row in range(len(ops))
    ]


def _known(value: int) -> int | None:
    return int(value) if value >= 0 else None
