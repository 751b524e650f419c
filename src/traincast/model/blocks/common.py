"""What several blocks have: norms, residual sums, casts, adapters, and what tensor parallel ranks exchange around them.

Sources of the exchanges: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 (sequence parallelism: an all-gather
before and a reduce-scatter after each block, the other way round in the backward pass, and the all-gather again there
for the gradient of the weight); Shoeybi et al. 2019, arXiv 1909.08053, section 3 (otherwise an all-reduce in each
pass).
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks import eager
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div, rounded

MASK_BYTES = 1
"""Bytes of an element of a dropout mask."""

_KINDS_OF_WEIGHTS = 3
"""Kinds of weights of a hyper-connection: before the block, behind it, and between the streams."""

MLP_AND_ATTENTION = 2
"""Norms of a layer with one before each of its blocks."""

_SPLIT_BY_INPUTS = ("linear_proj", "linear_fc2", "out_proj")
"""Linear layers of `LORA_TARGETS` whose inputs tensor parallel ranks share; of the others they share the outputs."""


def norm_elements(model: Model) -> int:
    """Return the parameters of a norm over the hidden size."""
    return model.hidden * (2 if model.norm == "layer" else 1)


def norm(
    share: Share, name: str, *, counts_as: str = "norms", saved: str = "layernorm inputs", modules: tuple[str, ...] = ()
) -> Part:
    """Return a norm over the hidden size, of which every tensor parallel rank has a copy."""
    if share.execution.eager_layers:
        kernels, kept = eager.norm(share, name), eager.kept_of_norm(share, name)
    else:
        kernels = (norm_kernel(share, share.norm_tokens, share.model.hidden), *_norm_casts(share))
        kept = share.norm_bytes
    return Part(
        name=name,
        counts_as=counts_as,
        vectors=norm_elements(share.model),
        kernels=kernels,
        saved={saved: kept},
        modules=modules,
    )


def norm_kernel(share: Share, rows: Number, width: Number) -> Kernel:
    """Return a norm over rows of a width."""
    return Kernel(family="norm", shape=(rows, width), dtype=share.execution.core_dtype)


def _norm_casts(share: Share) -> tuple[Kernel, ...]:
    """Return the extra traffic of a norm that reads fp32, cast from 16 bits, and is recomputed for its gradient.

    The cast reads 2 bytes of an element and writes 4, and the norm reads 2 more. In the backward pass both are done
    again, the norm reads and writes 2 bytes more of each fp32 tensor, and its gradient is cast back. Source:
    InternLM/InternEvo v0.2.0, internlm/model/modeling_internlm.py (norm1(residual.float()), activation_checkpoint).
    """
    if not share.execution.recasts_norms:
        return ()
    shape, dtype = (share.norm_tokens, share.model.hidden), share.execution.core_dtype

    def moved(inputs: int, outputs: int) -> tuple[tuple[str, str], ...]:
        return (("inputs", str(inputs)), ("outputs", str(outputs)))

    forward = Kernel(family="elementwise", shape=shape, dtype=dtype, options=moved(2, 2), has_backward=False)
    backward = Kernel(family="elementwise", shape=shape, dtype=dtype, options=moved(6, 5), has_forward=False)
    return forward, replace(backward, backward_alike=True)


def residual(share: Share, name: str, *, adds_bias: bool = False) -> Part:
    """Return the sum of a block's output and its input, with dropout and bias as kernels of their own if not fused.

    Of several residual streams it is the hyper-connection around the block. Where experts have biases, no bias of a
    block's output is fused (Megatron-LM, megatron/core/transformer/moe/experts.py, TEGroupedMLP); `adds_bias` says
    whether the block leaves its own to this sum.
    """
    execution = share.execution
    if share.model.residual_streams > 1:
        return hyper_connection(share, name, (2 + share.model.residual_streams) * share.model.residual_streams)
    kernel = Kernel(
        family="elementwise",
        shape=(share.norm_tokens, share.model.hidden),
        dtype=execution.core_dtype,
        count=1 if execution.fused_elementwise else 2,
        backward_alike=True,
    )
    masks = {"dropout masks": MASK_BYTES * share.norm_tokens * share.model.hidden} if execution.dropout else {}
    apart = adds_bias and share.model.experts is not None and share.model.linear_bias and execution.fused_elementwise
    added = _added_bias(kernel) if apart else ()
    kernels = eager.residual(share) if execution.eager_layers else (kernel, *added)
    return Part(name=name, counts_as="norms", kernels=kernels, saved=masks)


def _added_bias(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return what adds a bias to a block's output, and sums up its gradient, by the kernel of the residual sum."""
    forward = replace(kernel, options=(("inputs", "1"), ("outputs", "1")), has_backward=False)
    backward = replace(kernel, options=(("inputs", "1"), ("outputs", "0")), has_forward=False)
    return forward, backward


