"""Join what must meet: the members of a collective, a send and its receive.

Whoever lays a program out says which operations meet, by a number that those of one rendezvous share; here it is
checked that they can. Members of a collective run the same operation, of the same size unless it allows unequal ones
(`OpTable.may_differ_T`), and each of them once; a message has one send and one receive.

Letters: N operations, J operations that meet, G groups.
"""

import numpy as np

from traincast.errors import ProgramError
from traincast.workload.ops import IntArray
from traincast.workload.program import Program
from traincast.workload.words import Kind, Operation

_MOST_KEYS = 2**62
"""Keys that fit into 64 bits with room to spare."""


def join_collectives(
    program: Program, at_J: IntArray, number_J: IntArray, members_G: IntArray, *, cut: bool = False
) -> IntArray:
    """Return a number 0, 1, ... for each rendezvous of collectives, [J].

    Parameters
    ----------
    program : Program
        What runs.
    at_J, number_J : int array [J]
        Its collectives with several members, and numbers that those share that meet.
    members_G : int array [G]
        Members of each group that take part.
    cut : bool
        Whether some of these may be missing, because their records begin later or end earlier.

    Raises
    ------
    ProgramError
        If members disagree, or one is missing.
    """
    ops, row_J = program.ops, program.row_N[at_J]
    _, first, inverse_J, count = np.unique(number_J, return_index=True, return_inverse=True, return_counts=True)
    lead_J = row_J[first][inverse_J]
    differ_T = ops.may_differ_T
    same_J = ops.operation_T[row_J] == ops.operation_T[lead_J]
    same_J &= (ops.size_bytes_T[row_J] == ops.size_bytes_T[lead_J]) | (differ_T[row_J] & differ_T[lead_J])
    if not same_J.all():
        wrong = int(np.flatnonzero(~same_J)[0])
        raise ProgramError(
            f"members of a collective disagree: {_describe(program, int(at_J[first][inverse_J][wrong]))} "
            f"meets {_describe(program, int(at_J[wrong]))}; every member must run the same communications in the "
            "same order (is an operation missing from one of the ranks?)"
        )
    expected = members_G[program.group_N[at_J[first]]]
    lonely = np.flatnonzero((count < expected) & (not cut) | (count > expected))
    if len(lonely):
        raise ProgramError(
            f"{_describe(program, int(at_J[first[lonely[0]]]))} waits for {expected[lonely[0]]} members, "
            f"but only {count[lonely[0]]} take part (is an operation missing from one of the ranks?)"
        )
    rendezvous_J: IntArray = inverse_J
    return rendezvous_J


def join_messages(program: Program, at_J: IntArray, number_J: IntArray) -> IntArray:
    """Return a number 0, 1, ... for each message, [J], given numbers that its send and its receive share.

    Raises
    ------
    ProgramError
        If a send lacks its receive, or a receive its send.
    """
    kind_J = program.ops.kind_T[program.row_N[at_J]]
    found, inverse_J = np.unique(number_J, return_inverse=True)
    sends = np.bincount(inverse_J, kind_J == Kind.SEND, len(found))
    receives = np.bincount(inverse_J, kind_J == Kind.RECV, len(found))
    broken = np.flatnonzero((sends != 1) | (receives != 1))
    if len(broken):
        at = int(at_J[np.flatnonzero(inverse_J == broken[0])[0]])
        stage, microbatch = int(program.virtual_stage_N[at]), int(program.microbatch_N[at])
        where = f" of microbatch {microbatch} at virtual stage {stage}" if stage >= 0 else ""
        raise ProgramError(
            f"{_describe(program, at)}{where} "
            f"has {int(sends[broken[0]])} sends and {int(receives[broken[0]])} receives; it needs one of each"
        )
    return inverse_J


def keys(*columns_J: IntArray) -> IntArray:
    """Return a number for each row of some columns, equal for equal rows, [J]."""
    key_J, span = np.zeros(len(columns_J[0]), dtype=np.int64), 1
    for column_J in columns_J:
        code_J = column_J.astype(np.int64)
        low = int(code_J.min(initial=0))
        width = int(code_J.max(initial=0)) - low + 1
        if span * width >= _MOST_KEYS:
            key_J = np.unique(key_J, return_inverse=True)[1]
            values, code_J = np.unique(code_J, return_inverse=True)
            low, width = 0, len(values)
        key_J = key_J * width + (code_J - low)
        span = int(key_J.max(initial=0)) + 1
    return key_J


def occurrences(key_J: IntArray) -> IntArray:
    """Return how many equal keys stand before each key."""
    order = np.argsort(key_J, kind="stable")
    sorted_J = key_J[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_J[1:] != sorted_J[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(sorted_J)]]))
    occurrence_J = np.empty(len(key_J), dtype=np.int64)
    occurrence_J[order] = np.arange(len(key_J)) - np.repeat(starts, lengths)
    return occurrence_J


def _describe(program: Program, at: int) -> str:
    ops, row = program.ops, int(program.row_N[at])
    size, operation = int(ops.size_bytes_T[row]), Operation(int(ops.operation_T[row])).name.lower()
    shown = f"{size} bytes" if size >= 0 else "unknown size"
    return f"{ops.name_T[row]!r}{program.place_of(at)}, {operation} of {shown}"
