"""Activations in flight on one rank: what the order of a schedule has saved at a time."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind


class ChunkBytes(Struct, frozen=True, kw_only=True):
    """What one microbatch takes on a rank of a virtual stage."""

    saved: float
    """From its forward to its backward pass."""
    for_weights: float
    """The part of `saved` that the weight gradients need, where these run later."""
    forward: float
    """What runs in addition to it during its forward pass."""
    backward: float
    host: float = 0.0
    """What of it the memory of the host keeps from the forward to the backward pass: in none of the others."""


class Peak(Struct, frozen=True):
    """The largest sum."""

    saved_bytes: float
    """Saved activations at that moment."""
    passing_bytes: float
    """What runs in addition to them."""
    in_flight: int
    """Microbatches of virtual stages that are saved at that moment."""


def peak_in_flight(plan: SchedulePlan, stage: int, chunk_of: dict[int, ChunkBytes], *, together: bool = False) -> Peak:
    """Return the largest sum of activations over the slots of a stage, from the bytes of each virtual stage.

    `together` says that pairs of passes run layer by layer alongside each other (`freed_first`).

    Notes
    -----
    1F1B keeps min(P - p, M) microbatches on stage p; interleaving keeps 1 + (P - 1) / (P V) times as much on the
    first stage as 1F1B. Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    slots = plan.columns_P[stage]
    order = freed_first(slots.paired_S) if together else np.arange(len(slots.kind_S))
    kind = slots.kind_S[order]
    width = max(chunk_of) + 1
    column = np.zeros((4, width))
    for virtual_stage, chunk in chunk_of.items():
        column[:, virtual_stage] = chunk.saved, chunk.for_weights, chunk.forward, chunk.backward
    saved, for_weights, forward, backward = column[:, slots.virtual_stage_S[order]]
    is_forward, is_input, is_weight = kind == SlotKind.F, kind == SlotKind.B, kind == SlotKind.W
    freed = np.where(is_input, saved - for_weights, np.where(is_weight, for_weights, saved))
    change = np.where(is_forward, saved, -freed)
    after = np.cumsum(change)
    # A backward pass frees what it reads only at its end, a forward pass holds what it saves from its start.
    during = np.where(is_forward, after, after - change)
    passing = np.where(is_forward, forward, np.where(is_weight, 0.0, backward))
    top = int(np.argmax(during + passing))
    frees = ~(is_forward | is_weight)
    in_flight = int(is_forward[: top + 1].sum() - frees[:top].sum())
    return Peak(float(during[top]), float(passing[top]), in_flight)


def freed_first(paired_S: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Return the order of slots in which of each pair the second, a backward pass, comes first.

    A forward and a backward pass that run layer by layer alongside each other never have all of both saved: as the one
    saves a layer the other frees one. Source: Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py.
    """
    order, first = np.arange(len(paired_S)), np.flatnonzero(paired_S)
    order[first], order[first + 1] = first + 1, first
    return order
