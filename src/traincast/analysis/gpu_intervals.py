"""Find out where a GPU's time went (`traincast.analysis.gpu_time`), of any program that has run.

Letters: N operations of a rank, B borders between instants.
"""

import numpy as np

from traincast.analysis.breakdown import covered
from traincast.analysis.gpu_time import GpuTime, StreamIdle
from traincast.workload.ops import FloatArray, IntArray, distinct
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Kind, Stream
from traincast.workload.workload import Workload

KERNEL_WAIT_S = 30e-6
"""Pause between two kernels up to which it is the cost of starting one: HTA's consecutive_kernel_delay, which its code
compares with microseconds (its page calls them nanoseconds)."""

_COMMUNICATES = (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)


def gpu_times(program: Program, timeline: Timeline) -> tuple[GpuTime, ...]:
    """Return where the time of the GPU of each rank of `program.rank_R` went."""
    launched_N = _launched(program, timeline)
    stream_N = program.stream_N
    return tuple(_gpu_time(program, timeline, index, stream_N, launched_N) for index in range(len(program.rank_R)))


def recorded_gpu_time(workload: Workload | None) -> tuple[GpuTime, ...]:
    """Return where the measured time of each GPU of a recorded workload went; nothing where none was measured."""
    if workload is None or workload.program is None or workload.timeline is None:
        return ()
    return gpu_times(workload.program, workload.timeline)


def _gpu_time(program: Program, timeline: Timeline, index: int, stream_N: IntArray, launched_N: FloatArray) -> GpuTime:
    mine = program.rank_slice(index)
    kind_N, begin_N, end_N = program.ops.kind_T[program.row_N[mine]], timeline.ready_s_N[mine], timeline.end_s_N[mine]
    comm_N, copy_N = np.isin(kind_N, _COMMUNICATES), kind_N == Kind.COPY
    # A computation waits for nothing once it has begun.
    begin_N = np.where(comm_N, begin_N, timeline.start_s_N[mine])
    works_N = ((kind_N == Kind.COMPUTE) | comm_N | copy_N) & (end_N > begin_N)
    border_B = distinct(np.concatenate([begin_N[works_N], end_N[works_N]]))
    length_B = np.diff(border_B)

    compute_B, comm_B, copy_B = (
        covered(border_B, begin_N[chosen_N & works_N], end_N[chosen_N & works_N])
        for chosen_N in (kind_N == Kind.COMPUTE, comm_N, copy_N)
    )
    parts = (compute_B, comm_B & ~compute_B, copy_B & ~compute_B & ~comm_B, ~(compute_B | comm_B | copy_B))
    compute_s, exposed_comm_s, exposed_copy_s, idle_s = (float(length_B[part_B].sum()) for part_B in parts)
    return GpuTime(
        rank=int(program.rank_R[index]),
        total_s=float(length_B.sum()),
        compute_s=compute_s,
        exposed_comm_s=exposed_comm_s,
        exposed_copy_s=exposed_copy_s,
        idle_s=idle_s,
        comm_s=float(length_B[comm_B].sum()),
        copy_s=float(length_B[copy_B].sum()),
        streams=_idle(stream_N[mine][works_N], begin_N[works_N], end_N[works_N], launched_N[mine][works_N]),
    )


def _launched(program: Program, timeline: Timeline) -> FloatArray:
    """Return when the host launched each operation, [N]; minus infinity where that is not known.

    What the host launched may stand behind a gap on its stream.
    """
    host_N = program.ops.stream_T[program.row_N] == Stream.HOST
    from_host_E = host_N[program.edge_src_E]
    launched_N = np.full(len(program), -np.inf)
    np.maximum.at(launched_N, program.edge_dst_E[from_host_E], timeline.end_s_N[program.edge_src_E[from_host_E]])
    gap = np.flatnonzero((program.ops.kind_T[program.row_N] == Kind.GAP) & ~host_N)
    gap = gap[gap + 1 < len(program)]
    launched_N[gap + 1] = np.maximum(launched_N[gap + 1], launched_N[gap])
    return launched_N


def _idle(stream_N: IntArray, begin_N: FloatArray, end_N: FloatArray, launched_N: FloatArray) -> tuple[StreamIdle, ...]:
    """Return the pauses of each stream by their reason."""
    found = []
    for queue, stream in enumerate(distinct(stream_N).tolist()):
        own = np.flatnonzero(stream_N == stream)
        own = own[np.argsort(begin_N[own], kind="stable")]
        until_s = end_N[own][:-1]
        pause_s = np.maximum(begin_N[own][1:] - until_s, 0.0)
        host = launched_N[own][1:] > until_s
        kernel = ~host & (pause_s < KERNEL_WAIT_S)
        found.append(
            StreamIdle(
                stream=queue,
                host_wait_s=float(pause_s[host].sum()),
                kernel_wait_s=float(pause_s[kernel].sum()),
                other_s=float(pause_s[~host & ~kernel].sum()),
            )
        )
    return tuple(found)