def hyper_connection(share: Share, name: str, weights: int, *, counts_as: str = "hyper_connections") -> Part:
    """Return what makes one hidden state of several residual streams, and streams of it and a block's output again.

    A matrix from all streams of a token together gives its weights: of n streams n to sum them up before the block, n
    to add its output to each, and n x n to mix them; each kind has a factor, and every weight a bias. The weights of a
    token are too few to count. Source: Xie et al. 2026, mHC, as DeepSeek-V4 has it: huggingface/transformers,
    modular_deepseek_v4.py (DeepseekV4HyperConnection); Megatron-LM, megatron/core/transformer/hyper_connection.py.
    """
    streams, rows, execution = share.model.residual_streams, share.norm_tokens, share.execution
    wide, mixes = streams * share.model.hidden, weights > streams
    return Part(
        name=name,
        counts_as=counts_as,
        gemms=(Gemm(m=rows, n=weights, k=wide, dtype=execution.core_dtype),),
        vectors=weights + (_KINDS_OF_WEIGHTS if mixes else 1),
        kernels=_of_streams(share, mixes=mixes),
        saved={"residual streams": share.residual_bytes + (share.norm_bytes if mixes else 0)},
    )


def _of_streams(share: Share, *, mixes: bool) -> tuple[Kernel, ...]:
    """Return what sums residual streams up before a block, and what mixes them and adds its output to each behind it.

    Forward, of n streams, the first reads n tensors and writes one; the second reads these and one more and writes n.
    Backward the first reads the streams and a gradient, and writes n; the second reads the streams, their gradients and
    the block's output, and writes gradients of both; and what reads the streams, the matrix among them, makes a
    gradient of its own of all of them, which autograd adds. Source: Megatron-LM (dev),
    megatron/core/fusions/fused_mhc_kernels.py (FusedProjRms, FusedHAggregate, FusedHPostBDA). A compiler that fuses
    pointwise work leaves what a norm moves.
    """
    n, rows = share.model.residual_streams, share.norm_tokens
    if share.execution.fuses_pointwise:
        return (norm_kernel(share, rows, n * share.model.hidden),) * (1 + mixes)
    forward, backward = [(n, 1)], [(n + 1, n), (2 * n, n)]
    if mixes:
        forward.append((n + 1, n))
        backward += [(2 * n + 1, n + 1), (2 * n, n)]
    return tuple(
        replace(moved(share, rows, share.model.hidden, *sizes), has_forward=not back, has_backward=back)
        for back, each in ((False, forward), (True, backward))
        for sizes in each
    )


def moved(share: Share, rows: Number, width: Number, inputs: int = 1, outputs: int = 1) -> Kernel:
    """Return a kernel that reads and writes so many tensors of a width, alike in both passes."""
    options = (("inputs", str(inputs)), ("outputs", str(outputs)))
    dtype = share.execution.core_dtype
    return Kernel(family="elementwise", shape=(rows, width), dtype=dtype, options=options, backward_alike=True)


def gradient_sums(share: Share, elements: Number) -> tuple[Kernel, ...]:
    """Return what adds a gradient of so many elements to that of the step, where the GEMM that makes it does not."""
    if share.execution.autocast:
        return eager.gradient_sums(elements)
    how = share.execution.gradient_sum
    if how == "gemm":
        return ()
    options = {"cast": (("cast", "fp32"),), "autograd": (("into", "own"),)}.get(how, ())
    return (Kernel(family="accumulate", shape=(elements,), dtype=share.execution.core_dtype, options=options),)


