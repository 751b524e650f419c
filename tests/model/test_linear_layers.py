"""Layers of linear attention and of short convolutions: parameters and FLOPs summed by hand."""

import pytest

from traincast.model.blocks.share import Execution, Sequences, Share
from traincast.model.counts import parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks

TOKENS = 4096


def parts_of(name, layer, execution=None, **degrees):
    """Return the parts of the first block of a layer by the last word of their names."""
    model = load_model(name)
    share = Share(model=model, sequences=Sequences(length=TOKENS), execution=execution or Execution(), **degrees)
    return {part.name.rpartition(".")[2]: part for part in layer_blocks(model, layer)[0].parts(share)}


def shapes(parts):
    """Return the GEMMs of parts that have any."""
    return {name: [(each.m, each.n, each.k) for each in part.gemms] for name, part in parts.items() if part.gemms}


def exchanged(exchanges):
    """Return what takes place of some exchanges."""
    return [(each.group, each.operation, each.size_bytes) for each in exchanges if each.size_bytes]


KIMI = 4 * 2304 * 4096 + 2 * (2304 * 128 + 128 * 4096) + 2304 * 32 + 3 * 4096 * 4 + 32 + 4096 + 128
"""Of a layer of Kimi delta attention: 32 heads of 128; what decays and gates are made of is 128 wide.

Source: moonshotai/Kimi-Linear-48B-A3B-Instruct, modeling_kimi.py (KimiDeltaAttention).
"""


def test_parameters_of_kimi_linear_by_hand():
    """27 layers, 7 of latent attention without positions; experts in all but the first: config.json."""
    hidden, table = 2304, 163840 * 2304
    latent = hidden * 32 * 192 + hidden * (512 + 64) + 512 + 512 * 32 * 256 + 32 * 128 * hidden
    each = 3 * hidden * 1024
    total = 20 * KIMI + 7 * latent + 26 * (257 * each + 256 * hidden) + 3 * hidden * 9216 + 55 * hidden + 2 * table
    found = parameters(load_model("kimi-linear-48b-a3b"))
    assert found.total == total
    assert found.active == total - 26 * 248 * each
    # "3B activated", without the lookup of embeddings.
    assert found.computed / 1e9 == pytest.approx(3.1, rel=0.005)


@pytest.mark.parametrize("tokens", [4096, 32768])
def test_flops_of_kimi_linear_by_hand(tokens):
    """8 H P^2 of the delta rule, as of gated DeltaNet; keys of 192 and values of 128 in 7 layers of full attention."""
    found, hidden = token_flops(load_model("kimi-linear-48b-a3b"), tokens), 2304
    assert found.scan == 20 * 8 * 32 * 128**2
    assert found.others == 20 * 2 * (4 * hidden * 4096 + 2 * (hidden * 128 + 128 * 4096) + hidden * 32)
    assert found.attention_core == 7 * 32 * 2 * (192 + 128) * tokens / 2


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_a_layer_of_kimi_delta_attention_by_hand(tp, cp):
    tokens, inner, heads = TOKENS // cp, 4096 // tp, 32 // tp
    parts = parts_of("kimi-linear-48b-a3b", 1, tp=tp, cp=cp, sequence_parallel=True)
    own = tokens // tp
    assert shapes(parts) == {
        "in_proj": [(tokens, 3 * inner, 2304)],
        "narrow_proj": [(own, 128, 2304), (own, 128, 2304), (own, 32, 2304)],
        "gate_proj": [(tokens, inner, 128)] * 2,
        "out_proj": [(tokens, 2304, inner)],
    }
    assert [(each.family, each.shape) for each in parts["kimi_delta_rule"].kernels] == [
        ("elementwise", (tokens, inner)),
        ("delta_rule", (tokens, heads, 128, 128)),
    ]
    vectors = {"conv1d": 4 * 3 * inner, "kimi_delta_rule": heads + inner, "out_norm": 128}
    assert {name: parts[name].vectors for name in vectors} == vectors
    split = [("tp", "all_gather", 2 * tokens * 288)] if tp > 1 else []
    assert exchanged(parts["gate_proj"].forward) == split
    turned = [("cp", "all_to_all", 2 * tokens * (5 * inner + heads))] if cp > 1 else []
    assert exchanged(parts["conv1d"].forward) == exchanged(parts["conv1d"].backward) == turned


def test_saved_tensors_of_kimi_delta_attention():
    """Inputs; queries, keys and values before and after the convolution, decays and gates; both outputs."""
    saved = {}
    for part in parts_of("kimi-linear-48b-a3b", 1).values():
        for name, size in part.saved.items():
            saved[name] = saved.get(name, 0) + size
    assert saved["mixer inputs"] == 2 * TOKENS * 2304
    assert saved["mixer projections"] == 2 * TOKENS * (8 * 4096 + 2 * 128 + 32)
    assert saved["scan outputs"] == saved["mixer outputs"] == 2 * TOKENS * 4096


