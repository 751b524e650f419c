"""MoE layers of Megatron Core: which are run with which switches, how they are built, and what each part is called."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from machine.megatron_core import name_ranges

DEEPSEEK = {
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_topk_scaling_factor": 2.5,
    "moe_router_dtype": "fp32",
}


class Shape(NamedTuple):
    """An expert layer, and what its recipes set of the router."""

    hidden: int
    ffn: int
    experts: int
    topk: int
    router: dict[str, Any]


SHAPES = {
    "qwen3-30b-a3b": Shape(2048, 768, 128, 8, {}),
    "mixtral-8x7b": Shape(4096, 14336, 8, 2, {}),
    "deepseek-v3": Shape(7168, 2048, 32, 8, DEEPSEEK),
    "gpt-oss-20b": Shape(2880, 2880, 32, 4, {}),
}
"""Of DeepSeek-V3 the experts of one of eight ranks."""


class Case(NamedTuple):
    """A layer with its switches; `chained`: also as some layers for seconds."""

    model: str
    tokens: int = 4096
    experts: str = "grouped"
    dispatcher: str = "alltoall"
    balancing: str = "aux_loss"
    forced: bool = False
    capacity: bool = False
    chained: bool = False
    small: bool = False

    @property
    def shape(self) -> Shape:
        """The sizes of the model, or small ones of its experts."""
        found = SHAPES[self.model]
        return found._replace(hidden=64, ffn=48) if self.small else found

    def made_small(self) -> "Case":
        """Return the case as a CPU can run it."""
        return self._replace(tokens=self.tokens // 64, small=True)

    def cells(self) -> dict[str, str]:
        """Return what a row says of it."""
        shape = self.shape
        switches = {name: str(value) for name, value in self._asdict().items() if name not in ("chained", "small")}
        sizes = {"hidden": shape.hidden, "ffn": shape.ffn, "num_experts": shape.experts, "topk": shape.topk}
        router = {"router_dtype": shape.router.get("moe_router_dtype", "bf16")}
        return switches | {name: str(size) for name, size in sizes.items()} | router


CASES = (
    Case("qwen3-30b-a3b", chained=True),
    Case("deepseek-v3", balancing="none", chained=True),
    Case("mixtral-8x7b", chained=True),
    Case("qwen3-30b-a3b", experts="sequential"),
    Case("mixtral-8x7b", experts="sequential"),
    Case("gpt-oss-20b"),
    Case("qwen3-30b-a3b", 16384),
    Case("qwen3-30b-a3b", dispatcher="allgather"),
    Case("mixtral-8x7b", dispatcher="allgather"),
    Case("qwen3-30b-a3b", capacity=True),
    Case("deepseek-v3", balancing="none", capacity=True),
    Case("qwen3-30b-a3b", forced=True),
    Case("gpt-oss-20b", forced=True),
    Case("qwen3-30b-a3b", balancing="none"),
    Case("mixtral-8x7b", balancing="none"),
    Case("deepseek-v3", 16384, balancing="none"),
    Case("mixtral-8x7b", 16384),
    Case("gpt-oss-20b", 16384),
)
"""The most telling first: minutes may end before the last."""


def stepped(megatron: SimpleNamespace, case: Case, layers: int) -> Callable[[], None]:
    """Return what runs some layers forward and then backward; each has an input of its own, so none adds a kernel."""
    megatron.moe_utils.get_moe_layer_wise_logging_tracker().clear()
    chain = [_layer(megatron, case, number + 1, layers).to(megatron.device) for number in range(layers)]
    values = torch.randn(case.tokens, 1, case.shape.hidden, device=megatron.device, dtype=torch.bfloat16)
    inputs = [values.detach().requires_grad_() for _ in chain]
    gradient = torch.randn_like(values)
    leaves = [*inputs, *(parameter for layer in chain for parameter in layer.parameters())]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        outputs = [layer(one)[0] for layer, one in zip(chain, inputs, strict=True)]
        torch.autograd.backward(outputs, [gradient] * layers)

    return step


def _layer(megatron: SimpleNamespace, case: Case, number: int, layers: int) -> Any:  # noqa: ANN401
    """Return a layer whose parts are ranges."""
    experts = megatron.experts.GroupedMLP
    if case.experts == "sequential":
        column, row = megatron.linears
        parts = megatron.mlp.MLPSubmodules(linear_fc1=column, linear_fc2=row)
        experts = megatron.ModuleSpec(module=megatron.experts.SequentialMLP, submodules=parts)
    submodules = megatron.moe_layer.MoESubmodules(experts=experts)
    layer = megatron.moe_layer.MoELayer(_config(megatron, case, layers), submodules)
    layer.set_layer_number(number)
    layer.train()
    _name_parts(layer, case)
    return layer


def _config(megatron: SimpleNamespace, case: Case, layers: int) -> Any:  # noqa: ANN401
    shape, grouped = case.shape, case.experts == "grouped"
    return megatron.TransformerConfig(
        num_layers=layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=16,
        num_moe_experts=shape.experts,
        moe_ffn_hidden_size=shape.ffn,
        moe_router_topk=shape.topk,
        moe_router_load_balancing_type=case.balancing,
        moe_aux_loss_coeff=0.0 if case.balancing == "none" else 1e-2,
        moe_router_force_load_balancing=case.forced,
        moe_token_dispatcher_type=case.dispatcher,
        moe_expert_capacity_factor=1.0 if case.capacity else None,
        moe_pad_expert_input_to_capacity=case.capacity,
        moe_grouped_gemm=grouped,
        moe_use_legacy_grouped_gemm=grouped,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=megatron.device == "cpu",
        **shape.router,
    )


def _name_parts(layer: Any, case: Case) -> None:  # noqa: ANN401
    name_ranges(layer, {"forward": "layer"})
    name_ranges(
        layer.router,
        {
            "forward": "router",
            "gating": "router GEMM",
            "routing": "router top-k",
            "_apply_aux_loss": "aux loss",
            "_apply_expert_bias": "expert bias",
        },
    )
    name_ranges(
        layer.token_dispatcher,
        {
            "dispatch_preprocess": "dispatch preprocess",
            "token_dispatch": "dispatch",
            "dispatch_postprocess": "dispatch postprocess",
            "combine_preprocess": "combine preprocess",
            "token_combine": "combine",
            "combine_postprocess": "combine postprocess",
        },
    )
    if case.dispatcher == "alltoall":
        name_ranges(layer.token_dispatcher, {"preprocess": "counts of tokens"})
    name_ranges(layer.experts, {"forward": "experts"})
    if case.experts == "grouped":
        name_ranges(layer.experts, {"activation_func_with_probs": "activation"})
        layer.experts.weight1.part, layer.experts.weight2.part = "experts FC1", "experts FC2"
        return
    for expert in layer.experts.local_experts:
        name_ranges(expert.linear_fc1, {"forward": "experts FC1"})
        name_ranges(expert.linear_fc2, {"forward": "experts FC2"})
