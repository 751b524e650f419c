"""Attention to some keys alone: DeepSeek-V3.2's indexer and DeepSeek-V4's compressed tokens, counted by hand."""

import pytest

from traincast.errors import ConfigError
from traincast.model.blocks.share import Execution, Sequences, Share
from traincast.model.counts import model_flops_per_token, parameters, token_flops
from traincast.model.load import load_model
from traincast.model.recompute import modules_of
from traincast.model.structure import layer_blocks, layer_kinds

TOKENS = 8192


def parts_of(name, layer, tokens=TOKENS, execution=None, **degrees):
    """Return the parts of the attention of a layer by their names, below it."""
    model = load_model(name)
    share = Share(model=model, sequences=Sequences(length=tokens), execution=execution or Execution(), **degrees)
    return {part.name.removeprefix("self_attention."): part for part in layer_blocks(model, layer)[0].parts(share)}


def gemms(part):
    return [(gemm.m, gemm.n, gemm.k, gemm.groups) for gemm in part.gemms]


def chosen(keys, topk):
    """Return the keys that a query meets on average, the first ones all; half of the diagonal is left out."""
    return sum(min(query + 0.5, topk) for query in range(keys)) / keys


INDEXER = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
"""Of each layer of DeepSeek-V3.2: queries of 64 heads, the one key with its LayerNorm, weights of the heads."""


def test_an_indexer_is_all_that_deepseek_v3_2_has_more_than_v3():
    """Source: DeepSeek-V3.2-Exp, inference/model.py (Indexer) and its config.json."""
    new, old = parameters(load_model("deepseek-v3.2")), parameters(load_model("deepseek-v3"))
    assert new.total - old.total == 61 * INDEXER
    assert new.trained - old.trained == 62 * INDEXER