def test_parameters_of_lfm2_by_hand():
    """1.2B: 10 layers of convolution and 6 of attention with norms of heads, an MLP each, a tied table; config.json."""
    hidden, table = 2048, 65536 * 2048
    conv, attention = 4 * hidden**2 + 3 * hidden, hidden * (32 + 2 * 8) * 64 + hidden**2 + 2 * 64
    total = 10 * conv + 6 * attention + 16 * (3 * hidden * 8192 + 2 * hidden) + hidden + table
    assert parameters(load_model("lfm2-1.2b")).total == total


def test_a_token_passes_4_of_32_experts_of_lfm2_8b_a1b():
    """In 22 layers of 24: config.json."""
    found = parameters(load_model("lfm2-8b-a1b"))
    assert found.total - found.active == 22 * 28 * 3 * 2048 * 1792


@pytest.mark.parametrize("tokens", [4096, 32768])
def test_flops_of_lfm2_by_hand(tokens):
    """Projections of the convolutions; half of the square in 6 layers of 32 heads of 64."""
    found = token_flops(load_model("lfm2-1.2b"), tokens)
    assert found.others == 10 * 2 * 4 * 2048**2
    assert found.attention_core == 6 * 2 * 2 * 32 * 64 * tokens / 2
    assert found.scan == 0


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_a_layer_of_short_convolution_by_hand(tp, cp):
    """Source: Transformers, modular_lfm2.py (Lfm2ShortConv.slow_forward): gate, convolution of 3 tokens, gate."""
    tokens, width = TOKENS // cp, 2048 // tp
    parts = parts_of("lfm2-1.2b", 0, tp=tp, cp=cp, sequence_parallel=True)
    assert shapes(parts) == {"in_proj": [(tokens, 3 * width, 2048)], "out_proj": [(tokens, 2048, width)]}
    assert [(each.family, each.shape) for each in parts["conv"].kernels] == [("activation", (tokens, width))] * 3
    assert [dict(each.options)["kind"] for each in parts["conv"].kernels] == ["swiglu", "silu", "swiglu"]
    assert parts["conv"].vectors == 3 * width
    saved = [size for part in parts.values() for name, size in part.saved.items() if name.startswith("mixer")]
    assert saved == [2 * tokens // tp * 2048, 6 * tokens * width, 4 * tokens * width, 2 * tokens * width]
    # Two tokens of every rank before its own.
    handed = [("cp", "all_gather", 2 * 2 * width * cp)] if cp > 1 else []
    assert exchanged(parts["conv"].forward) == exchanged(parts["conv"].backward) == handed


def test_parameters_of_minimax_m1_by_hand():
    """80 layers, softmax attention in every eighth; 32 experts of which 2 are active: config.json; 45.9 B active.

    Source: MiniMax-01, arXiv 2501.08313, section 2 (45.9 B of 456 B), which counts neither table.
    """
    hidden, inner, table = 6144, 64 * 128, 200064 * 6144
    lightning = 5 * hidden * inner + inner
    attention = hidden * (64 + 2 * 8) * 128 + inner * hidden
    each = 3 * hidden * 9216
    total = 70 * lightning + 10 * attention + 80 * (32 * each + 32 * hidden) + 161 * hidden + 2 * table
    found = parameters(load_model("minimax-m1"))
    assert found.total == total
    assert found.active == total - 80 * 30 * each
    assert (found.active - 2 * table) / 1e9 == pytest.approx(45.9, rel=0.005)


@pytest.mark.parametrize("tokens", [8192, 131072])
def test_flops_of_minimax_m1_by_hand(tokens):
    """States of 128 x 128 in 70 layers, which cost what they cost at any length; half of the square in 10."""
    found = token_flops(load_model("minimax-m1"), tokens)
    assert found.scan == 70 * 7 * 64 * 128**2
    assert found.others == 70 * 2 * 5 * 6144 * 8192
    assert found.attention_core == 10 * 2 * 2 * 64 * 128 * tokens / 2


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (8, 1), (1, 4), (4, 2)])
def test_a_layer_of_lightning_attention_by_hand(tp, cp):
    """Queries, keys, values and gates of 64 heads of 128; each head has a query and a key of its own."""
    tokens, heads = TOKENS // cp, 64 // tp
    inner = heads * 128
    parts = parts_of("minimax-m1", 0, tp=tp, cp=cp, sequence_parallel=True)
    assert shapes(parts) == {"in_proj": [(tokens, 4 * inner, 6144)], "out_proj": [(tokens, 6144, inner)]}
    (scan,) = parts["lightning"].kernels
    assert (scan.family, scan.shape) == ("state_space", (tokens, heads, 128, 128, heads))
    assert [each.shape for each in parts["activation_func"].kernels] == [(tokens, 3 * inner)]
    assert parts["out_norm"].vectors == inner
    turned = [exchanged(parts[name].forward) for name in ("activation_func", "lightning")]
    sizes = [2 * tokens * 4 * inner, 2 * tokens * inner]
    assert turned == [[("cp", "all_to_all", size)] if cp > 1 else [] for size in sizes]
