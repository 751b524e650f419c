"""Join the operations that must meet: the members of a collective, a send and its receive.

The k-th collective of a rank on a group meets the k-th of every other member: of the same
operation, and of the same size unless it allows unequal ones (`OpTable.may_differ_T`). A message is
known by its pipeline, direction, boundary between virtual stages, and microbatch.

Letters: N operations, G groups, J operations of joints.
"""

import numpy as np

from traincast.errors import ProgramError
from traincast.workload.ops import IntArray
from traincast.workload.program import Program
from traincast.workload.words import Kind, Operation, Phase


def joints(program: Program, members_G: IntArray) -> IntArray:
    """Return the joint of every operation of a program.

    Parameters
    ----------
    program : Program
        Operations with their groups; its own `joint_N` is not read.
    members_G : int array [G]
        Simulated members of each group.

    Returns
    -------
    int array [N]
        Joint of each operation; -1 where it meets no other simulated operation.

    Raises
    ------
    ProgramError
        If members of a collective disagree, or a message lacks its send or receive; the
        message names the operations.
    """
    joint_N = np.full(len(program), -1, dtype=np.int32)
    kind_N = program.ops.kind_T[program.row_N]
    collective = np.flatnonzero(kind_N == Kind.COLLECTIVE)
    collective = collective[members_G[program.group_N[collective]] > 1]
    used = 0
    if len(collective):
        joint_N[collective] = _join_collectives(program, collective, members_G)
        used = int(joint_N.max()) + 1
    messages = np.flatnonzero((kind_N == Kind.SEND) | (kind_N == Kind.RECV))
    if len(messages):
        joint_N[messages] = _join_messages(program, messages) + used
    return joint_N


def _join_collectives(program: Program, at_J: IntArray, members_G: IntArray) -> IntArray:
    ops, group_J, mine_J = program.ops, program.group_N[at_J].astype(np.int64), program.row_N[at_J]
    occurrence_J = _occurrences(program.rank_N[at_J].astype(np.int64) * len(members_G) + group_J)
    key_J = group_J * (int(occurrence_J.max()) + 1) + occurrence_J
    _, first, inverse_J, count = np.unique(key_J, return_index=True, return_inverse=True, return_counts=True)
    lead_J = mine_J[first][inverse_J]
    differ_T = ops.may_differ_T
    same_J = ops.operation_T[mine_J] == ops.operation_T[lead_J]
    same_J &= (ops.size_bytes_T[mine_J] == ops.size_bytes_T[lead_J]) | (differ_T[mine_J] & differ_T[lead_J])
    if not same_J.all():
        wrong = int(np.flatnonzero(~same_J)[0])
        raise ProgramError(
            f"members of a collective disagree: {_describe(program, int(lead_J[wrong]))} "
            f"meets {_describe(program, int(mine_J[wrong]))}; every member must run the same communications in the "
            "same order (is an operation missing from one of the ranks?)"
        )
    expected = members_G[group_J[first]]
    lonely = np.flatnonzero(count != expected)
    if len(lonely):
        raise ProgramError(
            f"{_describe(program, int(mine_J[first[lonely[0]]]))} waits for {expected[lonely[0]]} members, "
            f"but only {count[lonely[0]]} take part (is an operation missing from one of the ranks?)"
        )
    joint_J: IntArray = inverse_J
    return joint_J


def _join_messages(program: Program, at_J: IntArray) -> IntArray:
    ops, row_J = program.ops, program.row_N[at_J]
    boundary_J, microbatch_J = program.virtual_stage_N[at_J], program.microbatch_N[at_J]
    columns = (program.group_N[at_J], boundary_J, microbatch_J, ops.phase_T[row_J] == Phase.BACKWARD)
    key_J = np.ravel_multi_index([each.astype(np.int64) for each in columns], [int(each.max()) + 1 for each in columns])
    keys, inverse_J = np.unique(key_J, return_inverse=True)
    sends = np.bincount(inverse_J, ops.kind_T[row_J] == Kind.SEND, len(keys))
    receives = np.bincount(inverse_J, ops.kind_T[row_J] == Kind.RECV, len(keys))
    broken = np.flatnonzero((sends != 1) | (receives != 1))
    if len(broken):
        at = int(np.flatnonzero(inverse_J == broken[0])[0])
        raise ProgramError(
            f"{_describe(program, int(row_J[at]))} of microbatch {microbatch_J[at]} at virtual stage {boundary_J[at]} "
            f"has {int(sends[broken[0]])} sends and {int(receives[broken[0]])} receives; it needs one of each"
        )
    return inverse_J


def _occurrences(key_J: IntArray) -> IntArray:
    """Return how many equal keys stand before each key."""
    order = np.argsort(key_J, kind="stable")
    sorted_J = key_J[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_J[1:] != sorted_J[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(sorted_J)]]))
    occurrence_J = np.empty(len(key_J), dtype=np.int64)
    occurrence_J[order] = np.arange(len(key_J)) - np.repeat(starts, lengths)
    return occurrence_J


def _describe(program: Program, row: int) -> str:
    ops = program.ops
    size, operation = int(ops.size_bytes_T[row]), Operation(int(ops.operation_T[row])).name.lower()
    shown = f"{size} bytes" if size >= 0 else "unknown size"
    return f"{ops.name_T[row]!r}{program.place(row)}, {operation} of {shown}"
