"""The program of one rank: its template, laid out in the order of a pipeline schedule.

A sequence is a list of pieces, and a piece is a segment of template operations at one virtual
stage and microbatch. Messages between stages are pieces too:

* blocking (1F1B): receive, work, send, one after the other; a send and a following receive with
  the same neighbour are posted together, as Megatron's fused calls do;
* overlapped (interleaved): a receive is posted before the work that precedes its use, and a
  send holds nobody back. Slots that run as one wait for the messages of both, and send when both are done.

Source: Megatron-LM, megatron/core/pipeline_parallel/schedules.py.
"""

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from traincast.schedules.plan import SchedulePlan, Slot, SlotKind, turns
from traincast.workload.builder import wait_op
from traincast.workload.ops import IntArray, Op, OpTable
from traincast.workload.words import Group, Kind, Operation, Phase, Provenance, Stream
from traincast.workload.workload import Template, Workload


class Message(NamedTuple):
    """A message that a slot receives or sends."""

    peer: int
    """Stage at the other end."""
    boundary: int
    """Virtual stage that it leaves in forward direction; those of a second model copy are counted after the first."""
    forward: bool
    """An activation; False for a gradient."""
    usual: bool
    """Whether it goes the way of a plain pipeline: activations to the next stage, gradients to the one before."""

    def stream(self, kind: Kind) -> Stream:
        """Return the stream that a SEND or RECV of it runs on.

        Each neighbour and direction has its own, so that a message to one neighbour never holds
        back one to the other.
        """
        return _STREAMS[kind, self.forward, self.usual]


_STREAMS = {
    (kind, forward, usual): Stream[
        f"{kind.name}_{'FORWARD' if forward else 'BACKWARD'}" + ("" if usual else "_REVERSED")
    ]
    for kind in (Kind.SEND, Kind.RECV)
    for forward in (True, False)
    for usual in (True, False)
}


def _message_of(plan: SchedulePlan, slot: Slot, stage: int, *, sends: bool) -> Message | None:
    """Return the message that a slot sends when it is done, or must receive first; None if it has none with others."""
    if slot.kind is SlotKind.W:
        return None
    placement_Q = plan.placement[slot.copy]
    forward = slot.kind is SlotKind.F
    q = slot.virtual_stage + (1 if forward == sends else -1)
    if not 0 <= q < len(placement_Q) or placement_Q[q] == stage:
        return None
    peer = placement_Q[q]
    source, target = (stage, peer) if sends else (peer, stage)
    usual = target == (source + (1 if forward else -1)) % len(plan.slots)
    boundary = min(q, slot.virtual_stage) + slot.copy * len(placement_Q)
    return Message(peer, boundary, forward, usual)


class Piece(NamedTuple):
    """A segment at one place of the pipeline."""

    segment: int
    virtual_stage: int
    microbatch: int
    peer: int = -1
    """Stage at the other end of a message."""


