"""What the backward pass of one layer runs and exchanges again, and which of its tensors are not kept meanwhile.

Sources: Korthikanti et al., arXiv 2205.05198, section 5 (the attention core alone, or the whole layer from its input);
Megatron-LM, megatron/core/transformer: transformer_config.py (recompute_modules), transformer_layer.py,
multi_latent_attention.py, moe/moe_layer.py, moe/experts.py (what each module is).
"""

import pytest

from layer import product
from layer.cases import CASES, case_of, name_of
from layer.deepseek_v3 import NODES
from layer.rows import exchange_counts, kernel_counts, tensor_sums

LATENT_UP = (
    *("RMSNorm of compressed queries", "RMSNorm of compressed keys and values"),
    *("queries up", "keys and values up", "rotary embedding"),
)
EXPERTS = (
    *("router", "sigmoid and the 8 of 256", "tokens into the order of experts, and back"),
    *("gate and up of experts", "SwiGLU of experts", "down of experts"),
)
SHARED = ("gate and up of the shared expert", "SwiGLU of the shared expert", "down of the shared expert")
MLP = ("gate and up", "SwiGLU", "down")
ROUTED = ("expert inputs", "expert up outputs", "expert activations", "routing")

DENSE, MOE = "dense tp 2 sp", "tp 2 sp, ep 8 etp 1"
GATHER_AND_SCATTER = [("tp", "all_gather", 4096 * 7168 * 2), ("tp", "reduce_scatter", 4096 * 7168 * 2)]
DISPATCH = ("ep", "all_to_all", round(2048 * NODES * 7168 * 2))

COMPRESSED = {("tp", "all_gather", 4096 * 1536 * 2): 1, ("tp", "all_gather", 4096 * 512 * 2): 1}
"""The up-projections gather what they read again; keys' position is gathered before the module."""
NORMED = {"queries, keys, values": 1, "latent vectors": 2 * 2048 * (1536 + 512)}
"""Of compressed vectors those before their norms are the module's input."""

MODULES = [
    # Module, layer, kernels that run again (with how many norms), exchanges, parts not kept (1: whole, else bytes).
    ("core_attn", DENSE, ("attention core",), 0, {}, {"softmax": 1}),
    ("core_attn", MOE, ("attention core",), 0, {}, {"softmax": 1}),
    ("mla_up_proj", DENSE, LATENT_UP, 0, COMPRESSED, NORMED),
    ("mla_up_proj", MOE, LATENT_UP, 0, COMPRESSED, NORMED),
    # The norm before a dense MLP is fused with its first GEMM.
    ("layernorm", DENSE, (), 1, {}, {"attention inputs": 1}),
    ("layernorm", MOE, (), 2, {}, {"attention inputs": 1, "MLP inputs": 1}),
    ("mlp", DENSE, MLP, 1, dict.fromkeys(GATHER_AND_SCATTER, 1), {"MLP inputs": 1, "MLP activations": 1}),
    ("moe", MOE, (*EXPERTS, *SHARED), 0, dict.fromkeys(GATHER_AND_SCATTER, 1) | {DISPATCH: 2},
     dict.fromkeys((*ROUTED, "shared experts"), 1)),
    ("moe_act", MOE, ("SwiGLU of experts",), 0, {}, {"expert activations": 1}),
    ("shared_experts", MOE, SHARED, 0, dict.fromkeys(GATHER_AND_SCATTER, 1), {"shared experts": 1}),
    ("mlp", MOE, (), 0, {}, {}),
    ("moe", DENSE, (), 0, {}, {}),
    ("moe_act", DENSE, (), 0, {}, {}),
    ("shared_experts", DENSE, (), 0, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("module", "layer", "again", "norms", "exchanged", "dropped"), MODULES)
def test_modules(module, layer, again, norms, exchanged, dropped):
    case = case_of("deepseek-v3", layer)
    model = {"recompute": "selective", "recompute_modules": (module,)}
    if module not in ("core_attn", "mla_up_proj", "layernorm"):
        # A model with layers of both kinds has every module, whichever kind the layer is of.
        model["mixed"] = True
    rows = [row for row in case.kernels if row.what in again]
    wanted = kernel_counts(rows)["forward"]
    if norms:
        wanted["norm", (2048, 7168), "bf16"] += norms
    assert product.kernels(case, **model).get("recompute", {}) == wanted
    assert product.exchanges(case, **model).get("recompute", {}) == exchanged
    sizes = tensor_sums(case.tensors)
    kept = {part: size - dropped.get(part, 0) for part, size in sizes.items() if dropped.get(part) != 1}
    assert product.saved(case, **model) == pytest.approx(kept)


SOME = [case for case in CASES if case.fields.get("task") != "lora"]


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME, ids=name_of)
def test_whole_layers(case):
    """The forward pass again, with all it exchanges; the layer's input is all that is kept."""
    found = product.kernels(case, recompute="full")
    assert found["recompute"] == kernel_counts(case.kernels)["forward"]
    assert {name: found[name] for name in found if name != "recompute"} == product.kernels(case)
    assert product.exchanges(case, recompute="full").get("recompute", {}) == exchange_counts(case.exchanges)["forward"]
    (layer_input,) = {row.size_bytes / 2 for row in case.tensors if "inputs of both" in row.what}
    assert product.saved(case, recompute="full") == {"layer inputs": layer_input}


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME, ids=name_of)
def test_the_attention_core(case):
    """Selective recomputation of arXiv 2205.05198: the core, and what context parallel ranks exchange for it."""
    modules = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    core = [row for row in case.kernels if row.what in ("attention core", "sums of outputs")]
    assert product.kernels(case, **modules)["recompute"] == kernel_counts(core)["forward"]
    over_cp = [row for row in case.exchanges if row.group == "cp"]
    assert product.exchanges(case, **modules).get("recompute", {}) == exchange_counts(over_cp)["forward"]
    kept = {part: size for part, size in tensor_sums(case.tensors).items() if part != "softmax"}
    assert product.saved(case, **modules) == pytest.approx(kept)


def test_so_many_layers_of_a_stage():
    case = case_of("llama3-70b", "tp 8 sp")
    layer = kernel_counts(case.kernels)["forward"]
    for again in (1, 3):
        found = product.recomputed(case, 4, recompute="full", recompute_layers=again)
        assert found == {key: pytest.approx(again * count) for key, count in layer.items()}
        kept, _ = product.memory(case, 4, recompute="full", recompute_layers=again)
        assert kept["layer inputs"] == again * 2 * 1024 * 8192
        assert kept["MLP activations"] == (4 - again) * 2 * 8192 * 3 * 3584
    assert product.recomputed(case, 4) == {}