def adapters(share: Share, parts: tuple[Part, ...], saved: str) -> tuple[Part, ...]:
    """Return the low-rank adapters alongside the GEMMs of some parts, if a job has them and they are among its targets.

    Two GEMMs of rank r alongside each frozen one, in 16 bits, and the sum of both results; in the backward pass the sum
    of both gradients of the input. The operation fuser leaves these sums to GEMMs, which read what they add to. The
    matrices are fused as those of the model are. What the second one reads is kept under the name `saved`. Sources: Hu
    et al. 2021, arXiv 2106.09685, sections 4.1 and 4.2; NVIDIA NeMo, nemo/collections/llm/peft/lora.py
    (TEFusedLoRALinear).
    """
    found = share.execution.adapters
    if not found.rank:
        return ()
    return tuple(
        _adapter(share, part, gemm, saved) for part in parts for gemm in part.gemms if target_of(part) in found.targets
    )


def target_of(part: Part) -> str:
    """Return which of `LORA_TARGETS` a part is; the projections of latent attention go with the fused one of others."""
    name = part.name.rsplit(".", maxsplit=1)[-1]
    return "linear_qkv" if name.startswith(("linear_q_", "linear_kv_")) else name


def _adapter(share: Share, part: Part, gemm: Gemm, saved: str) -> Part:
    """Return the adapter of one GEMM, split over tp as that is."""
    rank, dtype, width = share.execution.adapters.rank, share.execution.core_dtype, share.execution.element_bytes
    by_inputs = target_of(part) in _SPLIT_BY_INPUTS
    if by_inputs:
        outputs, rows = ceil_div(gemm.n, share.tp), share.norm_tokens
        first, second = replace(gemm, n=rank, dtype=dtype), Gemm(m=gemm.m, n=outputs, k=rank, dtype=dtype)
    else:
        outputs, rows = gemm.n, gemm.m
        first = replace(gemm, n=ceil_div(rank, share.tp), dtype=dtype)
        second = Gemm(m=gemm.m, n=outputs, k=rank, dtype=dtype)
    layers = eager.linear_layers(share, f"{part.name}.adapter")
    kept = {saved: gemm.m * rank * width}
    if target_of(part) != "linear_proj":
        # The base keeps no input, for its weight is frozen; attention keeps its output for itself.
        kept["adapter inputs"] = gemm.m * gemm.k * width
    exchanges = _of_adapter(share, gemm, by_inputs=by_inputs)
    return Part(
        name=f"{part.name}.adapter",
        counts_as=part.counts_as,
        gemms=(first, second),
        kernels=_adapter_sums(share, gemm, rows) if not share.execution.eager_layers else eager.adapter(gemm, layers),
        saved=kept,
        drops=dict.fromkeys(kept, part.modules) if part.modules else {},
        modules=part.modules,
        forward=exchanges,
        backward=exchanges,
        adapter=True,
    )


def _adapter_sums(share: Share, gemm: Gemm, rows: Number) -> tuple[Kernel, ...]:
    """Return the sum of a GEMM's outputs and its adapter's, and of the gradients of their input."""
    read = (("inputs", "1"), ("outputs", "0")) if share.execution.fused_operations else ()
    sums = Kernel(family="elementwise", shape=(rows, gemm.n), dtype=share.execution.core_dtype, options=read)
    return (
        replace(sums, has_backward=False),
        replace(sums, shape=(gemm.m, gemm.k), has_forward=False, backward_alike=True),
    )


