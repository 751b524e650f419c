"""Gradients of some blocks, with the exchanges that run alongside them.

A layer whose outputs are split over tensor parallel ranks needs the inputs of all of them for the gradient of its
weight, and sums up the gradients of its inputs. Frameworks gather the former while they compute the latter, and sum
these up while they compute the gradient of the weight: each exchange runs alongside one GEMM of its own layer, and what
needs it waits. Layers that split their inputs have nothing to compute before they have gathered the gradients of their
outputs.

Sources: Megatron-LM, megatron/core/tensor_parallel/layers.py (LinearWithGradAccumulationAndAsyncCommunication);
Transformer Engine, transformer_engine/pytorch/module/linear.py and layernorm_linear.py (inputmat_total_work,
dgrad_work); with its kernels that overlap tensor parallel exchanges these are the bulk overlaps (ub_bulk_dgrad,
ub_bulk_wgrad).
"""

from collections.abc import Sequence

from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.work import Pass
from traincast.model.numbers import anywhere
from traincast.workload.words import Phase

Alongside = Sequence[tuple[str, Pass]]
"""What parts exchange alongside their GEMMs: the direction of these, and both."""


def own_gradients(
    emit: Emitter, name: str, inputs: Pass, weights: Pass, alongside: Alongside, later: Phase = Phase.WEIGHT_GRADIENT
) -> tuple[Rows, Pass, Pass]:
    """Return the gradients that parts compute alongside exchanges of their own, and what is left of both kinds.

    `inputs` and `weights` are the work of all parts, and `later` is the pass of the second.
    """
    phases = {"dgrad": (Phase.BACKWARD, f"{name} backward"), "wgrad": (later, f"{name} weight gradient")}
    rows: Rows = []
    for direction, passed in alongside if emit.job.framework.overlaps_tp_gradients else ():
        if not any(anywhere(each.size_bytes) for each in passed.exchanges):
            continue
        phase, what = phases[direction]
        # Where gradients of weights run by themselves, nothing is computed while those of inputs are summed up.
        launched = emit.all(passed.exchanges, Phase.BACKWARD, blocking=False)
        rows += emit.overlapped(launched, emit.compute(what, phase, passed))
        if direction == "dgrad":
            inputs = inputs.less(passed)
        else:
            calls = passed.without()
            inputs, weights = inputs.less(passed.less(calls)), weights.less(calls)
    return rows, inputs, weights
