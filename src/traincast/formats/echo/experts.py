"""What expert layers of a trace exchange and compute, as traced or brought to other loads.

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
from typing import NamedTuple

from traincast.diagnostics import Notebook
from traincast.formats.echo.files import Run
from traincast.formats.echo.lines import Call, TraceOp
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.experts import ExpertLoads, describe
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group, Operation

_SECONDS_PER_TOKEN = {"forward_step": 0.5e-6, "backward_step": 0.95e-6}
"""Work of an expert layer per routed token at hidden size 4096. Source: slopes of pure compute over
the traced tokens in the 16-GPU MoE runs of Echo's traces (fwyc0573/moe_mg)."""

_HIDDEN = 4096
"""Hidden size of the runs the slopes come from; the work of a token grows with its square."""

_SHOWN_LOADS = 8


class ExpertLayer(NamedTuple):
    """One dispatch and combine: the tokens a rank routes, and those its experts were traced with."""

    dispatch: int
    combine: int
    """Indices of the two all-to-alls among the sub-operations."""
    routed: int
    traced: int
    hidden: int


class ExpertScaling(NamedTuple):
    """The load that expert layers are brought to."""

    load: float
    """Tokens of the rank's experts over the mean."""
    loads: ExpertLoads | None
    """Those of all ranks of its `ep` group; None where they are equal."""


class Exchange(NamedTuple):
    """What precedes and what is carried by one all-to-all."""

    extra_s: float
    """Seconds to add to the computation before it."""
    size_bytes: int | None
    received_bytes: int | None = None
    """What arrives, where the trace shows it; else as much as leaves."""


def exchanges(op: TraceOp, scaling: ExpertScaling | None) -> dict[int, Exchange]:
    """Return what each all-to-all of an operation carries, by the index of the sub-operation.

    As traced, what arrives at a dispatch leaves at the combine, and the other way round; under a load both carry
    the routed tokens, and the experts' compute time is scaled to them.
    """
    found: dict[int, Exchange] = {}
    for layer in expert_layers(op):
        out, back = (op.sub_ops[index].call.size_bytes for index in (layer.dispatch, layer.combine))
        if scaling is None:
            found[layer.dispatch], found[layer.combine] = Exchange(0.0, out, back), Exchange(0.0, back, out)
        else:
            per_token_s = _SECONDS_PER_TOKEN.get(op.op, 0.0) * (layer.hidden / _HIDDEN) ** 2
            extra_s = per_token_s * (layer.routed * scaling.load - layer.traced)
            found[layer.dispatch], found[layer.combine] = Exchange(0.0, out), Exchange(extra_s, out)
    return found


def expert_layers(op: TraceOp) -> list[ExpertLayer]:
    """Return the expert layers of an operation: its expert all-to-alls of like rows, two by two.

    The first of a pair carries what the rank routes (in the backward pass, the gradients of what
    it combined), the second what its experts received. Rows of another width (such as routing
    weights, which travel with the tokens) pair among themselves, and one number a token is not a layer.
    """
    alike: dict[tuple[object, ...], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for index, sub in enumerate(op.sub_ops):
        call = sub.call
        if is_exchange(call) and call.shape is not None and len(call.shape) > 1:
            alike[call.dtype, *call.shape[1:]].append((index, call.shape))
    layers = [
        ExpertLayer(first, second, sent[0], received[0], sent[-1])
        for places in alike.values()
        for (first, sent), (second, received) in zip(places[::2], places[1::2], strict=False)
    ]
    return sorted(layers, key=lambda layer: layer.dispatch)


def is_exchange(call: Call) -> bool:
    """Tell whether a collective dispatches tokens to experts or combines what they made of them."""
    return call.comm is Operation.ALL_TO_ALL and call.group is Group.EP


def received_over_routed(layers: Sequence[ExpertLayer]) -> float | None:
    """Return the tokens that a rank's experts got over those that the rank routed; None where it routed none.

    All ranks of a group route about as many, so that what one routes is the mean of what they receive.
    """
    routed = math.fsum(layer.routed for layer in layers)
    return math.fsum(layer.traced for layer in layers) / routed if routed else None


def layers_of(ops: Iterable[TraceOp]) -> list[ExpertLayer]:
    """Return the expert layers of some operations."""
    return [layer for op in ops for layer in expert_layers(op)]


def experts_of(ops: Iterable[TraceOp]) -> int | None:
    """Return the number of experts, None where no gathered token counts tell it."""
    calls = (sub.call for op in ops for sub in op.sub_ops)
    counts = (call.shape for call in calls if call.group is Group.EP and call.comm is Operation.ALL_GATHER)
    return max((shape[0] for shape in counts if shape is not None and len(shape) == 1), default=None)


def exchanges_tokens(run: Run) -> bool:
    """Tell whether any rank communicates over its experts."""
    return any(sub.call.group is Group.EP for op in run.ops for sub in op.sub_ops)


def changes_loads(run: Run, options: LayoutOptions) -> bool:
    """Tell whether the experts get other loads than they were traced with.

    A profile was traced alone, so that its always are others. A measured all-to-all is one of the traced tokens, so
    only an estimated one can have others.
    """
    asked = options.expert_imbalance is not None or options.expert_loads is not None
    return run.is_profile or (asked and options.comm == "model" and exchanges_tokens(run))


def say_of_scaled_experts(run: Run, options: LayoutOptions, loads: ExpertLoads | None, notes: Notebook) -> None:
    """Note what the experts were traced with, and what they are brought to."""
    layers = layers_of(run.ops)
    if not layers:
        return
    fewest, most = (pick(layer.traced for layer in layers) for pick in (min, max))
    shown = str(most) if fewest == most else f"{fewest} to {most}"
    unequal = "" if loads is None else f"; of these {describe(loads)}, in every layer and microbatch"
    notes.assume(
        "expert-tokens",
        f"expert layers were traced with {shown} tokens; a balanced rank "
        f"receives as many as it routes, {layers[0].routed}{unequal}: dispatch and combine carry these tokens, and the "
        "experts' compute time is scaled to them at 0.5 us forward and 0.95 us backward per token at hidden size 4096",
        None,
        brief=f"expert layers, traced with {shown} tokens, are scaled to the {layers[0].routed} of a balanced rank",
    )
    if options.expert_imbalance is None and options.expert_loads is None:
        text = "experts are taken as balanced; measured runs of this kind were 9 to 50 % slower"
        notes.warn("expert-balance", f"{text} (give --expert-imbalance)", None)


def warn_of_untraced_experts(run: Run, layout: Parallel, notes: Notebook) -> None:
    """Warn where ranks that exchange tokens with traced ones were not traced: who came last is not known."""
    table = rank_groups(layout, [Group.EP])[Group.EP]
    groups = table.members_GK[sorted({int(table.group_of_rank_W[rank]) for rank in run.traces})]
    lacking = [members for members in groups.tolist() if not run.traces.keys() >= set(members)]
    if not lacking:
        return
    each = (received_over_routed(layers_of(trace.ops)) for trace in run.traces.values())
    loads = sorted({f"{load:.2f}" for load in each if load is not None})
    notes.warn(
        "expert-ranks-untraced",
        f"{len(lacking)} of {counted(len(groups), 'group')} of expert ranks {'was' if len(lacking) == 1 else 'were'} "
        f"traced in part, by ranks whose experts got {', '.join(loads[:_SHOWN_LOADS])} x the mean tokens: the spans of "
        "their all-to-alls may hold waiting for busier ranks, and who was not traced does as these did (give all "
        "ranks, or --comm model with --expert-loads or --expert-imbalance)",
        None,
    )
