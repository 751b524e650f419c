"""Megatron Core on one GPU with PyTorch alone: imported without the packages it asks for, its functions named.

megatron-core 0.16.1 was read. What it calls of the package grouped_gemm is done by ``torch._grouped_mm``. On a CPU it
runs, too, to test what calls it.
"""

import sys
import time
import types
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from importlib.machinery import ModuleSpec as PythonSpec
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.profiler import record_function

from machine.kernel_profile import PREFIX

Tensor = Any
ABSENT = ("cuda", "pynvml", "einops", "transformer_engine", "apex", "flash_attn", "wandb", "nvtx", "mamba_ssm")
"""Packages that Megatron imports if they are there; one that is there might change what runs."""


def ranged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is a range of this name while there is a profile; else it would cost the host time."""

    def run(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        with record_function(PREFIX + name) if torch.autograd._profiler_enabled() else nullcontext():
            return function(*args, **named)

    return run


def name_ranges(owner: Any, names: dict[str, str]) -> None:  # noqa: ANN401
    """Give functions of a module or an object ranges, by attribute."""
    for attribute, name in names.items():
        setattr(owner, attribute, ranged(name, getattr(owner, attribute)))


class GroupedGemm(torch.autograd.Function):
    """Rows of `a`, each by the weight of its expert in `b`; `counts` are rows of each expert, on the host."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, counts: Tensor) -> Tensor:  # noqa: ANN401
        """Return the products."""
        ends = ranged("ends of groups", _ends)(counts) if a.is_cuda else None
        ctx.save_for_backward(a, b, counts, ends)
        return _products(a, b, counts, ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        """Return the gradients of rows and weights."""
        a, b, counts, ends = ctx.saved_tensors
        grad = grad.contiguous()
        rows = _products(grad, b.transpose(-2, -1), counts, ends)
        if ends is not None:
            return rows, torch._grouped_mm(a.t(), grad, offs=ends), None
        parts = zip(a.split(counts.tolist()), grad.split(counts.tolist()), strict=True)
        return rows, torch.stack([left.t() @ right for left, right in parts]), None


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32).to("cuda", non_blocking=True)


def _products(a: Tensor, b: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
    if ends is not None:
        return torch._grouped_mm(a, b, offs=ends)
    return torch.cat([rows @ weight for rows, weight in zip(a.split(counts.tolist()), b, strict=True)])


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Multiply as `grouped_gemm.ops.gmm` does, in the range `part` of the weight that `b` is a view of."""
    if trans_b:
        raise ValueError("Megatron passes weights as they are")
    return ranged(b._base.part, GroupedGemm.apply)(a, b, batch_sizes)


def started(folder: Path, device: str, compiled: bool) -> types.SimpleNamespace:
    """Import Megatron Core from a folder and start it as one rank; return what is used of it."""
    if device == "cpu":
        _without_gpu()
    megatron = _imported(folder, compiled)
    megatron.device = device
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timedelta(seconds=20))
    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    megatron.parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    if device == "cpu":
        tracker = types.SimpleNamespace(fork=lambda _name=None: nullcontext())
        megatron.moe_utils.get_cuda_rng_tracker = lambda: tracker
    else:
        megatron.seeds.model_parallel_cuda_manual_seed(1234)
    return megatron


def _imported(folder: Path, compiled: bool) -> types.SimpleNamespace:
    package, ops = types.ModuleType("grouped_gemm"), types.ModuleType("grouped_gemm.ops")
    vars(package).update(ops=ops, __spec__=PythonSpec("grouped_gemm", None))
    vars(ops).update(gmm=gmm, __spec__=PythonSpec("grouped_gemm.ops", None))
    sys.modules |= {"grouped_gemm": package, "grouped_gemm.ops": ops}
    sys.path.insert(0, str(folder))
    absent: dict[str, Any] = dict.fromkeys(name for name in ABSENT if name not in sys.modules)
    sys.modules |= absent
    compiler = torch.compile
    if not compiled:
        torch.compile = lambda function, *_args, **_named: function
    try:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import random as seeds
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer import mlp
        from megatron.core.transformer.moe import experts, moe_layer, moe_utils, router, token_dispatcher
        from megatron.core.transformer.spec_utils import ModuleSpec
        from megatron.core.transformer.transformer_config import TransformerConfig
    finally:
        torch.compile = compiler
        for name in absent:
            sys.modules.pop(name, None)
    # Where Transformer Engine is missing, this name is asked for and never set.
    moe_utils.te_general_gemm = None
    name_ranges(
        token_dispatcher, {"permute": "permute", "unpermute": "unpermute", "sort_chunks_by_idxs": "sort chunks"}
    )
    name_ranges(
        router,
        {"compute_routing_scores_for_aux_loss": "aux loss", "apply_router_token_dropping": "token dropping"},
    )
    name_ranges(mlp, {"weighted_bias_swiglu_impl": "activation"})
    return types.SimpleNamespace(
        parallel_state=parallel_state,
        seeds=seeds,
        linears=(ColumnParallelLinear, RowParallelLinear),
        mlp=mlp,
        experts=experts,
        moe_layer=moe_layer,
        moe_utils=moe_utils,
        ModuleSpec=ModuleSpec,
        TransformerConfig=TransformerConfig,
    )


class _HostEvent:
    """A CUDA event where the host computes."""

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, later: "_HostEvent") -> float:
        return 1e3 * (later.at_s - self.at_s)


def _without_gpu() -> None:
    """Let what asks for the GPU go on without one."""
    event = types.SimpleNamespace(synchronize=lambda: None)
    stream = types.SimpleNamespace(wait_stream=lambda _other: None, record_event=lambda: event)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = lambda *_args, **_named: stream
    torch.cuda.current_stream = lambda *_args: stream
    torch.cuda.stream = lambda _stream: nullcontext()
    torch.cuda.synchronize = lambda *_args: None
    torch.cuda.Event = lambda **_named: _HostEvent()
