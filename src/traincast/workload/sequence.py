"""The program of one rank: its template, laid out in the order of a pipeline schedule.

A sequence is a list of pieces, and a piece is a segment of template operations at one virtual
stage and microbatch. Pipeline sends and receives are pieces too:

* blocking (1F1B): receive, work, send, one after the other; a send and a following receive with
  the same neighbour are posted together, as Megatron's fused calls do;
* overlapped (interleaved): a receive is posted before the work that precedes its use, and a
  send holds nobody back. Slots that run as one wait for the messages of both, and send when both are done.

Source: Megatron-LM, megatron/core/pipeline_parallel/schedules.py.

Letters: S slots of a stage, I pieces, L operations of a sequence, Q virtual stages in model order, C model copies.
"""

from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.schedules.columns import Messages, SlotColumns
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind
from traincast.workload.builder import wait_op
from traincast.workload.ops import BoolArray, IntArray, Op, OpTable, numbered
from traincast.workload.pieces import (
    ADDED,
    PLACES,
    STREAMS,
    Added,
    Key,
    Keys,
    Pieces,
    joined,
    outside,
    posted,
    shifted,
    waits,
)
from traincast.workload.words import Group, Kind, Operation, Phase, Provenance, Stream
from traincast.workload.workload import Template, Workload


class _Piece(NamedTuple):
    """A segment of one of two passes that run as one."""

    segment: int
    backward: bool


class _Phrase(NamedTuple):
    """What a pass does up to an exchange with experts: work, its launch (with what hides it of itself), the wait."""

    before: list[_Piece]
    launch: list[_Piece]
    wait: list[_Piece]


class Sequences(Struct, frozen=True):
    """Operations of ranks in program order, as columns: those of one stage, then those of the next."""

    row_L: IntArray
    virtual_stage_L: IntArray
    microbatch_L: IntArray
    peer_L: IntArray
    ptr_P1: IntArray
    """Operations of each of the stages begin here, and the last ones end."""


class _Places(NamedTuple):
    """Where the slots of stages stand in the order of all pieces."""

    at_S: IntArray
    first_S: BoolArray
    """Whether a slot is the first of its stage."""
    last_S: BoolArray
    begin_P: IntArray
    """What begins a stage."""
    end_P: IntArray

    @classmethod
    def from_counts(cls, count_P: IntArray) -> "_Places":
        """Return them, from the number of slots of each stage: around these each has room for what begins and ends."""
        number, end_P = np.arange(len(count_P)), np.cumsum(count_P)
        first_S, last_S = (np.zeros(int(count_P.sum()), dtype=np.bool_) for _ in range(2))
        first_S[(end_P - count_P)[count_P > 0]] = last_S[end_P[count_P > 0] - 1] = True
        begin_P = PLACES * (end_P - count_P + 3 * number)
        at_S = PLACES * (np.arange(len(first_S)) + np.repeat(3 * number + 1, count_P))
        return cls(at_S, first_S, last_S, begin_P, begin_P + PLACES * (count_P + 2))


