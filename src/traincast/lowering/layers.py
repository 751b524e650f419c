"""The layers of a stage with their exchanges, and what hides those of tokens with experts.

All layers of a stage are alike enough to be added up: what precedes the experts, tokens out, experts, tokens back.
Where something may hide these exchanges they are launched, and only what needs them waits: another pass
(`traincast.workload.sequence`), or the shared experts, which need neither.

Sources: Megatron-LM, megatron/core/models/common/model_chunk_schedule_plan.py (overlap_moe_expert_parallel_comm) and
megatron/core/transformer/moe/shared_experts.py (moe_shared_expert_overlap: FC1 alongside the dispatch, FC2 alongside
the combine).
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Protocol

from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.gradients import Alongside, own_gradients
from traincast.lowering.launches import Launches
from traincast.lowering.work import Exchange, Pass
from traincast.model.numbers import Number, anywhere
from traincast.workload.words import Phase


class Layers(Protocol):
    """The layers of a stage."""

    @property
    def like(self) -> Hashable:
        """What tells layers that do other work apart."""

    def host(self, phase: Phase) -> Launches:
        """Return what the host does in a pass."""

    def in_pass(self, phase: Phase) -> Pass:
        """Return what they do in a pass."""

    def at(self, place: str, phase: Phase) -> Pass:
        """Return what they run in a pass at a place alongside the exchanges of tokens with their experts."""

    def alongside(self, without: Collection[str] = ()) -> Alongside:
        """Return what parts exchange in the backward pass alongside their own GEMMs, with these; not at some places."""

    def nothing(self) -> Pass:
        """Return a pass in which nothing runs."""


def layers_forward(emit: Emitter, stage: Layers, alongside: list[Exchange]) -> Rows:
    """Return the layers of a forward pass with what the host does and their exchanges, and those alongside the pass.

    Where the host waits for the counts of tokens, it has nothing launched ahead when they go out: it must launch what
    follows while that runs, as it must what precedes while this runs.
    """
    phase, host = Phase.FORWARD, stage.host(Phase.FORWARD)
    apart = anywhere(host.waits) and not emit.job.experts.pairs_passes
    passed = emit.again(("layers", phase, stage.like), lambda: _forward(emit, stage, host if apart else None))
    passed = emit.alongside(alongside, phase, passed)
    return passed if apart else emit.hosted(host, phase, passed)


def _forward(emit: Emitter, stage: Layers, host: Launches | None) -> Rows:
    """Return a forward pass with its exchanges; with the host, if that launches it in two parts."""
    phase, layers = Phase.FORWARD, stage.in_pass(Phase.FORWARD)
    out, back, others = layers.with_experts()
    hidden = bool(emit.job.experts.hides_exchanges and out)
    if not (hidden or anywhere(stage.host(phase).waits)):
        return emit.alongside(layers.exchanges, phase, emit.compute("layers forward", phase, layers))
    experts, dispatch, combine = _places(emit, stage, phase)
    before = emit.compute("layers forward", phase, layers.without(experts, dispatch, combine))
    rows = _hidden(emit, phase, out, emit.compute(_SHARED, phase, dispatch)) if hidden else emit.all(out, phase)
    rows += emit.compute("experts forward", phase, experts)
    rows += _hidden(emit, phase, back, emit.compute(_SHARED, phase, combine)) if hidden else emit.all(back, phase)
    if host is None:
        return emit.alongside(others, phase, before + rows)
    ahead, after = host.parts
    return emit.hosted(ahead, phase, emit.alongside(others, phase, before)) + emit.hosted(after, phase, rows)


def layers_backward(emit: Emitter, stage: Layers) -> Rows:
    """Return the layers of a backward pass with what the host does and their exchanges, without recomputation."""
    phase = Phase.BACKWARD
    return emit.again(
        ("layers", phase, stage.like), lambda: emit.hosted(stage.host(phase), phase, _backward(emit, stage))
    )


def _backward(emit: Emitter, stage: Layers) -> Rows:
    """Return a backward pass with its exchanges, in the order of `layers_forward` turned round.

    Weight gradients of experts follow the gradients of their inputs at once, or, where they are delayed, hide the way
    of these back.
    """
    layers, weights = map(stage.in_pass, (Phase.BACKWARD, Phase.WEIGHT_GRADIENT))
    out, back, others = layers.with_experts()
    if not (emit.job.experts.hides_exchanges and out):
        rows, layers, weights = own_gradients(emit, "layers", layers, weights, stage.alongside())
        compute = emit.compute("layers backward", Phase.BACKWARD, layers)
        compute += emit.compute("layers weight gradient", Phase.WEIGHT_GRADIENT, weights)
        return rows + emit.alongside(layers.exchanges, Phase.BACKWARD, compute)
    experts, dispatch, combine = _places(emit, stage, Phase.BACKWARD)
    own, of_dispatch, of_combine = _places(emit, stage, Phase.WEIGHT_GRADIENT)
    weight = emit.compute("experts weight gradient", Phase.WEIGHT_GRADIENT, own)
    rows = _hidden(emit, Phase.BACKWARD, out, _shared_backward(emit, combine, of_combine))
    rows += emit.compute("experts backward", Phase.BACKWARD, experts)
    rows += [] if emit.job.experts.delay_wgrad else weight
    shared = _shared_backward(emit, dispatch, of_dispatch)
    rows += _hidden(emit, Phase.BACKWARD, back, shared + (weight if emit.job.experts.delay_wgrad else []))
    weights = weights.without(own, of_dispatch, of_combine)
    layers = layers.without(experts, dispatch, combine)
    layers.exchanges = others
    places = _OVERLAPPED if emit.job.experts.shared_expert_overlap else ()
    alongside = stage.alongside(places)
    first, layers, weights = own_gradients(emit, "layers", layers, weights, alongside)
    rows += emit.compute("layers backward", Phase.BACKWARD, layers)
    rows += emit.compute("layers weight gradient", Phase.WEIGHT_GRADIENT, weights)
    return first + emit.alongside(layers.exchanges, Phase.BACKWARD, rows)


_SHARED = "shared experts forward"
_OVERLAPPED = ("with dispatch", "with combine")
"""Places of the parts of shared experts."""


def _places(emit: Emitter, stage: Layers, phase: Phase) -> tuple[Pass, Pass, Pass]:
    """Return the routed experts, and what of the shared ones runs alongside the dispatch and alongside the combine."""
    overlapped = emit.job.experts.shared_expert_overlap
    shared = [stage.at(f"with {each}", phase) if overlapped else stage.nothing() for each in ("dispatch", "combine")]
    return stage.at("experts", phase), shared[0], shared[1]


def _shared_backward(emit: Emitter, inputs: Pass, weights: Pass) -> Rows:
    rows = emit.compute("shared experts backward", Phase.BACKWARD, inputs)
    return rows + emit.compute("shared experts weight gradient", Phase.WEIGHT_GRADIENT, weights)


def _hidden(emit: Emitter, phase: Phase, exchanges: Mapping[Exchange, Number], meanwhile: Rows) -> Rows:
    """Return exchanges that are launched, what runs meanwhile, and the wait for them."""
    return emit.overlapped(emit.all(exchanges, phase, blocking=False), meanwhile)
