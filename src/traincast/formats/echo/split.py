"""Order the pieces of a rank's trace by the part of the pipeline they belong to.

The result is what a rank does before its first microbatch, in the forward and backward of each,
and at the end of the step, with the host's gaps between traced operations kept as gaps.
"""

from dataclasses import dataclass, field

from traincast.formats.echo.fields import resolved_s
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.meetings import OPTIMIZER
from traincast.formats.echo.pieces import Pieces
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.schedules.plan import SlotKind
from traincast.workload.builder import Place, host_op, wait_op
from traincast.workload.ops import Op
from traincast.workload.words import Phase, Stream

BUCKET = "ddp_grad_comm"
"""Operation that is one gradient bucket, launched while a backward runs (traces of 2026)."""

_SLOTS = {"forward_step": SlotKind.F, "backward_step": SlotKind.BW}
_RECEIVES = {"forward_step": "recv_forward", "backward_step": "recv_backward"}

SlotKey = tuple[SlotKind, int]


@dataclass(slots=True)
class RankWork:
    """A rank's step as template operations, by the part of the pipeline they belong to."""

    start: list[Op] = field(default_factory=list)
    slots: dict[SlotKey, list[Op]] = field(default_factory=dict)
    """Forward and backward of each microbatch, in the order of the trace."""
    end: list[Op] = field(default_factory=list)
    before_recv: dict[tuple[bool, int], list[Op]] = field(default_factory=dict)
    """Host gaps before the receives of activations (True) and gradients (False), by microbatch."""


@dataclass(slots=True)
class Splitter:
    """A walk over one rank's trace.

    Parameters
    ----------
    pieces : Pieces
        How to take an operation apart.
    rank, file : int
        The rank, and the index of its input file.
    stage, stages : int
        Its pipeline stage, and how many there are.
    offset_s : float
        What to subtract from the rank's clock to be on the run's.
    """

    pieces: Pieces
    rank: int
    file: int
    stage: int
    stages: int
    offset_s: float
    work: RankWork = field(init=False, default_factory=RankWork)
    untraced_waits: list[TraceOp] = field(init=False, default_factory=list)
    """Operations before which the rank waited for a message that was not traced."""
    _before: list[Op] = field(init=False, default_factory=list)
    """What belongs to the slot that comes next."""
    _buckets: list[TraceOp] = field(init=False, default_factory=list)

    def split(self, ops: tuple[TraceOp, ...]) -> RankWork:
        """Return the rank's work, by the part of the pipeline."""
        target = self.work.start
        # A profile's host has nothing to do with a run's: no gaps there.
        now_s: float | None = None if self.pieces.profile else 0.0
        unknown = self._unknown_gaps(ops)
        for index, op in enumerate(ops):
            gap = [] if index in unknown else self._gap(op, now_s)
            if op.op == BUCKET:
                self._buckets.append(op)
                continue
            if op.end_s is not None:
                now_s = op.end_s - self.offset_s
            if op.op in ("recv_forward", "recv_backward"):
                self.work.before_recv.setdefault((op.op == "recv_forward", op.batch_id or 0), []).extend(gap)
            elif op.op in MESSAGES:
                target.extend(gap)
            elif op.op == "get_batch":
                self._before += gap + self.pieces.of(op, self.rank, self.file)
            else:
                target = self._place(op, gap, target)
        self.work.end.extend(self._before)
        return self.work

    def _place(self, op: TraceOp, gap: list[Op], target: list[Op]) -> list[Op]:
        """Put an operation where it belongs; return that place."""
        if op.op in _SLOTS:
            target = self.work.slots.setdefault((_SLOTS[op.op], op.batch_id or 0), [])
            target.extend(self._before)
            self._before = []
        elif op.op != "loss_func":
            target = self.work.end
        launches = self._take_buckets() if op.op == "backward_step" else []
        if op.op == OPTIMIZER and any(each.part == BUCKET for slot in self.work.slots.values() for each in slot):
            target.append(wait_op(Stream.DP, place=Place(self.file, op.line), part=op.op))
        target.extend(gap + self.pieces.of(op, self.rank, self.file, launches))
        return target

    def _take_buckets(self) -> list[TraceOp]:
        taken, self._buckets = self._buckets, []
        return taken

    def _gap(self, op: TraceOp, now_s: float | None) -> list[Op]:
        """Return the host gap before an operation, if there is one."""
        if now_s is None or op.start_s is None:
            return []
        gap_s = resolved_s(op.start_s - self.offset_s - now_s, op.start_s)
        if gap_s <= 0:
            return []
        return [host_op("host_gap", Phase.STEP, gap_s, place=Place(self.file, op.line))]

    def _unknown_gaps(self, ops: tuple[TraceOp, ...]) -> set[int]:
        """Return the operations before which a message was awaited that the trace leaves out.

        Such a gap is waiting, and the simulation finds its own.
        """
        unknown: set[int] = set()
        since: list[int] = []
        received: set[str] = set()
        for index, op in enumerate(ops):
            since.append(index)
            if op.op in _RECEIVES.values() and not op.is_placeholder:
                received.add(op.op)
            if op.op not in _SLOTS:
                continue
            outer = 0 if op.op == "forward_step" else self.stages - 1
            if self.stage != outer and _RECEIVES[op.op] not in received:
                unknown.update(each for each in since if ops[each].op not in ("send_forward", "send_backward"))
                self.untraced_waits.append(op)
            since, received = [], set()
        return unknown