class SequenceBuilder:
    """Lays out a workload's templates; adds the message operations to its table."""

    def __init__(self, workload: Workload, plan: SchedulePlan) -> None:
        self.workload, self.plan = workload, plan
        self.segments = list(workload.segments)
        self.added: list[Op] = []
        self.boundaries: list[int] = []
        """The boundary that each of them is a message over, -1 for waits."""
        self._single: dict[tuple[int, Key], int] = {}
        self._split: dict[tuple[int, SlotKind], int] = {}
        self._cuts: dict[int, list[tuple[int, int, int]]] = {}

    def table(self) -> OpTable:
        """Return the workload's operations followed by those that were added."""
        return self.workload.ops.extended(self.added)

    def sequences(self, template: Template, stages: list[int]) -> Sequences:
        """Lay out what a rank of each of some stages does in a step."""
        slots = self._slots(stages)
        count_P = np.bincount(slots.stage_S, minlength=len(self.plan.slots))[stages]
        keys, places = Keys.from_template(template), _Places.from_counts(count_P)
        arrange = self._overlapped if self.plan.overlapped_p2p else self._blocking
        pieces = joined(
            [
                outside(template.start_P[stages], places.begin_P),
                *arrange(template, keys, slots, places),
                outside(template.end_P[stages], places.end_P),
            ]
        )
        order = np.argsort(pieces.order_I, kind="stable")
        pieces = pieces.where(order[pieces.segment_I[order] != -1])
        begin_P1 = np.append(np.searchsorted(pieces.order_I, places.begin_P), len(pieces.order_I))
        return self._lay_out(self._with_added(pieces, keys), begin_P1)

    def _slots(self, stages: list[int]) -> SlotColumns:
        """Return the slots of some stages that run, stage after stage."""
        slots = self.plan.columns
        if stages != list(range(len(self.plan.slots))):
            end_P = np.cumsum(list(map(len, self.plan.slots)))
            chosen = [np.arange(end_P[stage] - len(self.plan.slots[stage]), end_P[stage]) for stage in stages]
            slots = slots.where(np.concatenate(chosen))
        return slots.where(slots.kind_S == SlotKind.F) if self.workload.forward_only else slots

    def _lay_out(self, pieces: Pieces, begin_P1: IntArray) -> Sequences:
        length_G = np.array(list(map(len, self.segments)), dtype=np.int64)
        first_G = np.cumsum(length_G) - length_G
        length_I = length_G[pieces.segment_I]
        end_I = np.cumsum(length_I)
        # Operations of a piece are counted from its first one on.
        shift_I = first_G[pieces.segment_I] - end_I + length_I
        all_rows = np.concatenate([np.zeros(0, dtype=np.int32), *self.segments]).astype(np.int32)
        columns = pieces.virtual_stage_I, pieces.microbatch_I, pieces.peer_I
        virtual_stage_L, microbatch_L, peer_L = (np.repeat(each.astype(np.int32), length_I) for each in columns)
        row_L = all_rows[np.repeat(shift_I, length_I) + np.arange(len(peer_L))]
        return Sequences(row_L, virtual_stage_L, microbatch_L, peer_L, np.append(0, end_I)[begin_P1])

    def _blocking(self, template: Template, keys: Keys, slots: SlotColumns, places: _Places) -> list[Pieces]:
        """Return the pieces of slots whose messages hold up what follows them."""
        at_S, arriving, sent = places.at_S, slots.arriving, slots.sent
        # A send and the receive of the slot after it, of one neighbour, are posted together.
        fused_S = sent.there_S & (sent.peer_S == shifted(arriving.peer_S, -1, -1)) & ~places.last_S
        arrives_S = np.where(shifted(fused_S, 1, False), at_S - PLACES + 4, at_S)
        return [
            self._before_receive(template, arriving, slots, arrives_S),
            posted(keys, Added.RECV, arriving, slots, arrives_S, np.ones_like(fused_S)),
            *self._work(template, slots, at_S + 1),
            posted(keys, Added.SEND, sent, slots, at_S + 3, ~fused_S),
            waits(keys, Added.WAIT_SEND, sent, slots, at_S + 5, fused_S),
        ]

    def _overlapped(self, template: Template, keys: Keys, slots: SlotColumns, places: _Places) -> list[Pieces]:
        """Return the pieces of slots whose messages hold nobody back: those of all that run as one go together."""
        at_S, arriving, sent = places.at_S, slots.arriving, slots.sent
        begins_S = ~shifted(slots.paired_S.astype(np.bool_), 1, False) | places.first_S
        begin_B, turn_S = at_S[begins_S], np.cumsum(begins_S) - 1
        before_B = np.where(places.first_S[begins_S], begin_B - PLACES, shifted(begin_B, 1, 0))
        begin_S, before_S = begin_B[turn_S], before_B[turn_S]
        last_S = at_S[shifted(begins_S, -1, True)][turn_S]
        nobody_S = np.zeros(len(at_S), dtype=np.bool_)
        work, after = self._work(template, slots, at_S + 2)
        return [
            waits(keys, Added.WAIT_RECV, arriving, slots, begin_S),
            # A receive is posted before the work that precedes its use.
            posted(keys, Added.RECV, arriving, slots, before_S + 1, nobody_S),
            self._together(work, slots, begin_S + 2, np.bincount(turn_S)[turn_S] == 2),
            after,
            posted(keys, Added.SEND, sent, slots, last_S + 4, nobody_S),
        ]

    def _together(self, work: Pieces, slots: SlotColumns, order_S: IntArray, pair_S: BoolArray) -> Pieces:
        """Return the work of slots: a forward and a backward pass that run as one take turns at their exchanges."""
        forward_S, alone_S = slots.kind_S == SlotKind.F, np.ones(len(pair_S), dtype=np.bool_)
        first = np.flatnonzero((slots.paired_S > 0) & pair_S & (forward_S != shifted(forward_S, -1, False)))
        if not len(first):
            return work
        alone_S[first] = alone_S[first + 1] = False
        forward_T = np.where(forward_S[first], first, first + 1)
        backward_T = 2 * first + 1 - forward_T
        # Passes of a stage are alike in all microbatches, but for their places.
        distinct, which_T = np.unique(work.segment_I[[forward_T, backward_T]], axis=1, return_inverse=True)
        pieces = [np.array(self._by_turns(*pair), dtype=np.int64).T for pair in distinct.T.tolist()]
        of_pairs = [pieces[pair] for pair in which_T.reshape(-1).tolist()]
        count_T = [pair.shape[1] for pair in of_pairs]
        segment_I, backward_I = np.concatenate(of_pairs, axis=1)
        at_I = np.where(backward_I, np.repeat(backward_T, count_T), np.repeat(forward_T, count_T))
        by_turns = work._replace(order_I=order_S).where(at_I)
        return joined([work.where(alone_S), by_turns._replace(segment_I=segment_I)])

    def _by_turns(self, forward: int, backward: int) -> list[_Piece]:
        """Return two passes in which each launches an exchange, lets the other compute, and then waits for it.

        The first to launch is the backward pass, whose gradients go out before anything of it is computed. Where one
        has more exchanges than the other the rest of them follow, and nothing hides these.
        """
        one, two = self._phrases(backward, backward=True), self._phrases(forward, backward=False)
        pieces: list[_Piece] = []
        for at, (mine, other) in enumerate(zip_longest(one, two)):
            # What `mine` computes before its launch has hidden the last launch of the other, but for the first one.
            pieces += [*(mine.before if mine and at == 0 else ()), *(mine.launch if mine else ())]
            pieces += [*(other.before if other else ()), *(mine.wait if mine else ()), *(other.launch if other else ())]
            following = one[at + 1].before if at + 1 < len(one) else []
            pieces += [*following, *(other.wait if other else ())]
        return pieces

    def _phrases(self, segment: int, *, backward: bool) -> list[_Phrase]:
        """Return a pass cut at its exchanges with experts; the last phrase has none, and may have no work."""
        if segment < 0:
            return [_Phrase([], [], [])]
        if segment not in self._cuts:
            self._cuts[segment] = self._cut(self.segments[segment])
        return [
            _Phrase(*([_Piece(part, backward)] if part >= 0 else [] for part in cut)) for cut in self._cuts[segment]
        ]

    def _cut(self, rows: IntArray) -> list[tuple[int, int, int]]:
        """Return the segments of work, launch and wait of each exchange among some rows, and of what follows."""
        ops, found = self.workload.ops, []
        before: list[int] = []
        launch: list[int] = []
        waits = (ops.kind_T[rows] == Kind.WAIT) & (ops.waits_for_T[rows] == Stream.EP)
        launches = (ops.stream_T[rows] == Stream.EP) & ~ops.blocking_T[rows]
        for row, waits_for, launched in zip(rows.tolist(), waits.tolist(), launches.tolist(), strict=True):
            if waits_for:
                found.append((self._own(before), self._own(launch), self._own([row])))
                before, launch = [], []
            elif launched or launch:
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

    def _work(self, template: Template, slots: SlotColumns, order_S: IntArray) -> tuple[Pieces, Pieces]:
        """Return the work of slots, and what follows that of the last forward pass of each stage."""
        forward_S = slots.kind_S == SlotKind.F
        at = slots.virtual_stage_S, slots.microbatch_S
        segment_S = np.where(forward_S, template.forward_QM[at], template.backward_QM[at])
        for kind in (SlotKind.B, SlotKind.W):
            mine = np.flatnonzero((slots.kind_S == kind) & (segment_S >= 0))
            whole, which = np.unique(segment_S[mine], return_inverse=True)
            parts = np.array([self._part(segment, kind) for segment in whole.tolist()], dtype=segment_S.dtype)
            segment_S[mine] = parts[which]
        forward = np.flatnonzero(forward_S)
        last = forward[np.diff(slots.stage_S[forward], append=-1) != 0]
        work = Pieces(order_S, segment_S, *at, np.full(len(segment_S), -1))
        return work, outside(template.after_forward_P[slots.stage_S[last]], order_S[last] + 1)

    def _part(self, segment: int, kind: SlotKind) -> int:
        """Return the input-gradient or weight-gradient part of a backward segment."""
        if (segment, kind) not in self._split:
            rows = self.segments[segment]
            weight = self.workload.ops.phase_T[rows] == Phase.WEIGHT_GRADIENT
            self._split[segment, kind] = len(self.segments)
            self.segments.append(rows[weight if kind is SlotKind.W else ~weight])
        return self._split[segment, kind]

    def _before_receive(self, template: Template, arriving: Messages, slots: SlotColumns, order_S: IntArray) -> Pieces:
        """Return what the input says precedes a blocking receive."""
        none_S = np.full(len(order_S), -1)
        if template.before_recv_DQM is None:
            segment_S = none_S
        else:
            boundary_S = arriving.boundary_S % len(self.plan.placement[0])
            segment_S = template.before_recv_DQM[(~arriving.forward_S).astype(int), boundary_S, slots.microbatch_S]
        pieces = Pieces(order_S, segment_S, slots.virtual_stage_S, slots.microbatch_S, none_S)
        return pieces.where(arriving.there_S)

    def _with_added(self, pieces: Pieces, keys: Keys) -> Pieces:
        """Return pieces in which messages and waits are segments, made in the order in which they are first met."""
        added = np.flatnonzero(pieces.segment_I <= ADDED)
        code_I = ADDED - pieces.segment_I[added]
        first, which = numbered(code_I)
        met = np.argsort(first)
        number_of = np.zeros(len(first), dtype=np.int64)
        number_of[met] = [self._segment_of(key) for key in keys.named(code_I[first[met]])]
        segment_I = pieces.segment_I.astype(np.int64)
        segment_I[added] = number_of[which]
        return pieces._replace(segment_I=segment_I)

    def _op(self, key: Key) -> Op:
        """Return the operation that a key stands for."""
        kind = Kind.SEND if key.what in (Added.SEND, Added.WAIT_SEND) else Kind.RECV
        stream = STREAMS[kind, key.forward, key.usual]
        if key.what in (Added.WAIT_SEND, Added.WAIT_RECV):
            return wait_op(stream)
        name = f"{kind.name.lower()}_{'forward' if key.forward else 'backward'}"
        return Op(
            name=name,
            part=name,
            duration_s=key.transfer_s,
            provenance=Provenance.UNKNOWN if key.transfer_s is None else Provenance.FILE,
            kind=kind,
            phase=Phase.FORWARD if key.forward else Phase.BACKWARD,
            blocking=key.blocking,
            stream=stream,
            group=Group.PP,
            operation=Operation.SEND_RECV,
            size_bytes=int(self.workload.message_bytes_Q[key.boundary]),
        )

    def _segment_of(self, key: Key) -> int:
        """Return the one-operation segment of a key, adding the operation the first time; equal ones are one."""
        waits = key.what in (Added.WAIT_SEND, Added.WAIT_RECV)
        size_bytes = -1 if waits else int(self.workload.message_bytes_Q[key.boundary])
        alike = size_bytes, key._replace(boundary=-1, transfer_s=None if waits else key.transfer_s)
        if alike not in self._single:
            self._single[alike] = len(self.segments)
            self.segments.append(np.array([len(self.workload.ops) + len(self.added)], dtype=np.int32))
            self.added.append(self._op(key))
            self.boundaries.append(-1 if waits else key.boundary)
        return self._single[alike]
