"""Make a single-GPU profile of expert layers stand for a run on many.

The lone GPU saw only the tokens that happened to be routed to its own experts. In a run, a rank
sends the routed tokens of its microbatch and, balanced, receives as many. So dispatch and combine
both carry the routed tokens, times the load of each rank where the loads are unequal, and the
experts' work is brought from the traced tokens to these.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.workload.experts import ExpertLoads
from traincast.workload.words import Group, Operation

_SECONDS_PER_TOKEN = {"forward_step": 0.5e-6, "backward_step": 0.95e-6}
"""Work of an expert layer per routed token at hidden size 4096. Source: slopes of pure compute over
the traced tokens in the 16-GPU MoE runs of Echo's traces (fwyc0573/moe_mg)."""

_HIDDEN = 4096
"""Hidden size of the runs the slopes come from; the work of a token grows with its square."""


class Section(NamedTuple):
    """What precedes and what is carried by one all-to-all."""

    extra_s: float
    """Seconds to add to the computation before it."""
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """One dispatch and combine: the tokens a rank routes, and those its experts were traced with."""

    dispatch: int
    combine: int
    """Indices of the two all-to-alls among the sub-operations."""
    routed: int
    traced: int
    hidden: int


@dataclass(frozen=True, slots=True)
class ExpertScaling:
    """Brings expert layers to a load.

    Parameters
    ----------
    load : float
        Tokens of the rank's experts over the mean.
    loads : tuple of float, optional
        Those of all ranks of its `ep` group; None where they are equal.
    """

    load: float = 1.0
    loads: ExpertLoads | None = None

    def sections(self, op: TraceOp) -> dict[int, Section]:
        """Return what changes around each all-to-all of an operation, by the index of the sub-operation."""
        found: dict[int, Section] = {}
        for layer in expert_layers(op):
            size_bytes = op.sub_ops[layer.dispatch].size_bytes
            per_token_s = _SECONDS_PER_TOKEN.get(op.op, 0.0) * (layer.hidden / _HIDDEN) ** 2
            extra_s = per_token_s * (layer.routed * self.load - layer.traced)
            found[layer.dispatch] = Section(0.0, size_bytes)
            found[layer.combine] = Section(extra_s, size_bytes)
        return found


def expert_layers(op: TraceOp) -> list[ExpertLayer]:
    """Return the expert layers of an operation: its expert all-to-alls, two by two.

    The first of a pair carries what the rank routes (in the backward pass, the gradients of what
    it combined), the second what its experts received.
    """
    exchanges = [(index, sub) for index, sub in enumerate(op.sub_ops) if is_exchange(sub)]
    layers = []
    for number, ((first, sent), (second, received)) in enumerate(pairwise(exchanges)):
        if number % 2 == 0 and sent.shape and received.shape:
            layers.append(ExpertLayer(first, second, sent.shape[0], received.shape[0], sent.shape[-1]))
    return layers


def is_exchange(sub: SubOp) -> bool:
    """Tell whether a sub-operation dispatches tokens to experts or combines what they made of them."""
    return sub.comm is Operation.ALL_TO_ALL and sub.group is Group.EP