@pytest.mark.parametrize("tokens", [1024, 4096, 32768])
def test_flops_of_indexed_attention_are_counted_as_megatron_bridge_does(tokens):
    """Chosen keys of 576 channels with values of 512, and each half of all keys for 64 heads of 128 of the indexer.

    Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/utils/flop_utils.py (dsa).
    """
    model = load_model("deepseek-v3.2")
    core = 2 * 128 * (576 + 512) * chosen(tokens, 2048)
    index = 2 * 64 * 128 * tokens / 2
    found = token_flops(model, tokens).attention_core
    assert found == pytest.approx(62 * (core + index), rel=1e-3)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_layer_of_indexed_attention_by_hand(tp):
    parts = parts_of("deepseek-v3.2", 5, tp=tp, sequence_parallel=True)
    assert gemms(parts["indexer"]) == [
        (TOKENS, 64 * 128, 1536, 1),
        (TOKENS, 64, 7168, 1),
        (TOKENS, 128, 7168, 1),
    ]
    assert parts["indexer"].elements == INDEXER
    (core,), (scores,) = parts["core_attention"].kernels, parts["indexer.scores"].kernels
    # 2,048 of each query's keys but for the first ones, of 4,096 on average.
    assert core.shape == (1, TOKENS, 1792, 128 // tp, 1, 576, 512)
    assert scores.shape == (1, TOKENS, 4096, 64, 128, 2048)
    assert parts["indexer.scores"].saved == {"chosen keys": 4 * TOKENS * 2048}
    assert parts["core_attention"].saved["attention outputs"] == 2 * TOKENS * 128 // tp * 512
    kept = parts["linear_kv_up_proj"].saved["queries, keys, values"]
    assert kept == 2 * TOKENS * 128 // tp * (192 + 576 + 128)
    gathered = [(each.operation, each.size_bytes) for each in parts["indexer"].forward]
    assert gathered == ([] if tp == 1 else [("all_gather", 2 * TOKENS * 7168), ("all_gather", 2 * TOKENS * 1536)])


def test_indexed_attention_needs_latent_queries(tmp_path):
    path = tmp_path / "model.toml"
    settings = "{ index_heads = 64, index_head_dim = 128, index_topk = 2048 }"
    path.write_text(f'base = "deepseek-v2-lite"\nblocks = ["sparse_latent_attention", "mlp"]\nsettings = {settings}\n')
    with pytest.raises(ConfigError, match=r"needs attention\.latent with a q_rank"):
        load_model(str(path))


V4 = {
    # 64 heads of 512 from 1,024 channels, one key of 512, two norms, 8 groups of 8 heads, and a sink for each head.
    "window": 4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 1024 + 512 + 64 * 512 * 1024 + 8 * 1024 * 4096 + 64,
    # Values and weights of each token, and a weight for each of 128 places; a norm.
    "heavy": 2 * 4096 * 512 + 128 * 512 + 512,
    # As above in two series of 4 places, and an indexer with a compressor of its own and weights of its heads.
    "sparse": 4 * 4096 * 512 + 4 * 2 * 512 + 512 + 64 * (1024 * 128 + 4096) + 4 * 4096 * 128 + 4 * 2 * 128 + 128,
}
"""Parameters of the attention of DeepSeek-V4-Flash: of all layers, and what compressing ones have more.

Source: huggingface/transformers, src/transformers/models/deepseek_v4/modular_deepseek_v4.py.
"""

SPARSE, HEAVY = 21, 20
"""Layers of each kind; the first two of 43 have a window alone."""


def test_parameters_of_deepseek_v4_flash_by_hand():
    """284 B, 13 B of them for a token (its model card): 43 layers of 256 experts, and four residual streams."""
    counts = parameters(load_model("deepseek-v4-flash"))
    attention = 43 * V4["window"] + HEAVY * V4["heavy"] + SPARSE * V4["sparse"]
    assert counts.layers.attention == attention
    experts = 43 * (257 * 3 * 4096 * 2048 + 4096 * 256)
    streams = 43 * 2 * (24 * 4 * 4096 + 24 + 3) + 4 * 4 * 4096 + 4 + 1
    assert counts.total == attention + experts + streams + 43 * 2 * 4096 + 4096 + 2 * 129280 * 4096
    assert round(counts.total / 1e9) == 284
    assert round(counts.computed / 1e9) == 13


def test_parameters_of_deepseek_v4_pro_by_hand():
    """1.6 T, 49 B of them for a token (its model card): 31 layers of heavy and 30 of sparse compression."""
    hidden, inner = 7168, 128 * 512
    window = hidden * 1536 + 1536 * inner + hidden * 512 + 1536 + 512 + inner * 1024 + 16 * 1024 * hidden + 128
    heavy = 2 * hidden * 512 + 128 * 512 + 512
    index = 64 * (1536 * 128 + hidden) + 4 * hidden * 128 + 4 * 2 * 128 + 128
    sparse = 4 * hidden * 512 + 4 * 2 * 512 + 512 + index
    counts = parameters(load_model("deepseek-v4-pro"))
    assert counts.layers.attention == 61 * window + 31 * heavy + 30 * sparse
    assert round(counts.total / 1e11) == 16
    assert round(counts.computed / 1e9) == 49


def test_layers_of_deepseek_v4_flash_are_of_three_kinds():
    model = load_model("deepseek-v4-flash")
    assert list(layer_kinds(model, range(43)).values()) == [2, SPARSE, HEAVY]
    assert [model.names_of(layer)[0].split("_")[0] for layer in (0, 1, 2, 3, 42)] == [
        *("window", "window", "compressed", "heavily", "compressed"),
    ]


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_flops_of_compressed_attention_by_hand(tokens):
    """A window of 128; every 128th token, half of them on average; of every 4th 512 at most, after an indexer."""
    flops = token_flops(load_model("deepseek-v4-flash"), tokens)
    pool, each = tokens // 4, 2 * 2 * 64 * 512
    index = 2 * 64 * 128 * pool / 2
    met = 44 * 128 + HEAVY * tokens / 128 / 2 + SPARSE * chosen(pool, 512)
    assert flops.attention_core == pytest.approx(each * met + SPARSE * index, rel=2e-3)


def test_flops_of_deepseek_v4_flash_are_those_that_megatron_bridge_prints():
    """748 TFLOP/s at 8,224 tokens/s, docs/performance-summary.md; hyper-connections are not in its count."""
    assert model_flops_per_token(load_model("deepseek-v4-flash"), 4096) == pytest.approx(748e12 / 8224, rel=0.005)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_layer_of_compressed_sparse_attention_by_hand(tp):
    parts, own = parts_of("deepseek-v4-flash", 2, tp=tp, sequence_parallel=True), TOKENS // tp
    assert gemms(parts["linear_q_down_proj"]) == [(own, 1024, 4096, 1), (own, 512, 4096, 1)]
    assert gemms(parts["linear_q_up_proj"]) == [(TOKENS, 64 * 512 // tp, 1024, 1)]
    assert gemms(parts["compressor"]) == [(own, 4 * 512, 4096, 1)]
    assert gemms(parts["indexer"])[2:] == [(own, 4 * 128, 4096, 1)]
    assert gemms(parts["linear_o_down_proj"]) == [(TOKENS * 8 // tp, 1024, 8 * 512, 8 // tp)]
    assert gemms(parts["linear_proj"]) == [(TOKENS, 4096, 8 * 1024 // tp, 1)]
    (core,), (scores,) = parts["core_attention"].kernels, parts["indexer.scores"].kernels
    assert core.shape == (1, TOKENS, 128 + 448, 64 // tp, 1, 512, 512)
    assert scores.shape == (1, TOKENS, 1024, 64, 128, 512)
    gathered = [each.size_bytes for each in parts["compressor"].forward]
    assert gathered == ([] if tp == 1 else [2 * TOKENS * 512 / 4])


def test_what_of_compressed_sparse_attention_stays_in_16_bits():
    """Compressors and the projection of groups of heads, which is no linear layer (Megatron-LM, dev)."""
    parts = parts_of("deepseek-v4-flash", 2, execution=Execution(precision="mxfp8"))
    types = {name: {gemm.dtype for gemm in part.gemms} for name, part in parts.items() if part.gemms}
    assert types["compressor"] == types["linear_o_down_proj"] == {"bf16"}
    assert types["linear_q_up_proj"] == types["linear_proj"] == {"mxfp8"}
    assert types["indexer"] == {"bf16", "mxfp8"}


@pytest.mark.parametrize(("layer", "ratio", "wide"), [(2, 4, 2 * 512), (3, 128, 512)])
def test_compressed_tokens_are_weighted_sums_of_all_before_a_norm_of_the_few(layer, ratio, wide):
    *sums, norm = parts_of("deepseek-v4-flash", layer)["compressor"].kernels
    assert norm.shape == (TOKENS // ratio, 512)
    assert {each.shape for each in sums} == {(TOKENS, wide)}
    tensors = [sum(int(size) for _, size in each.options) for each in sums]
    # Two series are laid side by side in 16 bits and in fp32: twice as much as they are added up from.
    assert tensors == ([8 + 6 + 9, 11 + 7 + 12] if ratio == 4 else [8 + 6, 11 + 7])


def test_outputs_are_turned_back_in_a_tensor_of_their_own():
    (kernel,) = parts_of("deepseek-v4-flash", 2, tp=2)["linear_o_down_proj"].kernels
    assert (kernel.shape, kernel.backward_alike) == ((TOKENS, 64 * 512 // 2), True)


@pytest.mark.parametrize(("cp_kind", "queries", "heads"), [("ring", 2048, 64), ("all_to_all", 8192, 16)])
def test_context_parallel_ranks_share_the_queries_of_sparse_attention(cp_kind, queries, heads):
    """Each query meets as many keys as without; with all-to-alls a rank has some of the heads instead."""
    parts = parts_of("deepseek-v4-flash", 3, cp=4, execution=Execution(cp_kind=cp_kind))
    (core,) = parts["core_attention"].kernels
    assert core.shape == (1, queries, 128 + 32, heads, 1, 512, 512)


def test_short_sequences_meet_all_that_there_is():
    (core,) = parts_of("deepseek-v4-flash", 2, tokens=64)["core_attention"].kernels
    assert core.shape[2] == 64 + 8


def test_queries_of_narrow_vectors_can_be_recomputed():
    """As those of latent attention: recipes of DeepSeek-V4 (Megatron-Bridge) recompute ``mla_up_proj``."""
    assert modules_of(load_model("deepseek-v4-flash"), ("mla_up_proj",)) == ("mla_up_proj",)
