"""Join the operations that must meet: the members of a collective, a send and its receive.

The k-th collective of a rank on a group meets the k-th of every other member. A message is
known by its pipeline, direction, boundary between virtual stages, and microbatch.

Letters: N operations, G groups, J operations of joints.
"""

import numpy as np

from traincast.errors import ProgramError
from traincast.workload.ops import IntArray, OpTable
from traincast.workload.words import Kind, Operation, Phase


def join(
    ops: OpTable,
    row_N: IntArray,
    index_N: IntArray,
    group_N: IntArray,
    boundary_N: IntArray,
    microbatch_N: IntArray,
    members_G: IntArray,
) -> IntArray:
    """Number the joints of a program.

    Parameters
    ----------
    ops : OpTable
        Template operations.
    row_N, index_N, group_N, boundary_N, microbatch_N : int array [N]
        Per operation: template row, index of its simulated rank, group, virtual stage its
        message leaves, microbatch.
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
    joint_N = np.full(len(row_N), -1, dtype=np.int32)
    kind_N = ops.kind_T[row_N]
    collective = np.flatnonzero((kind_N == Kind.COLLECTIVE) & (members_G[group_N] > 1))
    used = _join_collectives(joint_N, collective, ops, row_N, index_N, group_N, members_G)
    messages = np.flatnonzero((kind_N == Kind.SEND) | (kind_N == Kind.RECV))
    _join_messages(joint_N, messages, ops, row_N, group_N, boundary_N, microbatch_N, used)
    return joint_N


def _join_collectives(
    joint_N: IntArray,
    at_J: IntArray,
    ops: OpTable,
    row_N: IntArray,
    index_N: IntArray,
    group_N: IntArray,
    members_G: IntArray,
) -> int:
    if not len(at_J):
        return 0
    occurrence_J = _occurrences(index_N[at_J].astype(np.int64) * len(members_G) + group_N[at_J])
    key_J = group_N[at_J].astype(np.int64) * (int(occurrence_J.max()) + 1) + occurrence_J
    keys, first, inverse_J, count = np.unique(key_J, return_index=True, return_inverse=True, return_counts=True)
    lead_J = row_N[at_J[first]][inverse_J]
    mine_J = row_N[at_J]
    same = (ops.operation_T[mine_J] == ops.operation_T[lead_J]) & (ops.size_bytes_T[mine_J] == ops.size_bytes_T[lead_J])
    if not same.all():
        wrong = int(np.flatnonzero(~same)[0])
        raise ProgramError(
            f"members of a collective disagree: {_describe(ops, int(lead_J[wrong]))} "
            f"meets {_describe(ops, int(mine_J[wrong]))}"
        )
    lonely = np.flatnonzero(count != members_G[group_N[at_J[first]]])
    if len(lonely):
        at = int(at_J[first[lonely[0]]])
        raise ProgramError(
            f"{_describe(ops, int(row_N[at]))} waits for {members_G[group_N[at]]} members, "
            f"but only {count[lonely[0]]} take part"
        )
    joint_N[at_J] = inverse_J
    return len(keys)


def _join_messages(
    joint_N: IntArray,
    at_J: IntArray,
    ops: OpTable,
    row_N: IntArray,
    group_N: IntArray,
    boundary_N: IntArray,
    microbatch_N: IntArray,
    used: int,
) -> None:
    if not len(at_J):
        return
    backward_J = (ops.phase_T[row_N[at_J]] == Phase.BACKWARD).astype(np.int64)
    boundaries, microbatches = int(boundary_N[at_J].max()) + 1, int(microbatch_N[at_J].max()) + 1
    key_J = (group_N[at_J] * boundaries + boundary_N[at_J]).astype(np.int64) * microbatches + microbatch_N[at_J]
    key_J = key_J * 2 + backward_J
    keys, inverse_J = np.unique(key_J, return_inverse=True)
    sends = np.bincount(inverse_J, ops.kind_T[row_N[at_J]] == Kind.SEND, len(keys))
    receives = np.bincount(inverse_J, ops.kind_T[row_N[at_J]] == Kind.RECV, len(keys))
    broken = np.flatnonzero((sends != 1) | (receives != 1))
    if len(broken):
        at = int(at_J[np.flatnonzero(inverse_J == broken[0])[0]])
        raise ProgramError(
            f"{_describe(ops, int(row_N[at]))} of microbatch {microbatch_N[at]} at virtual stage {boundary_N[at]} "
            f"has {int(sends[broken[0]])} sends and {int(receives[broken[0]])} receives; it needs one of each"
        )
    joint_N[at_J] = inverse_J + used


def _occurrences(key_J: IntArray) -> IntArray:
    """Number equal keys 0, 1, 2 ... in their order."""
    order = np.argsort(key_J, kind="stable")
    sorted_J = key_J[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_J[1:] != sorted_J[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(sorted_J)]]))
    occurrence_J = np.empty(len(key_J), dtype=np.int64)
    occurrence_J[order] = np.arange(len(key_J)) - np.repeat(starts, lengths)
    return occurrence_J


def _describe(ops: OpTable, row: int) -> str:
    operation = Operation(int(ops.operation_T[row])).name.lower()
    line = f" (line {ops.line_T[row]})" if ops.line_T[row] else ""
    return f"{ops.name_T[row]!r}{line}, {operation} of {ops.size_bytes_T[row]} bytes"
