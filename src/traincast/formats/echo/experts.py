"""What expert layers of a trace exchange and compute, as traced or brought to other loads; the loads that they show.

In a run each rank dispatches the tokens of its microbatch and gets those that were routed to its
own experts: the dispatch shows what leaves, the combine that follows what arrived.

A lone GPU that plays a rank saw only the tokens that happened to be routed to its own experts, and
no run has their loads. Balanced, a rank receives as many as it routes. So dispatch and combine
both carry the routed tokens, times the load of each rank where the loads are unequal, and the
experts' work is brought from the traced tokens to these; and so it is for a run to which other
loads are given.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from traincast.diagnostics import Note, Notebook
from traincast.errors import FormatError
from traincast.formats.echo.files import only_run
from traincast.formats.echo.layout import Traced, decide_layouts
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.job.options import LayoutOptions
from traincast.units import counted
from traincast.workload.experts import ExpertLoads, describe, expert_rank_W
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
    received_bytes: int | None = None
    """What arrives, where the trace shows it; else as much as leaves."""


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


def traced_sections(op: TraceOp) -> dict[int, Section]:
    """Return what each all-to-all of a traced run carried, by the index of the sub-operation.

    What arrives at a dispatch leaves at the combine, and the other way round.
    """
    found: dict[int, Section] = {}
    for layer in expert_layers(op):
        out, back = (op.sub_ops[index].size_bytes for index in (layer.dispatch, layer.combine))
        found[layer.dispatch], found[layer.combine] = Section(0.0, out, back), Section(0.0, back, out)
    return found


def expert_layers(op: TraceOp) -> list[ExpertLayer]:
    """Return the expert layers of an operation: its expert all-to-alls of like rows, two by two.

    The first of a pair carries what the rank routes (in the backward pass, the gradients of what
    it combined), the second what its experts received. Rows of another width (such as routing
    weights, which travel with the tokens) pair among themselves, and one number a token is no layer.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, sub in enumerate(op.sub_ops):
        if is_exchange(sub) and sub.shape is not None and len(sub.shape) > 1:
            alike[sub.dtype, *sub.shape[1:]].append(index)
    layers = []
    for places in alike.values():
        for first, second in zip(places[::2], places[1::2], strict=False):
            sent, received = op.sub_ops[first].shape, op.sub_ops[second].shape
            if sent is not None and received is not None:
                layers.append(ExpertLayer(first, second, sent[0], received[0], sent[-1]))
    return sorted(layers, key=lambda layer: layer.dispatch)


def received_over_mean(ops: Iterable[TraceOp]) -> float | None:
    """Return the tokens that a rank's experts got over those that the rank routed; None without expert layers.

    All ranks of a group route about as many, so that what one routes is the mean of what they receive.
    """
    return over_routed([layer for op in ops for layer in expert_layers(op)])


def over_routed(layers: Sequence[ExpertLayer]) -> float | None:
    """Return the tokens that arrived over those that the same rank sent; None where it sent none."""
    routed = math.fsum(layer.routed for layer in layers)
    return math.fsum(layer.traced for layer in layers) / routed if routed else None


def is_exchange(sub: SubOp) -> bool:
    """Tell whether a sub-operation dispatches tokens to experts or combines what they made of them."""
    return sub.comm is Operation.ALL_TO_ALL and sub.group is Group.EP


def traced_loads(paths: Sequence[Path], ep: int | None = None) -> tuple[ExpertLoads, Note]:
    """Return the tokens that each expert rank of a traced run got, over the mean.

    Parameters
    ----------
    paths : sequence of Path
        Rank traces of one run: of every expert rank at least one.
    ep : int, optional
        Expert ranks of a group, where the files do not tell.

    Returns
    -------
    loads : tuple of float [ep]
        Means over the layers, microbatches, stages and groups that were traced.
    note : Note
        Says so, with the highest load that a single exchange had.

    Raises
    ------
    FormatError
        If the files are not of one run, show no expert layers, or lack an expert rank.
    """
    run = only_run(paths)
    traced, place = Traced(run.traces, profile=False), str(paths[0])
    layers_W = {rank: [layer for op in trace.ops for layer in expert_layers(op)] for rank, trace in run.traces.items()}
    if not any(layers_W.values()):
        raise FormatError("shows no tokens of experts: there are no all-to-alls over ep, two by two", place)
    said = run.traces[traced.first_rank].name.ep
    layout = decide_layouts(traced, LayoutOptions(ep=ep if said is None else None), Notebook(place)).traced
    place_W = expert_rank_W(layout)
    layers_E: dict[int, list[ExpertLayer]] = defaultdict(list)
    for rank, layers in layers_W.items():
        layers_E[int(place_W[rank])] += layers
    missing = [str(expert) for expert in range(layout.ep) if not layers_E[expert]]
    if missing:
        raise FormatError(
            f"lacks the trace of any rank with expert rank {', '.join(missing)} of {layout.ep}; give them too", place
        )
    share_E = [over_routed(layers_E[expert]) or 0.0 for expert in range(layout.ep)]
    mean = math.fsum(share_E) / layout.ep
    if not mean:
        raise FormatError("gives no expert rank any tokens", place)
    loads = tuple(share / mean for share in share_E)
    most = max(over_routed([layer]) or 0.0 for layers in layers_E.values() for layer in layers)
    text = f"from {counted(len(run.traces), 'traced rank')}, {describe(loads)}" if len(loads) > 1 else "one expert rank"
    single = f"; the mean of all layers, microbatches and groups, of which single ones had up to {most / mean:.3g} x"
    return loads, Note("expert-loads-traced", text + single, place)
