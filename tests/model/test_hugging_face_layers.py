"""Configs of models whose layers are of several kinds, or whose queries meet some keys: the built-in models, errors."""

import json

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.model.counts import parameters
from traincast.model.load import load_model


def gemma4(layers, hidden, ffn, heads, kv_heads, window, **more):
    """Return the keys of a text_config of Gemma 4."""
    return {
        **{"model_type": "gemma4_text", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn},
        **{"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "global_head_dim": 512},
        **{"sliding_window": window, "vocab_size": 262144, "vocab_size_per_layer_input": 262144, **more},
    }


CONFIGS = {
    "kimi-linear-48b-a3b": {
        **{"model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27, "intermediate_size": 9216},
        **{"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72, "vocab_size": 163840},
        **{"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "mla_use_nope": True, "first_k_dense_replace": 1, "moe_layer_freq": 1},
        **{"moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1},
        **{"num_expert_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0, "tie_word_embeddings": False},
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "deepseek-v3.2": {
        **{"model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61, "intermediate_size": 18432},
        **{"num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512},
        **{"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        **{"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "first_k_dense_replace": 3},
        **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048},
        **{"n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1},
    },
    "deepseek-v4-flash": {
        **{"model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "moe_intermediate_size": 2048},
        **{"num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "vocab_size": 129280},
        **{"q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "qk_rope_head_dim": 64, "sliding_window": 128},
        **{"index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "hc_mult": 4, "n_shared_experts": 1},
        **{"n_routed_experts": 256, "num_experts_per_tok": 6, "num_nextn_predict_layers": 1, "num_hash_layers": 3},
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    },
    "deepseek-v4-pro": {
        **{"model_type": "deepseek_v4", "hidden_size": 7168, "num_hidden_layers": 61, "moe_intermediate_size": 3072},
        **{"num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 512, "vocab_size": 129280},
        **{"q_lora_rank": 1536, "o_lora_rank": 1024, "o_groups": 16, "qk_rope_head_dim": 64, "sliding_window": 128},
        **{"index_head_dim": 128, "index_n_heads": 64, "index_topk": 1024, "hc_mult": 4, "n_shared_experts": 1},
        **{"n_routed_experts": 384, "num_experts_per_tok": 6, "num_nextn_predict_layers": 1, "num_hash_layers": 3},
        "compress_ratios": [128, *[128, 4] * 30, 0],
    },
    "lfm2-1.2b": {
        **{"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "block_ff_dim": 12288},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "conv_L_cache": 3},
        **{"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256},
        **{"conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    },
    "lfm2-8b-a1b": {
        **{"model_type": "lfm2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 7168},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "conv_L_cache": 3},
        **{"moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4},
        "layer_types": ["full_attention" if at in (2, 6, 10, 14, 18, 21) else "conv" for at in range(24)],
    },
    "jamba-52b": {
        **{"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "tie_word_embeddings": False},
        **{"attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2},
        **{"num_experts": 16, "num_experts_per_tok": 2, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
        **{"mamba_dt_rank": 256, "mamba_conv_bias": True, "mamba_proj_bias": False},
    },
    "falcon-h1-0.5b": {
        **{"model_type": "falcon_h1", "hidden_size": 1024, "num_hidden_layers": 36, "intermediate_size": 2048},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32784},
        **{"mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_n_groups": 1},
        **{"mamba_n_heads": 24, "mamba_rms_norm": False, "attn_layer_indices": None, "projectors_bias": False},
    },
    "minimax-m1": {
        **{"model_type": "minimax_m1", "hidden_size": 6144, "num_hidden_layers": 80, "intermediate_size": 9216},
        **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064},
        **{"num_local_experts": 32, "num_experts_per_tok": 2, "shared_intermediate_size": 0, "postnorm": True},
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    },
    "minimax-m2": {
        **{"model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "intermediate_size": 1536},
        **{"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064},
        **{"num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True, "num_mtp_modules": 3},
        "attn_type_list": [1] * 62,
    },
    "gemma4-31b": gemma4(
        *(60, 5376, 21504, 32, 16, 1024),
        **{"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 4},
    ),
    "gemma4-26b": gemma4(
        *(30, 2816, 2112, 16, 8, 1024),
        **{"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2},
        **{"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    ),
    "gemma4-e2b": gemma4(
        *(35, 1536, 6144, 8, 1, 512),
        **{"hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True},
        layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7,
    ),
    "gemma4-e4b": gemma4(
        *(42, 2560, 10240, 8, 2, 512), hidden_size_per_layer_input=256, num_kv_shared_layers=18, layer_types=None
    ),
}
"""Keys and values of the published files that count, under the built-in model that they are."""


@pytest.fixture
def read(tmp_path):
    def read(name, **changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(CONFIGS[name] | changes))
        return load_model(str(path))

    return read


def spelled_out(builtin, model):
    """Return the blocks of a built-in model as often repeated as those of a config."""
    return tuple(builtin.names_of(layer) for layer in range(len(model.blocks)))


def shape_of(model, blocks=()):
    """Return a model and its variants without what tells where they are from."""
    variants = tuple((name, shape_of(variant)) for name, variant in model.variants)
    return replace(model, name="", source="", notes=(), max_positions=None, blocks=blocks, variants=variants)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_the_built_in_model(read, name):
    model, builtin = read(name), load_model(name)
    assert shape_of(model, model.blocks) == shape_of(builtin, spelled_out(builtin, model))
    assert not model.notes
    assert parameters(model) == parameters(builtin)


def test_layers_of_kimi_linear_are_named_once(read):
    linear = CONFIGS["kimi-linear-48b-a3b"]["linear_attn_config"]
    with pytest.raises(ConfigError, match=r"linear_attn_config\.kda_layers: .*each of 27 layers once"):
        read("kimi-linear-48b-a3b", linear_attn_config=linear | {"full_attn_layers": [4]})
    with pytest.raises(ConfigError, match=r"linear_attn_config\.use_full_rank_gate: is true"):
        read("kimi-linear-48b-a3b", linear_attn_config=linear | {"use_full_rank_gate": True})
    assert read("kimi-linear-48b-a3b", num_experts=None).experts is None


def test_layers_of_deepseek_v4_by_ratio_name_or_class(read):
    """Source: Transformers, configuration_deepseek_v4.py (DeepseekV4Config.__post_init__)."""
    kinds = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
    model = read("deepseek-v4-flash", num_hidden_layers=3, layer_types=kinds, compress_rates={kinds[1]: 64})
    assert [names[0] for names in model.blocks] == ["window_attention", *kinds[1:]]
    assert model.setting("compressed_heavy_ratio") == 64
    assert model.setting("compressed_sparse_ratio") == 4
    usual = read("deepseek-v4-flash", num_hidden_layers=5, compress_ratios=None)
    assert [names[0][0] for names in usual.blocks] == ["h", "h", "h", "c", "h"]
    with pytest.raises(ConfigError, match=r"compress_ratios: has '7'; known: sliding_attention"):
        read("deepseek-v4-flash", compress_ratios=[7] * 43)
    with pytest.raises(ConfigError, match="layer_types: has 3 entries for 43 layers"):
        read("deepseek-v4-flash", layer_types=kinds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["mamba"] * 16}, r"layer_types: has 'mamba'; known: conv, full_attention"),
        ({"conv_bias": True}, "conv_bias: is true"),
        ({"block_ffn_dim_multiplier": 1.3}, "block_ffn_dim_multiplier: is not 1"),
        ({"block_multiple_of": 0}, "block_multiple_of: is 0"),
    ],
)
def test_what_lfm2_has_not_is_refused(read, change, said):
    with pytest.raises(ConfigError, match=said):
        read("lfm2-1.2b", **change)
    assert read("lfm2-1.2b", block_auto_adjust_ff_dim=False).ffn_hidden == 12288


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("jamba-52b", {"mamba_conv_bias": False}, "mamba_conv_bias false"),
        ("jamba-52b", {"attn_layer_period": 0}, "attn_layer_period: is 0"),
        ("jamba-52b", {"mamba_dt_rank": "half"}, "mamba_dt_rank"),
        ("falcon-h1-0.5b", {"mlp_bias": True}, "mlp_bias: is true"),
        ("falcon-h1-0.5b", {"mamba_conv_bias": False}, "mamba_conv_bias: is false"),
        ("falcon-h1-0.5b", {"mamba_n_heads": 0}, "mamba_n_heads: is 0"),
    ],
)
def test_what_jamba_and_falcon_h1_have_not_is_refused(read, name, change, said):
    with pytest.raises(ConfigError, match=said):
        read(name, **change)


def test_ranks_of_jamba_and_widths_of_falcon_h1_that_are_left_out(read):
    """A 16th of the hidden size, and twice it: configuration_jamba.py, configuration_falcon_h1.py (Transformers)."""
    assert read("jamba-52b", mamba_dt_rank="auto").setting("mamba1_rank") == 256
    assert read("jamba-52b", num_experts=1).experts is None
    assert read("falcon-h1-0.5b", mamba_d_ssm=None, mamba_n_heads=32).setting("mamba_head_dim") == 64


def test_layers_of_minimax_by_number_name_or_class(read):
    """Source: Transformers, configuration_minimax.py (MiniMaxConfig.__post_init__)."""
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    short = {"num_hidden_layers": 3, "attn_type_list": None}
    named, usual = read("minimax-m1", layer_types=kinds, **short), read("minimax-m1", **short)
    assert [names[0] for names in named.blocks] == ["lightning_attention", "attention", "lightning_attention"]
    assert [names[0] for names in usual.blocks] == ["attention", "lightning_attention", "attention"]
    softmax = read("minimax-m1", attn_type_list=[1] * 80)
    assert softmax.settings == ()
    with pytest.raises(ConfigError, match=r"layer_types: has 'conv'; known: linear_attention"):
        read("minimax-m1", layer_types=["conv"] * 80, attn_type_list=None)
    with pytest.raises(ConfigError, match="attn_type_list: has 8 entries for 80 layers"):
        read("minimax-m1", attn_type_list=[0] * 8)
    with pytest.raises(ConfigError, match="shared_intermediate_size: is not 0"):
        read("minimax-m1", shared_intermediate_size=512)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["mamba"] * 42}, "layer_types: has 'mamba'; known: full_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types: has 1 entries for 42 layers"),
        ({"vocab_size_per_layer_input": 1000}, "vocab_size_per_layer_input: is not vocab_size"),
    ],
)
def test_what_gemma_4_has_not_is_refused(read, change, said):
    with pytest.raises(ConfigError, match=said):
        read("gemma4-e4b", **change)


def test_the_last_layer_of_gemma_4_sees_all_tokens(read):
    """Source: Transformers, configuration_gemma4.py (Gemma4TextConfig.__post_init__)."""
    model = read("gemma4-31b", num_hidden_layers=4)
    assert [names[0] for names in model.blocks] == ["attention"] * 3 + ["attention:global"]
