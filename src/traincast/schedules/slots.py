"""The steps of a stage's order: forward and backward passes of one microbatch through one virtual stage."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple


class SlotKind(IntEnum):
    """What a stage does in one slot."""

    F = 0
    """Forward."""
    B = 1
    """Backward, input gradient only."""
    W = 2
    """Backward, weight gradient only."""
    BW = 3
    """Backward, both."""


class Slot(NamedTuple):
    """One step of a stage's order."""

    kind: SlotKind
    virtual_stage: int
    """Position in model order, 0..Q-1."""
    microbatch: int
    """0..M-1."""
    copy: int = 0
    """Copy of the model that runs it (bidirectional schedules have two)."""
    paired: bool = False
    """Whether it runs as one with the slot after it: they begin when both can, and both send when they have ended."""


def turns(slots: Sequence[Slot]) -> Iterator[tuple[Slot, ...]]:
    """Yield the slots of a stage in order, those together that run as one."""
    together: tuple[Slot, ...] = ()
    for slot in slots:
        together += (slot,)
        if not slot.paired:
            yield together
            together = ()
    if together:
        yield together
