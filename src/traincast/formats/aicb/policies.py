"""What the first word of a file makes of its rows: which columns communicate, over which ranks, and in which order.

ASTRA-sim 1.0 has a training loop for each policy; SimAI took them over. A loop runs all layers forward, then backward
from the last. Its networks have dimensions, of which the first is the innermost; here that is a node, or as many ranks
as ``--tp`` says. Compute times are cycles, 1 ns at its default clock.

Source: ASTRA-sim 1.0, ``astra-sim/workload/Workload.cc`` (``decode_involved_dimensions``, ``iterate_*``) and
``inputs/workload/README.md``.
"""

from enum import StrEnum

from msgspec import Struct


class Span(StrEnum):
    """Over which ranks a column communicates."""

    NONE = "none"
    """It does not, whatever is written."""
    WORLD = "world"
    INNER = "inner"
    """The first dimension: a node."""
    OUTER = "outer"
    """All other dimensions."""


class Policy(Struct, frozen=True, kw_only=True):
    """One of them."""

    activation: Span = Span.INNER
    """Ranks of the forward and input-gradient column."""
    gradient: Span = Span.OUTER
    """Ranks of the weight-gradient column."""
    weights_first: bool = False
    """Whether a layer computes its weight gradient before its input gradient, which the first layer has none of."""
    overlaps_input: bool = False
    """Whether the input gradient is communicated while the weight gradient is computed, and by no first layer."""
    of_astra_sim: bool = True
    """Whether its files are ASTRA-sim's own: no degrees in the first line, and no rows but layers."""


_TRANSFORMER = Policy(of_astra_sim=False)
"""As in SimAI, where an input gradient is communicated before the weight gradient is computed (ASTRA-sim 1.0 does both
at a time)."""
_DIMENSIONS = Policy(overlaps_input=True)
_DATA = Policy(activation=Span.NONE, gradient=Span.WORLD, weights_first=True)
POLICIES: dict[str, Policy] = {
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": _TRANSFORMER,
    "HYBRID_TRANSFORMER": _TRANSFORMER,
    "HYBRID_DLRM": _DATA,
    "HYBRID_DLRM_ENHANCED": _DATA,
    "DATA": _DATA,
    "MODEL": Policy(activation=Span.WORLD, gradient=Span.NONE, overlaps_input=True),
    "DISTRIBUTED_INFERENCE": Policy(activation=Span.WORLD, gradient=Span.NONE),
    "HYBRID_DATA_MODEL": _DIMENSIONS,
    "HYBRID_MODEL_DATA": Policy(activation=Span.OUTER, gradient=Span.INNER, overlaps_input=True),
    "HYBRID_CUSTOMIZED": _DIMENSIONS,
    "MICRO": Policy(activation=Span.NONE, gradient=Span.WORLD),
}
"""Every policy that ASTRA-sim 1.0 and SimAI know; the rows of a customized one have their own."""

WITH_DIMENSIONS = frozenset({"HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED"})
"""Policies that tell the dimensions of the network apart."""
WITH_TABLES = frozenset({"HYBRID_DLRM", "HYBRID_DLRM_ENHANCED"})
"""Policies of recommendation models: the first row is the tables' lookup, whose all-to-alls the bottom MLP hides."""
LAST_BOTTOM = "DLRM_LAST_BOTTOM_LAYER"
"""Key of the last row of that MLP."""