def _of_adapter(share: Share, gemm: Gemm, *, by_inputs: bool) -> tuple[Exchange, ...]:
    """Return the exchanges of an adapter over tp, which are as many bytes in both passes.

    For a GEMM that is split by its outputs both matrices are, and the narrow vectors are gathered between them.
    For one that is split by its inputs the first matrix is; its sums are reduced, and outputs of the second go to
    the ranks that hold their tokens: by an all-to-all where the sequence is split, by a gather where it is not. Source:
    NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/peft/utils.py (ParallelLinearAdapter, a2a_experimental), as
    MLPerf's submissions of Llama 2 70B have it.
    """
    split, whole = share.splits_sequence, share.copies_sequence
    narrow = gemm.m * share.execution.adapters.rank * share.execution.element_bytes
    wide = gemm.m * gemm.n * share.execution.element_bytes
    if not by_inputs:
        return _tp("all_gather", narrow, split | whole)
    return (
        *_tp("reduce_scatter", narrow, split),
        *_tp("all_gather", narrow, split),
        *_tp("all_to_all", wide // share.tp, split),
        *_tp("all_reduce", narrow, whole),
        *_tp("all_gather", wide, whole),
    )


class Around(Struct, frozen=True):
    """Exchanges of a block, with the part that splits its outputs first and the one that sums up last."""

    enter_forward: tuple[Exchange, ...]
    enter_backward: tuple[Exchange, ...]
    leave_forward: tuple[Exchange, ...]
    leave_backward: tuple[Exchange, ...]


def around(share: Share, width: int | None = None) -> Around:
    """Return the exchanges around a block of a rank's share, or around a part that reads vectors of a width.

    What GEMMs read in 8 bits is cast before it is gathered: inputs along rows, in the backward pass along columns, and
    gradients both ways where these are two copies. Source: Transformer Engine, docs/features/low_precision_training
    (quantized all-gather) and transformer_engine/pytorch/module/base.py (grad_output_preprocess).
    """
    split, whole, cast = share.splits_sequence, share.copies_sequence, share.execution.scaling
    cast = cast if cast is not None and cast.gathered else None
    one = None if cast is None else cast.element_bytes
    both = one if cast is None or one is None or cast.copies != "both" or not share.trains_weights else 2 * one
    gather = exchange(share, "all_gather", split, width=width, element_bytes=one)
    scatter = exchange(share, "reduce_scatter", split, width=width)
    reduce = exchange(share, "all_reduce", whole, width=width)
    return Around(
        enter_forward=gather,
        enter_backward=entered(share, gather, (*scatter, *reduce)),
        leave_forward=(*scatter, *reduce),
        leave_backward=exchange(share, "all_gather", split, width=width, element_bytes=both),
    )


def entered(share: Share, gather: tuple[Exchange, ...], summed: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges of the backward pass of a part that gathers its inputs and splits its outputs.

    The gradient of the weight needs the inputs of all ranks, which come while that of the inputs is computed, and is
    computed while the latter is summed up. Sources: Megatron-LM, megatron/core/tensor_parallel/layers.py
    (LinearWithGradAccumulationAndAsyncCommunication); Transformer Engine, transformer_engine/pytorch/module/linear.py
    (_Linear.backward: inputmat_total_work, dgrad_work).
    """
    again = gather if share.trains_weights else ()
    return (
        *(replace(each, alongside="dgrad") for each in again),
        *(replace(each, alongside="wgrad") for each in summed),
    )


def exchange(
    share: Share, operation: str, takes_place: Number, *, width: int | None = None, element_bytes: float | None = None
) -> tuple[Exchange, ...]:
    """Return an exchange over tp of the hidden state, or of vectors of another width, where it takes place.

    `element_bytes` are those of an element where that is not a 16-bit activation.
    """
    elements = share.tokens * (width or share.model.hidden)
    size = elements * share.execution.element_bytes if element_bytes is None else rounded(elements * element_bytes)
    return _tp(operation, size, takes_place)


def _tp(operation: str, size_bytes: Number, takes_place: Number) -> tuple[Exchange, ...]:
    """Return an exchange over tp where it takes place."""
    if takes_place is False:
        return ()
    return (Exchange(group="tp", operation=operation, size_bytes=size_bytes * takes_place),)


def entry_projection(share: Share, name: str, counts_as: str, width: Number) -> Part:
    """Return the projection from the hidden state to so many vectors of a mixer on each rank, split over tp."""
    execution, tokens, exchanged = share.execution, share.tokens, around(share)
    return Part(
        name=name,
        counts_as=counts_as,
        gemms=(Gemm(m=tokens, n=width, k=share.model.hidden, dtype=execution.precision, split="outputs"),),
        saved={
            "mixer inputs": share.norm_tokens * share.model.hidden * share.input_bytes,
            "mixer projections": tokens * width * execution.element_bytes,
        },
        forward=exchanged.enter_forward,
        backward=exchanged.enter_backward,
    )


def exit_projection(
    share: Share, name: str, counts_as: str, width: Number, recomputed_with: tuple[str, ...] = ()
) -> Part:
    """Return the projection from so many vectors of a mixer on each rank back to the hidden state.

    Its inputs are dropped where modules are recomputed that make them again.
    """
    exchanged = around(share)
    precision = share.execution.precision
    return Part(
        name=name,
        counts_as=counts_as,
        gemms=(Gemm(m=share.tokens, n=share.model.hidden, k=width, dtype=precision, split="inputs"),),
        saved={"mixer outputs": share.tokens * width * share.input_bytes},
        drops={"mixer outputs": recomputed_with} if recomputed_with else {},
        forward=exchanged.leave_forward,
        backward=exchanged.leave_backward,
    )
