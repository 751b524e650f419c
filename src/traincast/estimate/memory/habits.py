"""What a framework keeps in memory, where frameworks differ; each entry names the source that it follows."""

from dataclasses import dataclass, replace

from traincast.job.framework import Framework

_FIRST_YEAR_OF_EARLY_WEIGHTS = 2025
"""Router weights multiply the experts' activations, not their outputs, since Megatron Core 0.12 (its commit 2659630721
of April 2025; token_dispatcher.py unpermutes without weights); torchtitan multiplies the experts' inputs
(score_before_experts)."""

_FUSED_LOGIT_BYTES = 4
"""A fused loss has logits and their gradient in 16 bits. That both are there together was chosen with SimuMax's runs in
view (docs/memory.md); Transformer Engine until 2.17 writes the one over the other (triton/cross_entropy.py)."""

_LAST_YEAR_OF_DROPOUT = 2022
"""GPT-3 and BLOOM train with dropout, Llama (Touvron et al. 2023, arXiv 2302.13971) and its successors without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a framework keeps, and for how long.

    Parameters
    ----------
    gradient_bytes : int
        Bytes per parameter of the gradients that are kept from the first microbatch to the optimizer.
    passing_gradient_bytes : int
        Bytes per parameter of gradients that only pass through but have a place of their own.
    main_gradient_bytes : int
        Bytes per parameter of fp32 gradients that the optimizer's step makes of those in 16 bits; sharded with it, and
        freed before the next forward pass.
    dropout : bool
        Whether layers keep dropout masks.
    logit_bytes : int
        Bytes per logit while the loss is computed.
    saved_logit_bytes : int
        Those of them that wait for the backward pass.
    fused_loss : bool
        Whether `logit_bytes` has the logits' gradient; else that is made in addition to what was saved.
    activation_copy : bool
        Whether a gate's output is kept beside its product with the other half.
    core_output_copy : bool
        Whether the output projection keeps a transposed copy of the attention's output.
    expert_output_copy : bool
        Whether the experts' outputs are kept, for the gradient of the router weights that multiply them.
    gradient_placeholders : bool
        Whether weight gradients that products add to the main gradients themselves leave PyTorch an unused tensor of
        each shape of weight, in 16 bits.
    stage_output_copy : bool
        Whether a pipeline stage keeps its output, which the next one holds as its input, until its backward pass.
    weight_copies : bool
        Whether 8-bit copies of the weights outlive a microbatch.
    buffer_bytes : float
        Buckets that gradients and parameters pass through.
    """

    gradient_bytes: int = 4
    passing_gradient_bytes: int = 0
    main_gradient_bytes: int = 0
    dropout: bool = False
    logit_bytes: int = 6
    saved_logit_bytes: int = 4
    fused_loss: bool = False
    activation_copy: bool = False
    core_output_copy: bool = False
    expert_output_copy: bool = False
    gradient_placeholders: bool = False
    stage_output_copy: bool = False
    weight_copies: bool = True
    buffer_bytes: float = 0.0


def habits_of(framework: Framework, zero: int) -> Habits:
    """Return the habits of a framework.

    Parameters
    ----------
    framework : Framework
        The framework; one that is not known by name is taken by its properties.
    zero : int
        Stage of ZeRO; 3 is FSDP, which reduces into shards.

    Returns
    -------
    Habits

    Notes
    -----
    Sources: Megatron-LM, docs on the distributed optimizer (18 bytes per parameter with fp32 gradients, 20 with
    16-bit ones) and megatron/core/tensor_parallel/cross_entropy.py (bf16 logits, an fp32 copy that becomes the
    softmax in place); nanotron, optim/gradient_accumulator.py (fp32 accumulator beside PyTorch DDP's 16-bit
    buckets), tensor_parallel/functional.py (logits in bf16, fp32, and a shifted fp32 copy), models/llama.py;
    DeepSpeed, runtime/pipe/engine.py (outputs wait in ``pipe_buffers``), reduce and all-gather buckets of 5e8
    elements (defaults, recalled); PyTorch, cross_entropy in
    nn/functional.py (16-bit logits, and in fp32 the log-softmax, its gradient and the logits' gradient).
    """
    dropout = framework.year <= _LAST_YEAR_OF_DROPOUT
    gradient = framework.grad_reduce_bytes
    found = Habits(
        gradient_bytes=gradient,
        main_gradient_bytes=4 if gradient == 2 else 0,
        dropout=dropout,
        activation_copy=not framework.fused_elementwise,
        expert_output_copy=framework.year < _FIRST_YEAR_OF_EARLY_WEIGHTS,
    )
    if framework.name.startswith("nanotron"):
        return replace(
            found,
            gradient_bytes=4,
            passing_gradient_bytes=2,
            main_gradient_bytes=0,
            logit_bytes=10,
            activation_copy=True,
            core_output_copy=True,
        )
    if "deepspeed" in framework.name:
        return replace(found, stage_output_copy=True, buffer_bytes=2 * 5e8 * 2)
    # What the loss and 8-bit products keep is the framework's, whatever is sharded.
    if framework.fsdp:
        return replace(found, main_gradient_bytes=0, logit_bytes=14, weight_copies=False)
    if framework.gradient_placeholders:
        found = replace(found, gradient_placeholders=zero < 3, fused_loss=True, logit_bytes=_FUSED_LOGIT_BYTES)
    return replace(found, main_gradient_bytes=0) if zero == 3 else found
