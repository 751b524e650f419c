"""Which messages a slot of a pipeline schedule receives and sends, and on which streams they travel."""

from typing import NamedTuple

from traincast.schedules.plan import SchedulePlan, Slot, SlotKind
from traincast.workload.words import Kind, Stream


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


def incoming(plan: SchedulePlan, slot: Slot, stage: int) -> Message | None:
    """Return the message that a slot must receive first, None if it needs none from another stage."""
    return _message(plan, slot, stage, sends=False)


def outgoing(plan: SchedulePlan, slot: Slot, stage: int) -> Message | None:
    """Return the message that a slot sends when it is done, None if nobody else waits for it."""
    return _message(plan, slot, stage, sends=True)


def _message(plan: SchedulePlan, slot: Slot, stage: int, *, sends: bool) -> Message | None:
    if slot.kind is SlotKind.W:
        return None
    placement_Q = plan.placement[slot.copy]
    forward = slot.kind is SlotKind.F
    q = slot.virtual_stage + (1 if forward == sends else -1)
    if not 0 <= q < len(placement_Q) or placement_Q[q] == stage:
        return None
    peer = placement_Q[q]
    source, target = (stage, peer) if sends else (peer, stage)
    step = 1 if forward else -1
    usual = target == (source + step) % len(plan.slots)
    boundary = min(q, slot.virtual_stage) + slot.copy * len(placement_Q)
    return Message(peer, boundary, forward, usual)
