"""The expanded form: every operation of every simulated rank, and when it ran.

Letters: N operations, E edges, R simulated ranks, T template operations, G groups.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from traincast.workload.ops import BoolArray, FloatArray, IntArray, OpTable
from traincast.workload.words import Group, Stream

STREAMS_PER_RANK = len(Stream)

_BLOCK = 1 << 16
"""Operations of ranks that are looked at together."""


class GroupInstance(Struct, frozen=True):
    """One communication group with its real members, however many of them are simulated."""

    kind: Group
    members: IntArray
    """Ranks in the order of the group."""


Said = tuple[tuple[str, str], ...]


class Recorded(Struct, frozen=True, kw_only=True):
    """What every operation has of its own in a program that was recorded one by one (`traincast.workload.recorder`)."""

    queue_N: IntArray
    """In-order queue of its rank, such as a stream of the GPU; -1 for none: ordered by its edges alone."""
    duration_s_N: FloatArray
    """Seconds, instead of those of its template row; NaN where these count, or where it is to be estimated."""
    file_N: IntArray
    """Index into `Program.files`, -1 for none."""
    line_N: IntArray
    """1-based line, event or record of that file, 0 for none."""
    said_N: IntArray
    """Index into `said`, -1 for none."""
    span_s_N: FloatArray
    """Seconds that the input says it took, waiting and all, before times are brought into order; NaN for none."""
    clock_s_N: FloatArray
    """When it ended by the clock of its rank, in seconds; NaN for none."""
    said: tuple[Said, ...] = ()
    """What the input says besides, in the words of its format: names and texts."""


class Program(Struct, frozen=True, kw_only=True):
    """Operations of the simulated ranks as columns, rank after rank, each in program order.

    Rules of the order, all of them made explicit as edges or rendezvous:

    * operations of one stream of a rank run in order;
    * an operation starts no earlier than the end of the last *blocking* operation before it
      on its rank (its launch);
    * a WAIT also needs the last operation launched before it on the stream it waits for;
    * operations of one rendezvous (a collective's members, a send and its receive) start together,
      when the last of them arrives, and end together.
    """

    ops: OpTable
    files: tuple[str, ...] = ()
    """Input files, which `OpTable.file_T` counts."""
    row_N: IntArray
    """Template row of each operation."""
    rank_N: IntArray
    """Rank that runs it (a representative)."""
    microbatch_N: IntArray
    """-1 outside the microbatches."""
    virtual_stage_N: IntArray
    """Virtual stage; for a send or receive the one its message leaves in forward direction, those of a second
    model copy counted after the first; -1 outside."""
    peer_stage_N: IntArray
    """Stage at the other end of a send or receive; -1 for what is not a message."""
    group_N: IntArray
    """Index into `groups`; -1 for what is not communication."""
    rendezvous_N: IntArray
    """Rendezvous the operation belongs to; -1 for none (or only one simulated member)."""
    edge_src_E: IntArray
    """Sorted by source."""
    edge_dst_E: IntArray
    groups: tuple[GroupInstance, ...]
    rank_R: IntArray
    stage_R: IntArray
    represents_R: IntArray
    """Ranks that each simulated rank stands for, itself included."""
    op_ptr_R1: IntArray
    """Operations of rank_R[i] are op_ptr_R1[i] .. op_ptr_R1[i+1]-1."""
    compute_factor_N: FloatArray | None = None
    """Factor on compute durations (stragglers, jitter); None is 1 everywhere."""
    recorded: Recorded | None = None
    """Of a program whose operations were recorded one by one; None where templates were laid out."""

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.row_N)

    @property
    def stream_N(self) -> IntArray:
        """Stream of each operation, numbered over all simulated ranks."""
        counts_R = np.diff(self.op_ptr_R1)
        if self.recorded is None:
            offset_R = np.arange(len(self.rank_R), dtype=np.int32) * STREAMS_PER_RANK
            return self.ops.stream_T[self.row_N].astype(np.int32) + np.repeat(offset_R, counts_R)
        queue_N = self.recorded.queue_N.astype(np.int64)
        queues = int(queue_N.max(initial=0)) + 1
        stream_N = queue_N + np.repeat(np.arange(len(self.rank_R)) * queues, counts_R)
        return np.where(queue_N >= 0, stream_N, len(self.rank_R) * queues + np.arange(len(self)))

    @property
    def known_s_N(self) -> FloatArray:
        """What the input says of how long each operation takes, in seconds; NaN where it says nothing."""
        duration_N: FloatArray = self.ops.duration_s_T[self.row_N]
        if self.recorded is None:
            return duration_N
        return np.where(np.isnan(self.recorded.duration_s_N), duration_N, self.recorded.duration_s_N)

    @property
    def stage_N(self) -> IntArray:
        """Pipeline stage of each operation."""
        return np.repeat(self.stage_R, np.diff(self.op_ptr_R1))

    @property
    def blocking_N(self) -> BoolArray:
        """Whether each operation holds back those after it."""
        return self.ops.blocking_T[self.row_N]

    def place(self, row: int) -> str:
        """Return where a template operation stands in the input, as ``" (file:line)"``; empty where nowhere."""
        return self._shown(int(self.ops.file_T[row]), int(self.ops.line_T[row]))

    def place_of(self, op: int) -> str:
        """Return where an operation stands in the input, as `place` does for the template of several."""
        if self.recorded is None:
            return self.place(int(self.row_N[op]))
        return self._shown(int(self.recorded.file_N[op]), int(self.recorded.line_N[op]))

    def _shown(self, file: int, line: int) -> str:
        if not line:
            return ""
        return f" ({self.files[file]}:{line})" if 0 <= file < len(self.files) else f" (line {line})"

    def rank_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield runs of simulated ranks, from one index to another, whose operations fit into a processor's cache."""
        first, ranks = 0, len(self.rank_R)
        while first < ranks:
            until = int(np.searchsorted(self.op_ptr_R1, self.op_ptr_R1[first] + _BLOCK, side="right")) - 1
            last = min(max(until, first + 1), ranks)
            yield first, last
            first = last

    def rank_slice(self, index: int) -> slice:
        """Operations of the simulated rank at that index of `rank_R`."""
        return slice(int(self.op_ptr_R1[index]), int(self.op_ptr_R1[index + 1]))


class Timeline(Struct, frozen=True, kw_only=True):
    """When each operation of a program ran, in seconds from the start of the step.

    ``ready_s <= start_s <= end_s``: an operation is ready when its stream and its edges let it
    go, starts when the other members of its rendezvous are ready too, and runs `duration_s`.
    """

    ready_s_N: FloatArray
    start_s_N: FloatArray
    end_s_N: FloatArray
    duration_s_N: FloatArray

    @property
    def step_s(self) -> float:
        """Time of the whole step, from the first start to the last end."""
        return float(self.end_s_N.max(initial=0.0))
