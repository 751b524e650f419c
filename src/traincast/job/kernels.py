"""The kernels that layers run: attention, CUDA graphs, fused operations, and the padding of the vocabulary.

Names are those of Megatron-LM (megatron/core/transformer/transformer_config.py: cuda_graph_impl, cuda_graph_scope).
"""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.hardware.attention_kernels import check_kernel, kernel_instead
from traincast.job.decisions import Decisions
from traincast.job.frameworks import FULL_ITERATION, Framework
from traincast.job.request import JobRequest

GRAPH_IMPLS = ("none", "local", "transformer_engine", "full_iteration")
"""What captures CUDA graphs: nothing, Megatron-LM or Transformer Engine module by module, or the whole step at once."""

UNFUSED = {
    "rope": "the rotary embedding",
    "gradient_sums": "sums of weight gradients over microbatches, which GEMMs else make",
    "experts": "the GEMMs of experts, which are launched one expert after another",
}
"""What may run as kernels of its own where a framework fuses it, and what it is (Megatron-LM, megatron/training/
arguments.py: --no-rope-fusion, --no-gradient-accumulation-fusion, and no --moe-grouped-gemm)."""

STEP_CHECKS = {
    "params_norm": "the norm of all parameters",
    "zeros_in_grad": "how many gradients are zero",
}
"""What may be computed once a step to be logged, and what it is: the host waits for it (Megatron-LM, megatron/training/
training.py: --log-params-norm, --log-num-zeros-in-grad)."""


class Kernels(Struct, frozen=True, kw_only=True, rename={"attention": "attention_kernel"}):
    """What layers are computed with."""

    attention: str
    """Generation of the attention kernel, of `traincast.hardware.attention_kernels.ATTENTION_KERNELS`."""
    cuda_graphs: bool
    """Whether CUDA graphs hold anything: the modules of `cuda_graph_scope`, or whole layers where that is empty."""
    padded_vocab: int
    """Entries of the vocabulary, with those that make GEMMs of the LM head and of the embedding divide."""
    cuda_graph_scope: tuple[str, ...] = ()
    unfused: tuple[str, ...] = ()
    """What runs as kernels of its own though the framework fuses it, of `UNFUSED`."""
    step_checks: tuple[str, ...] = ()
    """What is computed once a step to be logged, of `STEP_CHECKS`."""
    launch_blocking: bool = False
    """Whether the host waits for every kernel that it launches: nothing runs alongside another, and the GPU waits for
    every launch (CUDA C++ programming guide, asynchronous concurrent execution, of CUDA_LAUNCH_BLOCKING)."""
    te_op_fuser: bool = False
    """Whether the GEMMs of experts, their activation and their casts are few fused kernels (Transformer Engine)."""
    dropout: bool = False
    """Whether layers have dropout."""
    one_hot_embedding: bool = False
    """Whether GEMMs of one-hot rows look tokens up, and add up the gradients of what they found."""
    loss_kernel: str = "unfused"
    """What computes the loss from the logits, of `traincast.job.frameworks.LOSS_KERNELS`."""
    loss_tiles: int = 1
    """Parts of the sequences whose logits are there one after another, made again in the backward pass."""


def decide_attention_kernel(request: JobRequest, decided: Decisions) -> str:
    """Decide the attention kernel: the framework's, as far as the GPU runs it; refuse one that does not run there."""
    gpu = decided.gpu
    if request.attention_kernel is not None:
        if gpu is not None:
            check_kernel(request.attention_kernel, gpu)
        return request.attention_kernel
    wanted = decided.framework.attention_kernel
    if gpu is not None and gpu.vendor == "AMD":
        wanted = decided.framework.attention_kernel_amd or wanted
    kernel, why = (wanted, None) if gpu is None else kernel_instead(wanted, gpu)
    why = why or f"as {decided.framework.name} does"
    decided.note("assumed-attention-kernel", f"attention_kernel is not given: {kernel}, {why}")
    return kernel


def decide_padded_vocab(request: JobRequest, decided: Decisions, tp: int) -> int:
    """Return the vocabulary rounded up to what tp divides."""
    multiple = (request.vocab_multiple or decided.framework.vocab_multiple) * tp
    padded = -(-request.model.vocab // multiple) * multiple
    if padded != request.model.vocab and request.vocab_multiple is None:
        decided.note(
            "padded-vocab",
            f"vocabulary of {request.model.vocab} padded to {padded}, a multiple of "
            f"{decided.framework.vocab_multiple} x tp {tp}",
            # At most as much longer as the LM head, were that all of the step.
            effect=padded / request.model.vocab - 1,
        )
    return padded


def decide_kernels(request: JobRequest, framework: Framework, *, attention: str, padded_vocab: int) -> Kernels:
    """Decide what CUDA graphs hold; the attention kernel and the vocabulary, decided before, go with it.

    Raises
    ------
    ConfigError
        If two of the fields that say it contradict each other.
    """
    graphs, scope = _graphs(request, framework)
    return Kernels(
        attention=attention,
        cuda_graphs=graphs,
        padded_vocab=padded_vocab,
        cuda_graph_scope=scope,
        unfused=request.unfused or (),
        step_checks=request.step_checks or (),
        launch_blocking=bool(request.launch_blocking),
        te_op_fuser=framework.te_op_fuser if request.te_op_fuser is None else request.te_op_fuser,
        dropout=framework.memory.dropout if request.dropout is None else request.dropout,
        one_hot_embedding=bool(request.one_hot_embedding),
        loss_kernel=request.loss_kernel or ("fused" if framework.memory.fused_loss else "unfused"),
        loss_tiles=request.loss_tiles or 1,
    )


def _graphs(request: JobRequest, framework: Framework) -> tuple[bool, tuple[str, ...]]:
    """Return whether there are CUDA graphs, and of which modules; none named are whole layers.

    Raises
    ------
    ConfigError
        If two of the fields that say it contradict each other.
    """
    if framework.cuda_graphs and not _says_graphs(request):
        return True, framework.cuda_graph_scope if request.model.experts is None else framework.moe_cuda_graph_scope
    impl, scope = request.cuda_graph_impl, request.cuda_graph_scope or ()
    graphs = framework.cuda_graphs or bool(scope) if request.cuda_graphs is None else request.cuda_graphs
    if impl is not None:
        graphs = impl != "none"
    if request.cuda_graphs is not None and graphs != request.cuda_graphs:
        raise ConfigError(f"is {impl}, but cuda_graphs is {str(request.cuda_graphs).lower()}", "cuda_graph_impl")
    if scope and not graphs:
        raise ConfigError(f"is {' '.join(scope)}, but no CUDA graphs are captured", "cuda_graph_scope")
    if FULL_ITERATION in scope and len(scope) > 1:
        raise ConfigError(f"is {' '.join(scope)}; {FULL_ITERATION} is all of them", "cuda_graph_scope")
    return graphs, (FULL_ITERATION,) if impl == FULL_ITERATION else scope


def _says_graphs(request: JobRequest) -> bool:
    said = (request.cuda_graphs, request.cuda_graph_impl, request.cuda_graph_scope)
    return any(each is not None for each in said)
