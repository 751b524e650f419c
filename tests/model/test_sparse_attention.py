"""Attention to some keys alone: DeepSeek-V3.2's indexer, counted by hand."""

import pytest

from traincast.errors import ConfigError
from traincast.model.blocks.share import Execution, Share
from traincast.model.counts import parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks

TOKENS = 8192


def parts_of(name, layer, tokens=TOKENS, execution=None, **degrees):
    """Return the parts of the attention of a layer by their names, below it."""
    model = load_model(name)
    share = Share(model=model, seq_length=tokens, execution=execution or Execution(), **degrees)
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
    with pytest.raises(ConfigError, match="needs attention.latent with a q_rank"):
        load_model(str(path))
