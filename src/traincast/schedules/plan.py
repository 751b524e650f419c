"""The contract of a pipeline schedule.

Letters: P stages, V virtual stages per stage, Q = P*V virtual stages in model order,
M microbatches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from traincast.diagnostics import Note
from traincast.registry import Registry


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """What a schedule returns for (P, V, M)."""

    name: str
    placement: tuple[tuple[int, ...], ...]
    """Per model copy: the stage that holds each virtual stage, [copies][Q]."""
    slots: tuple[tuple[Slot, ...], ...]
    """Per stage: its slots in order, [P]."""
    overlapped_p2p: bool
    """Whether messages travel beside compute (interleaved) or block it (1F1B)."""
    warnings: tuple[Note, ...] = ()


Schedule = Callable[[int, int, int], SchedulePlan]
"""A schedule: (P, V, M) -> plan. Raises InfeasibleError where it cannot run."""

SCHEDULES: Registry[Schedule] = Registry("schedule", "traincast.schedules")
