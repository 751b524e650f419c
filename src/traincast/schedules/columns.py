"""The slots of stages as columns, with the messages that each receives and sends.

Letters: P stages, S slots of one or several of them, C model copies, Q virtual stages in model order.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from traincast.schedules.slots import Slot, SlotKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Column = npt.NDArray[np.integer]
    _Mask = npt.NDArray[np.bool_]
    _Chosen = _Mask | _Column | slice


class Messages(NamedTuple):
    """The message that each slot receives first, or sends when it is done."""

    peer_S: "_Column"
    """Stage at the other end; -1 where there is no message."""
    boundary_S: "_Column"
    """Virtual stage that it leaves in forward direction; those of a second model copy are counted after the first."""
    forward_S: "_Mask"
    """An activation; False for a gradient."""
    usual_S: "_Mask"
    """Whether it goes the way of a plain pipeline: activations to the next stage, gradients to the one before."""

    @property
    def there_S(self) -> "_Mask":
        """Whether there is one."""
        return self.peer_S >= 0

    def where(self, chosen_S: "_Chosen") -> "Messages":
        """Return those of some slots."""
        return Messages(
            self.peer_S[chosen_S], self.boundary_S[chosen_S], self.forward_S[chosen_S], self.usual_S[chosen_S]
        )


class SlotColumns(NamedTuple):
    """The slots of stages as columns, stage after stage, [S] each; the first fields are those of `Slot`."""

    kind_S: "_Column"
    virtual_stage_S: "_Column"
    microbatch_S: "_Column"
    copy_S: "_Column"
    paired_S: "_Column"
    stage_S: "_Column"
    arriving: Messages
    """What each must receive first."""
    sent: Messages
    """What each sends when it is done."""

    def where(self, chosen_S: "_Chosen") -> "SlotColumns":
        """Return some of them."""
        kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S, stage_S = (each[chosen_S] for each in self[:6])
        arriving, sent = self.arriving.where(chosen_S), self.sent.where(chosen_S)
        return SlotColumns(kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S, stage_S, arriving, sent)


Fields: TypeAlias = "tuple[_Column, _Column, _Column, _Column, _Column, _Column]"
"""Kind, virtual stage, microbatch, copy, whether it is paired, and stage of each slot, [S]."""


def fields_of(slots_P: Sequence[Sequence[Slot]]) -> Fields:
    """Return the slots of all stages as columns, and the stage of each."""
    # Names of schedules are listed and completed without arrays.
    import numpy as np

    counts_P = list(map(len, slots_P))
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(slots_P)), np.int32, count=5 * sum(counts_P))
    kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S = flat.reshape(-1, 5).T.copy()
    return kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S, np.repeat(np.arange(len(slots_P)), counts_P)


def columns_of(placement: Sequence[Sequence[int]], fields: Fields, stages: int) -> SlotColumns:
    """Return the slots of all stages with their messages; `placement` is the stage of each virtual stage of a copy."""
    import numpy as np

    kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S, stage_S = fields
    placement_CQ = np.array(placement, dtype=np.int32)
    ends, forward_S = placement_CQ.shape[1], kind_S == SlotKind.F
    step_S = np.where(forward_S, 1, -1)

    def messages(*, sends: bool) -> Messages:
        """Return what the slots send, or receive."""
        other_S = virtual_stage_S + (step_S if sends else -step_S)
        peer_S = placement_CQ[copy_S, np.clip(other_S, 0, ends - 1)]
        there_S = (kind_S != SlotKind.W) & (other_S >= 0) & (other_S < ends) & (peer_S != stage_S)
        source_S, target_S = (stage_S, peer_S) if sends else (peer_S, stage_S)
        return Messages(
            peer_S=np.where(there_S, peer_S, -1),
            boundary_S=np.minimum(other_S, virtual_stage_S) + copy_S * ends,
            forward_S=forward_S,
            usual_S=target_S == (source_S + step_S) % stages,
        )

    arriving, sent = messages(sends=False), messages(sends=True)
    return SlotColumns(kind_S, virtual_stage_S, microbatch_S, copy_S, paired_S, stage_S, arriving, sent)