class _Phrase(NamedTuple):
    """What a pass does up to an exchange with experts: work, its launch (with what hides it of itself), the wait."""

    before: list[Piece]
    launch: list[Piece]
    wait: list[Piece]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Operations of one rank in program order, as columns."""

    row_L: IntArray
    virtual_stage_L: IntArray
    microbatch_L: IntArray
    peer_L: IntArray


class SequenceBuilder:
    """Lays out a workload's templates; adds the message operations to its table."""

    def __init__(self, workload: Workload, plan: SchedulePlan) -> None:
        self.workload, self.plan = workload, plan
        self.segments = list(workload.segments)
        self._extra: list[Op] = []
        self._single: dict[tuple[object, ...], int] = {}
        self._split: dict[tuple[int, SlotKind], int] = {}
        self._messages: dict[tuple[object, ...], Message | None] = {}
        self._cuts: dict[int, list[tuple[int, int, int]]] = {}

    def table(self) -> OpTable:
        """Return the workload's operations followed by those that were added."""
        return self.workload.ops.extended(self._extra)

    def sequence(self, template: Template, stage: int) -> Sequence:
        """Lay out what a rank of a stage does in a step."""
        slots = [slot for slot in self.plan.slots[stage] if self._runs(slot)]
        arrange = self._overlapped if self.plan.overlapped_p2p else self._blocking
        pieces = [Piece(int(template.start_P[stage]), -1, -1), *arrange(template, stage, slots)]
        pieces.append(Piece(int(template.end_P[stage]), -1, -1))
        return self._lay_out([piece for piece in pieces if piece.segment >= 0])

    def _runs(self, slot: Slot) -> bool:
        return slot.kind is SlotKind.F or not self.workload.forward_only

    def _lay_out(self, pieces: list[Piece]) -> Sequence:
        rows = [self.segments[piece.segment] for piece in pieces]
        lengths = [len(segment) for segment in rows]
        flat = np.fromiter(chain.from_iterable(pieces), np.int32, count=len(pieces) * len(Piece._fields))
        columns = flat.reshape(-1, len(Piece._fields))
        _, virtual_stage_L, microbatch_L, peer_L = np.repeat(columns, lengths, axis=0).T.copy()
        empty = np.zeros(0, dtype=np.int32)
        return Sequence(np.concatenate([empty, *rows]).astype(np.int32), virtual_stage_L, microbatch_L, peer_L)

    def _blocking(self, template: Template, stage: int, slots: list[Slot]) -> list[Piece]:
        pieces: list[Piece] = []
        last, fused = _last_forward(slots), False
        for slot, following in pairwise([*slots, None]):
            if slot is None:
                break
            if (message := self._message_of(slot, stage, sends=False)) and not fused:
                pieces += self._receive(template, message, slot)
            pieces += self._work(template, stage, slot, slot == last)
            sent = self._message_of(slot, stage, sends=True)
            reply = self._message_of(following, stage, sends=False) if following is not None else None
            fused = bool(sent and reply and sent.peer == reply.peer)
            if sent:
                pieces.append(self._message(template, sent, Kind.SEND, slot, blocking=not fused))
            if sent and reply and following is not None and fused:
                pieces += self._receive(template, reply, following)
                pieces.append(self._wait(sent.stream(Kind.SEND), slot))
        return pieces

    def _overlapped(self, template: Template, stage: int, slots: list[Slot]) -> list[Piece]:
        pieces: list[Piece] = []
        last = _last_forward(slots)
        for together, following in pairwise([(), *turns(slots), ()]):
            arriving = [(slot, self._message_of(slot, stage, sends=False)) for slot in together]
            pieces += [self._wait(each.stream(Kind.RECV), slot) for slot, each in arriving if each]
            ahead = [(slot, self._message_of(slot, stage, sends=False)) for slot in following]
            pieces += self._posted(template, ahead, Kind.RECV)
            pieces += self._together(template, stage, together, last)
            sent = [(slot, self._message_of(slot, stage, sends=True)) for slot in together]
            pieces += self._posted(template, sent, Kind.SEND)
        return pieces

    def _together(self, template: Template, stage: int, together: Ordered[Slot], last: Slot | None) -> list[Piece]:
        """Return the work of slots that run as one: a forward and a backward pass take turns at their exchanges."""
        works = [self._work(template, stage, slot, slot == last) for slot in together]
        kinds = [slot.kind for slot in together]
        if len(works) != 2 or SlotKind.F not in kinds or kinds[0] is kinds[1]:
            return [piece for work in works for piece in work]
        (forward, *after), (backward, *_) = works if kinds[0] is SlotKind.F else works[::-1]
        return [*self._by_turns(forward, backward), *after]

    def _by_turns(self, forward: Piece, backward: Piece) -> list[Piece]:
        """Return two passes in which each launches an exchange, lets the other compute, and then waits for it.

        The first to launch is the backward pass, whose gradients go out before anything of it is computed. Where one
        has more exchanges than the other the rest of them follow, and nothing hides these.
        """
        one, two = self._phrases(backward), self._phrases(forward)
        pieces: list[Piece] = []
        for at, (mine, other) in enumerate(zip_longest(one, two)):
            # What `mine` computes before its launch has hidden the last launch of the other, but for the first one.
            pieces += [*(mine.before if mine and at == 0 else ()), *(mine.launch if mine else ())]
            pieces += [*(other.before if other else ()), *(mine.wait if mine else ()), *(other.launch if other else ())]
            following = one[at + 1].before if at + 1 < len(one) else []
            pieces += [*following, *(other.wait if other else ())]
        return pieces

    def _phrases(self, piece: Piece) -> list["_Phrase"]:
        """Return a pass cut at its exchanges with experts; the last phrase has none, and may have no work."""
        if piece.segment < 0:
            return [_Phrase([], [], [])]
        if piece.segment not in self._cuts:
            self._cuts[piece.segment] = self._cut(self.segments[piece.segment])
        return [
            _Phrase(*([piece._replace(segment=segment)] if segment >= 0 else [] for segment in cut))
            for cut in self._cuts[piece.segment]
        ]

    def _cut(self, rows: IntArray) -> list[tuple[int, int, int]]:
        """Return the segments of work, launch and wait of each exchange among some rows, and of what follows."""
        ops, found = self.workload.ops, []
        before: list[int] = []
        launch: list[int] = []
        for row in rows.tolist():
            waits = ops.kind_T[row] == Kind.WAIT and ops.waits_for_T[row] == Stream.EP
            launches = ops.stream_T[row] == Stream.EP and not ops.blocking_T[row]
            if waits:
                found.append((self._own(before), self._own(launch), self._own([row])))
                before, launch = [], []
            elif launches or launch:
                launch.append(row)
            else:
                before.append(row)
        return [*found, (self._own(before), self._own(launch), -1)]

    def _own(self, rows: list[int]) -> int:
        """Return the number of a new segment of some rows; of none it is -1."""
        if not rows:
            return -1
        self.segments.append(np.array(rows, dtype=np.int32))
        return len(self.segments) - 1

    def _posted(self, template: Template, messages: list[tuple[Slot, Message | None]], kind: Kind) -> list[Piece]:
        """Return messages that hold nobody back."""
        return [self._message(template, each, kind, slot, blocking=False) for slot, each in messages if each]

    def _message_of(self, slot: Slot, stage: int, *, sends: bool) -> Message | None:
        """Return the message that a slot sends or receives; it is the same in every microbatch."""
        key = (sends, slot.kind, slot.virtual_stage, slot.copy, stage)
        if key not in self._messages:
            self._messages[key] = _message_of(self.plan, slot, stage, sends=sends)
        return self._messages[key]

    def _work(self, template: Template, stage: int, slot: Slot, last_forward: bool) -> list[Piece]:
        of_QM = template.forward_QM if slot.kind is SlotKind.F else template.backward_QM
        segment = int(of_QM[slot.virtual_stage, slot.microbatch])
        if slot.kind in (SlotKind.B, SlotKind.W) and segment >= 0:
            segment = self._part(segment, slot.kind)
        work = [Piece(segment, slot.virtual_stage, slot.microbatch)]
        return [*work, Piece(int(template.after_forward_P[stage]), -1, -1)] if last_forward else work

    def _part(self, segment: int, kind: SlotKind) -> int:
        """Return the input-gradient or weight-gradient part of a backward segment."""
        if (segment, kind) not in self._split:
            rows = self.segments[segment]
            weight = self.workload.ops.phase_T[rows] == Phase.WEIGHT_GRADIENT
            self._split[segment, kind] = len(self.segments)
            self.segments.append(rows[weight if kind is SlotKind.W else ~weight])
        return self._split[segment, kind]

    def _message(self, template: Template, message: Message, kind: Kind, slot: Slot, *, blocking: bool) -> Piece:
        boundary = message.boundary % len(self.plan.placement[0])
        duration_s = _transfer_s(template, message.forward, boundary, slot.microbatch)
        key = (kind, message.forward, message.usual, boundary, blocking, duration_s)
        if key not in self._single:
            name = f"{kind.name.lower()}_{'forward' if message.forward else 'backward'}"
            op = Op(
                name=name,
                part=name,
                duration_s=duration_s,
                provenance=Provenance.UNKNOWN if duration_s is None else Provenance.FILE,
                kind=kind,
                phase=Phase.FORWARD if message.forward else Phase.BACKWARD,
                blocking=blocking,
                stream=message.stream(kind),
                group=Group.PP,
                operation=Operation.SEND_RECV,
                size_bytes=int(self.workload.message_bytes_Q[boundary]),
            )
            self._single[key] = self._segment_of(op)
        return Piece(self._single[key], message.boundary, slot.microbatch, message.peer)

    def _receive(self, template: Template, message: Message, slot: Slot) -> list[Piece]:
        """Return a blocking receive, after what the input says precedes it."""
        pieces = [self._message(template, message, Kind.RECV, slot, blocking=True)]
        if template.before_recv_DQM is not None:
            boundary = message.boundary % len(self.plan.placement[0])
            segment = int(template.before_recv_DQM[int(not message.forward), boundary, slot.microbatch])
            pieces.insert(0, Piece(segment, slot.virtual_stage, slot.microbatch))
        return pieces

    def _wait(self, stream: Stream, slot: Slot) -> Piece:
        if (stream,) not in self._single:
            self._single[stream,] = self._segment_of(wait_op(stream))
        return Piece(self._single[stream,], slot.virtual_stage, slot.microbatch)

    def _segment_of(self, op: Op) -> int:
        """Return the one-operation segment of an added operation, adding it the first time; equal ones are one."""
        key = (op.name, op.stream, op.blocking, op.size_bytes, op.duration_s)
        if key not in self._single:
            self._single[key] = len(self.segments)
            self.segments.append(np.array([len(self.workload.ops) + len(self._extra)], dtype=np.int32))
            self._extra.append(op)
        return self._single[key]


def _last_forward(slots: list[Slot]) -> Slot | None:
    return next((slot for slot in reversed(slots) if slot.kind is SlotKind.F), None)


def _transfer_s(template: Template, forward: bool, boundary: int, microbatch: int) -> float | None:
    """Return the transfer that the input gives for a message, None where it gives none."""
    if template.message_s_DQM is None:
        return None
    transfer_s = float(template.message_s_DQM[int(not forward), boundary, microbatch])
    return None if math.isnan(transfer_s) else transfer_s
