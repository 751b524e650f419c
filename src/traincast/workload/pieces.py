"""Pieces of a rank's program as columns: segments at places of the pipeline, in the order of a schedule.

What a workload has no segment for, messages and waits for them, has a number of its own (`Keys`) until an operation is
made for it.

Letters: S slots of a stage, I pieces, Q virtual stages in model order, D directions.
"""

import math
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from traincast.schedules.columns import Messages, SlotColumns
from traincast.workload.ops import BoolArray, IntArray
from traincast.workload.words import Kind, Stream
from traincast.workload.workload import Template

STREAMS = {
    (kind, forward, usual): Stream[
        f"{kind.name}_{'FORWARD' if forward else 'BACKWARD'}" + ("" if usual else "_REVERSED")
    ]
    for kind in (Kind.SEND, Kind.RECV)
    for forward in (True, False)
    for usual in (True, False)
}
"""Stream of a message: each neighbour and direction has its own, so that one never holds back another."""


class Pieces(NamedTuple):
    """Segments at places of the pipeline, as columns."""

    order_I: IntArray
    """Rank among all pieces of a stage; equal ones stay in their order."""
    segment_I: IntArray
    """-1 for nothing; below that `ADDED` less the number of what is added (`Keys`)."""
    virtual_stage_I: IntArray
    microbatch_I: IntArray
    peer_I: IntArray
    """Stage at the other end of a message, -1 for none."""

    def where(self, chosen: BoolArray | IntArray) -> "Pieces":
        """Return some of them."""
        return Pieces(*(column_I[chosen] for column_I in self))


def joined(parts: Iterable[Pieces]) -> Pieces:
    """Return pieces one after the other."""
    return Pieces(*map(np.concatenate, zip(*parts, strict=True)))


def outside(segment_I: IntArray, order_I: IntArray) -> Pieces:
    """Return pieces outside the virtual stages."""
    nowhere_I = np.full(len(segment_I), -1)
    return Pieces(order_I, segment_I, nowhere_I, nowhere_I, nowhere_I)


def shifted(column_S: Any, by: int, fill: Any) -> Any:  # noqa: ANN401
    """Return a column with the value of the slot before each (1) or after it (-1); at the end it is `fill`."""
    if not len(column_S):
        return column_S
    return np.concatenate([[fill], column_S[:-1]] if by > 0 else [column_S[1:], [fill]])


PLACES = 6
"""Places of a slot in the order of pieces: its receive, or waits for it (0), receives that are posted ahead, or its
work (1, 2), what follows that, or its send (3, 4), and last what it waits for (5)."""
ADDED = -2
"""What `Pieces.segment_I` has for the first number of `Keys`; -3 for the second one, and so on."""


class Added(IntEnum):
    """What is added to a workload's operations."""

    SEND = 0
    RECV = 1
    WAIT_SEND = 2
    WAIT_RECV = 3


class Key(NamedTuple):
    """What tells operations that are added apart."""

    what: Added
    forward: bool
    usual: bool
    blocking: bool
    boundary: int
    transfer_s: float | None
    """What the input gives for it, None for nothing."""


class Keys(Struct, frozen=True):
    """Keys of operations that are added as numbers."""

    shape: tuple[int, ...]
    """Values that each part of a key may have."""
    transfers_s: list[float]
    """Transfers that the input gives for messages; NaN for none."""
    transfer_DQM: IntArray
    """Which of them each message has: forward (0) and backward (1), over each boundary."""

    @classmethod
    def from_template(cls, template: Template) -> "Keys":
        """Return those of what ranks with a template do."""
        if template.message_s_DQM is None:
            transfers_s, transfer_DQM = [math.nan], np.zeros((2, *template.forward_QM.shape), dtype=np.int64)
        else:
            distinct_s, which = np.unique(template.message_s_DQM, return_inverse=True)
            transfers_s, transfer_DQM = distinct_s.tolist(), which.reshape(template.message_s_DQM.shape)
        return cls((len(Added), 2, 2, 2, len(template.forward_QM), len(transfers_s)), transfers_s, transfer_DQM)

    def codes(self, *parts_S: Any) -> IntArray:  # noqa: ANN401
        """Return the numbers of some keys as segments."""
        code_S: IntArray = np.ravel_multi_index(np.broadcast_arrays(*parts_S), self.shape)
        return ADDED - code_S

    def named(self, code_K: IntArray) -> Iterator[Key]:
        """Yield the keys of some numbers."""
        parts = (each.tolist() for each in np.unravel_index(code_K, self.shape))
        for what, forward, usual, blocking, boundary, transfer in zip(*parts, strict=True):
            transfer_s = self.transfers_s[transfer]
            known_s = None if math.isnan(transfer_s) else transfer_s
            yield Key(Added(what), bool(forward), bool(usual), bool(blocking), boundary, known_s)


def posted(
    keys: Keys, what: Added, messages: Messages, slots: SlotColumns, order_S: IntArray, blocking_S: BoolArray
) -> Pieces:
    """Return sends or receives."""
    boundary_S, forward_S = messages.boundary_S % keys.shape[4], messages.forward_S.astype(np.int64)
    transfer_S = keys.transfer_DQM[1 - forward_S, boundary_S, slots.microbatch_S]
    code_S = keys.codes(what, forward_S, messages.usual_S, blocking_S, boundary_S, transfer_S)
    pieces = Pieces(order_S, code_S, messages.boundary_S, slots.microbatch_S, messages.peer_S)
    return pieces.where(messages.there_S)


def waits(
    keys: Keys,
    what: Added,
    messages: Messages,
    slots: SlotColumns,
    order_S: IntArray,
    chosen_S: BoolArray | None = None,
) -> Pieces:
    """Return waits for sends or receives, by default for all of them."""
    code_S = keys.codes(what, messages.forward_S, messages.usual_S, 0, 0, 0)
    pieces = Pieces(order_S, code_S, slots.virtual_stage_S, slots.microbatch_S, np.full(len(code_S), -1))
    return pieces.where(messages.there_S if chosen_S is None else chosen_S)
