"""How many activations a stage holds at once, from the order in which its schedule runs."""

from dataclasses import dataclass

import numpy as np

from traincast.schedules.plan import SchedulePlan, SlotKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBytes:
    """What one microbatch takes on a rank of a virtual stage.

    Parameters
    ----------
    saved : float
        From its forward to its backward pass.
    for_weights : float
        The part of `saved` that the weight gradients need, where these run later.
    forward, backward : float
        Beside it while its forward and its backward pass run.
    """

    saved: float
    for_weights: float
    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest sum.

    Parameters
    ----------
    saved_bytes : float
        Saved activations at that moment.
    passing_bytes : float
        What runs beside them.
    in_flight : int
        Microbatches of virtual stages that are saved at that moment.
    """

    saved_bytes: float
    passing_bytes: float
    in_flight: int


def peak_in_flight(plan: SchedulePlan, stage: int, chunk_of: dict[int, ChunkBytes]) -> Peak:
    """Return the largest sum of activations over the slots of a stage.

    Parameters
    ----------
    plan : SchedulePlan
        The schedule.
    stage : int
        The stage.
    chunk_of : dict
        Bytes of one microbatch by virtual stage.

    Returns
    -------
    Peak

    Notes
    -----
    1F1B keeps min(P - p, M) microbatches on stage p; interleaving keeps 1 + (P - 1) / (P V) times as much on the
    first stage as 1F1B. Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    slots = plan.slots[stage]
    if not slots:
        return Peak(0.0, 0.0, 0)
    kind = np.array([slot.kind for slot in slots], np.int64)
    width = max(chunk_of) + 1
    column = np.zeros((4, width))
    for virtual_stage, chunk in chunk_of.items():
        column[:, virtual_stage] = chunk.saved, chunk.for_weights, chunk.forward, chunk.backward
    saved, for_weights, forward, backward = column[:, [slot.virtual_stage for slot in slots]]
    is_forward, is_input, is_weight = kind == SlotKind.F, kind == SlotKind.B, kind == SlotKind.W
    change = np.select([is_forward, is_input, is_weight], [saved, for_weights - saved, -for_weights], -saved)
    after = np.cumsum(change)
    # A backward pass frees what it reads only at its end, a forward pass holds what it saves from its start.
    during = np.where(is_forward, after, after - change)
    passing = np.select([is_forward, is_weight], [forward, np.zeros_like(forward)], backward)
    top = int(np.argmax(during + passing))
    count = np.cumsum(np.select([is_forward, is_weight], [1, 0], -1))
    in_flight = int(count[top] + (not is_forward[top] and not is_weight[top]))
    return Peak(float(during[top]), float(passing[top]), in_flight)
