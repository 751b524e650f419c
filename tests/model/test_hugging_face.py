import json

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError, FormatError
from traincast.model.counts import parameters
from traincast.model.hugging_face.read import read_config
from traincast.model.load import load_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def size(layers, hidden, ffn, heads, kv_heads, vocab, **more):
    """Return the keys that most configs have, as they name them."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **more,
    }


DEEPSEEK = {
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"moe_layer_freq": 1, "attention_bias": False, "scoring_func": "sigmoid"},
}
GPT2 = {"n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"}

CONFIGS = {
    "llama3-8b": LLAMA,
    "llama3.2-1b": size(16, 2048, 8192, 32, 8, 128256, model_type="llama", head_dim=64, tie_word_embeddings=True),
    "mistral-7b": size(32, 4096, 14336, 32, 8, 32000, model_type="mistral", sliding_window=4096),
    "mistral-7b-v0.3": size(32, 4096, 14336, 32, 8, 32768, model_type="mistral", sliding_window=None),
    "mixtral-8x7b": size(
        *(32, 4096, 14336, 32, 8, 32000), model_type="mixtral", num_local_experts=8, num_experts_per_tok=2
    ),
    "qwen2-7b": size(
        *(28, 3584, 18944, 28, 4, 152064),
        model_type="qwen2",
        use_sliding_window=False,
        sliding_window=131072,
        max_window_layers=28,
    ),
    "qwen2-57b-a14b": size(
        *(28, 3584, 18944, 28, 4, 151936),
        model_type="qwen2_moe",
        decoder_sparse_step=1,
        moe_intermediate_size=2560,
        shared_expert_intermediate_size=20480,
        num_experts=64,
        num_experts_per_tok=8,
        use_sliding_window=False,
        sliding_window=65536,
    ),
    "qwen3-0.6b": size(*(28, 1024, 3072, 16, 8, 151936), model_type="qwen3", head_dim=128, tie_word_embeddings=True),
    "qwen3-30b-a3b": size(
        *(48, 2048, 6144, 32, 4, 151936),
        model_type="qwen3_moe",
        head_dim=128,
        mlp_only_layers=[],
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
    ),
    "deepseek-v3": size(
        *(61, 7168, 18432, 128, 128, 129280),
        **DEEPSEEK,
        model_type="deepseek_v3",
        q_lora_rank=1536,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        topk_method="noaux_tc",
        moe_intermediate_size=2048,
        first_k_dense_replace=3,
        num_nextn_predict_layers=1,
    ),
    "deepseek-v2-lite": size(
        *(27, 2048, 10944, 16, 16, 102400),
        **DEEPSEEK,
        model_type="deepseek_v2",
        q_lora_rank=None,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
    ),
    "kimi-k2": size(
        *(61, 7168, 18432, 64, 64, 163840),
        **DEEPSEEK,
        model_type="kimi_k2",
        topk_method="noaux_tc",
        q_lora_rank=1536,
        n_routed_experts=384,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        first_k_dense_replace=1,
        num_nextn_predict_layers=0,
    ),
    "deepseek-moe-16b": size(
        *(28, 2048, 10944, 16, 16, 102400),
        model_type="deepseek",
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        moe_layer_freq=1,
    ),
    "glm-4.5": size(
        *(92, 5120, 12288, 96, 8, 151552),
        model_type="glm4_moe",
        head_dim=128,
        attention_bias=True,
        use_qk_norm=True,
        **{"n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1536},
        **{"first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "n_group": 1, "topk_group": 1},
    ),
    "glm-4.5-air": size(
        *(46, 4096, 10944, 96, 8, 151552),
        model_type="glm4_moe",
        head_dim=128,
        attention_bias=True,
        use_qk_norm=False,
        n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        num_nextn_predict_layers=1,
    ),
    "chatglm3-6b": {
        **{"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696},
        **{"num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128},
        **{"padded_vocab_size": 65024, "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True},
        "seq_length": 8192,
    },
    "gemma-2b": size(18, 2048, 16384, 8, 1, 256000, model_type="gemma", head_dim=256),
    "gemma2-9b": size(42, 3584, 14336, 16, 8, 256000, model_type="gemma2", head_dim=256, sliding_window=4096),
    "gemma3-1b": size(
        *(26, 1152, 6912, 4, 1, 262144),
        model_type="gemma3_text",
        head_dim=256,
        sliding_window=512,
        sliding_window_pattern=6,
    ),
    "gemma3-4b": {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240},
            **{"num_hidden_layers": 34, "sliding_window": 1024},
        },
    },
    "phi-2": size(32, 2560, 10240, 32, 32, 51200, model_type="phi", partial_rotary_factor=0.4),
    "phi-3-mini": size(32, 3072, 8192, 32, 32, 32064, model_type="phi3", sliding_window=2047),
    "phi-3.5-moe": size(
        *(32, 4096, 6400, 32, 8, 32064),
        model_type="phimoe",
        attention_bias=True,
        lm_head_bias=True,
        num_local_experts=16,
        num_experts_per_tok=2,
    ),
    "olmo2-7b": size(32, 4096, 11008, 32, 32, 100352, model_type="olmo2", attention_bias=False),
    "olmoe-1b-7b": size(
        16, 2048, 1024, 16, 16, 50304, model_type="olmoe", num_experts=64, num_experts_per_tok=8, attention_bias=False
    ),
    "gpt-oss-20b": size(
        *(24, 2880, 2880, 64, 8, 201088),
        model_type="gpt_oss",
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "grok-1": size(
        64,
        6144,
        32768,
        48,
        8,
        131072,
        model_type="grok-1",
        num_experts=8,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ),
    "llama4-maverick": {
        "model_type": "llama4",
        "vision_config": {"hidden_size": 1408},
        "text_config": size(
            *(48, 5120, 8192, 40, 8, 202048),
            model_type="llama4_text",
            head_dim=128,
            intermediate_size_mlp=16384,
            num_local_experts=128,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            attention_chunk_size=8192,
        ),
    },
    "nemotron4-15b": size(32, 6144, 24576, 48, 8, 256000, model_type="nemotron", hidden_act="relu2"),
    "command-r": size(40, 8192, 22528, 64, 64, 256000, model_type="cohere", use_qk_norm=False),
    "dbrx": {
        **{"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768},
        **{"vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, **GPT2},
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_inner": None, **GPT2},
    "starcoder": {
        **{"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24576},
        **{"n_positions": 8192, "vocab_size": 49152, "multi_query": True},
    },
    "gpt-neox-20b": {
        **{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64},
        **{"num_hidden_layers": 44, "vocab_size": 50432, "max_position_embeddings": 2048},
        "tie_word_embeddings": False,
    },
    "gpt-j-6b": {
        **{"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_inner": None, "n_positions": 2048},
        **{"vocab_size": 50400, "tie_word_embeddings": False},
    },
    "opt-6.7b": {
        **{"model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32, "vocab_size": 50272},
        **{"num_hidden_layers": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096},
    },
    "bloom-7b1": {
        "model_type": "bloom",
        "n_embed": 4096,
        "n_layer": 30,
        "num_attention_heads": 32,
        "vocab_size": 250880,
    },
    "mpt-7b": {
        **{"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4},
        **{"max_seq_len": 2048, "vocab_size": 50368, "no_bias": False, "attn_config": {"alibi": False}},
    },
    "falcon-7b": {
        **{"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32},
        **{"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "bias": False},
        "vocab_size": 65024,
    },
    "falcon-40b": {
        **{"model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60},
        **{"new_decoder_architecture": True, "bias": False, "vocab_size": 65024},
    },
    "starcoder2-3b": size(30, 3072, 12288, 24, 2, 49152, model_type="starcoder2", sliding_window=4096, use_bias=True),
    "bert-base": size(
        12, 768, 3072, 12, None, 30522, model_type="bert", max_position_embeddings=512, type_vocab_size=2
    ),
    "internlm-7b": size(32, 4096, 11008, 32, None, 103168, model_type="internlm", bias=True, tie_word_embeddings=False),
    "internlm2-7b": size(32, 4096, 14336, 32, 8, 92544, model_type="internlm2", bias=False),
    "baichuan2-7b": size(32, 4096, 11008, 32, None, 125696, model_type="baichuan", tie_word_embeddings=False),
    "minicpm-2b": size(40, 2304, 5760, 36, 36, 122753, model_type="minicpm"),
}
"""Keys and values of the published files, under the built-in model that they are."""


@pytest.fixture
def write(tmp_path):
    def write(document, name="config.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return str(path)

    return write


def test_routing_is_limited_to_groups_unless_it_is_greedy(write):
    config = CONFIGS["deepseek-v3"]
    for changes, groups in (({"topk_method": "greedy"}, 1), ({"n_group": None, "topk_group": None}, 1), ({}, 8)):
        assert load_model(write({**config, **changes})).experts.groups == groups


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_the_built_in_model(write, name):
    model, builtin = load_model(write(CONFIGS[name])), load_model(name)
    beside = {"name": name, "source": "", "notes": (), "max_positions": None}
    assert replace(model, **beside) == replace(builtin, **beside)
    assert {note.code for note in model.notes} <= {"language-model-only"}
    assert parameters(model) == parameters(builtin)


def test_a_config_names_its_model_and_file(write, tmp_path):
    path = write(LLAMA | {"_name_or_path": "meta-llama/Meta-Llama-3-8B"})
    model = load_model(path)
    assert (model.name, model.source, model.max_positions) == ("Meta-Llama-3-8B", path, 8192)
    assert load_model(str(tmp_path)) == model
    assert load_model(write(LLAMA, "mine.json")).name == "mine"
    assert load_model(write(LLAMA)).name == tmp_path.name
    without = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert load_model(write(without)).max_positions is None


def test_an_unknown_type_with_the_keys_of_llama_is_read_and_said(write):
    model = load_model(write(LLAMA | {"model_type": "newllama"}))
    assert [note.code for note in model.notes] == ["model-type-unknown"]
    assert "newllama" in model.notes[0].text
    assert parameters(model).total == 8030261248
    known = {**CONFIGS["deepseek-v3"], "model_type": "glm_next"}
    assert parameters(load_model(write(known))) == parameters(load_model("deepseek-v3"))
    sparse = {**CONFIGS["qwen3-30b-a3b"], "model_type": "qwen9_moe"}
    assert load_model(write(sparse)).experts == load_model("qwen3-30b-a3b").experts
    local = {**CONFIGS["mixtral-8x7b"], "model_type": "mixtral9"}
    assert parameters(load_model(write(local))) == parameters(load_model("mixtral-8x7b"))
    without = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert "there is no model_type" in load_model(write(without)).notes[0].text


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, 2048),
        ({"attn_config": {}}, 2048),
        ({"attn_config": {"alibi": True}}, 0),
        ({"attn_config": {"rope": True}}, 0),
        ({"learned_pos_emb": False}, 0),
    ],
)
def test_positions_of_mpt_are_learned_unless_it_has_others(write, changes, positions):
    """Source: Transformers, modeling_mpt.py and configuration_mpt.py; llm-foundry, configuration_mpt.py."""
    assert load_model(write(CONFIGS["mpt-7b"] | changes)).learned_positions == positions


def test_key_value_heads_of_mpt(write):
    for attention, heads in (({"attn_type": "multiquery_attention"}, 1), ({"kv_n_heads": 8}, 8), ({}, 32)):
        assert load_model(write(CONFIGS["mpt-7b"] | {"attn_config": attention})).attention.kv_heads == heads


@pytest.mark.parametrize(
    ("changes", "heads", "norms"),
    [
        ({}, 1, 1),
        # tiiuae/falcon-rw-1b has neither: a norm before attention and one before the MLP, and heads of their own.
        ({"multi_query": False, "parallel_attn": False}, 71, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096}, 8, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 71, 1),
    ],
)
def test_norms_and_heads_of_falcon(write, changes, heads, norms):
    """Source: Transformers, modeling_falcon.py (FalconDecoderLayer, FalconAttention)."""
    model = load_model(write(CONFIGS["falcon-7b"] | changes))
    assert (model.attention.kv_heads, model.norms_per_layer) == (heads, norms)


def test_bert_has_two_types_of_tokens_unless_it_says_otherwise(write):
    """Source: Transformers, configuration_bert.py (type_vocab_size 2); a type is a vector of 768."""
    config = CONFIGS["bert-base"]
    found = [load_model(write(config | {"type_vocab_size": types})).other_params for types in (None, 2, 3)]
    assert found[0] == found[1] == found[2] - 768


def test_deepseek_without_experts_is_dense(write):
    """Source: modeling_deepseek.py: the MoE layer is taken where n_routed_experts is not None."""
    for config in (
        CONFIGS["deepseek-v2-lite"] | {"n_routed_experts": None},
        {key: value for key, value in CONFIGS["deepseek-v2-lite"].items() if "expert" not in key},
    ):
        assert load_model(write(config)).experts is None


def test_windows_by_layer(write):
    base = {**LLAMA, "model_type": "mistral", "sliding_window": 1024, "num_hidden_layers": 6}
    local, full = "sliding_attention", "full_attention"

    def pattern(**more):
        model = load_model(write(base | more))
        assert not [note for note in model.notes if note.code != "window-layers-moved"]
        return [model.window_of(layer) > 0 for layer in range(6)], bool(model.notes)

    assert pattern() == ([True] * 6, False)
    assert pattern(layer_types=[local, local, full] * 2) == ([True, True, False] * 2, False)
    assert pattern(layer_types=[full] * 6) == ([False] * 6, False)
    assert pattern(layer_types=[local] * 6) == ([True] * 6, False)
    assert pattern(layer_types=[full, local] * 3) == ([True] * 3 + [False] * 3, True)
    assert pattern(max_window_layers=6) == ([False] * 6, False)
    assert pattern(max_window_layers=4) == ([True] * 2 + [False] * 4, True)
    assert pattern(model_type="qwen2") == ([False] * 6, False)
    assert pattern(model_type="qwen2", use_sliding_window=True) == ([True] * 6, False)
    assert pattern(use_sliding_window=False) == ([False] * 6, False)
    assert pattern(model_type="gemma2") == ([True, False] * 3, False)
    assert pattern(model_type="gemma3") == ([True] * 5 + [False], False)
    assert pattern(model_type="gemma3", sliding_window_pattern=3) == ([True, True, False] * 2, False)


def test_dense_layers_among_those_with_experts(write):
    base = CONFIGS["qwen3-30b-a3b"]
    model = load_model(write(base | {"mlp_only_layers": [0, 1]}))
    assert [model.has_experts(layer) for layer in range(4)] == [False, False, True, True]
    model = load_model(write(base | {"decoder_sparse_step": 2}))
    assert [model.has_experts(layer) for layer in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_key_is_one_clear_error(write, key):
    path = write({name: value for name, value in LLAMA.items() if name != key})
    with pytest.raises(ConfigError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{key}: is missing")
    assert path in str(error.value)
    inner = write({"model_type": "llama4", "text_config": {}}, "inner.json")
    with pytest.raises(ConfigError, match=r"^text_config\.hidden_size: is missing"):
        load_model(inner)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "4096"}, "hidden_size: is '4096'; it must be a whole number"),
        ({"hidden_size": 4096.5}, "hidden_size: is 4096.5; it must be a whole number from 0 to"),
        ({"hidden_size": True}, "hidden_size: is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: is 0; it must be a whole number from 1 to"),
        ({"num_attention_heads": 31, "num_key_value_heads": 31}, "4096 do not divide into 31 heads"),
        ({"num_attention_heads": 0}, "4096 do not divide into 0 heads"),
        ({"num_key_value_heads": 5}, "32 heads do not share 5 key/value heads evenly"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: is 1; it must be true or false"),
        ({"attention_bias": "no"}, "attention_bias: is 'no'; it must be true or false"),
        ({"model_type": 3}, "model_type: is 3; it must be a text"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_experts_per_tok: is missing (or experts_per_tok"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": "x"}, "layer_types: must be a list of texts"),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"]},
            "layer_types: has 1 entries for 32 layers",
        ),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers: is 1000000000; it must be a whole number from 1 to 16,384 layers",
        ),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [5]}, "mlp_only_layers: is [5]; dense layers that are not"),
        ({"model_type": "mpt", "attn_config": 3}, "attn_config: is 3; it must be an object"),
        ({"model_type": "opt", "ffn_dim": 4, "word_embed_proj_dim": 512}, "projected embeddings are not described"),
        ({"model_type": "deepseek", "n_routed_experts": 8, "moe_layer_freq": 2}, "moe_layer_freq: is 2; only experts"),
        ({"is_encoder_decoder": True}, "a model of encoder and decoder is not described"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types: has 'linear_attention': hybrids of"),
    ],
)
def test_a_wrong_value_is_one_message_with_its_key(write, change, said):
    path = write(LLAMA | change)
    with pytest.raises(ConfigError) as error:
        load_model(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_out_of_range_is_named_by_the_key_of_the_file(write):
    path = write(CONFIGS["deepseek-v3"] | {"num_nextn_predict_layers": 10**9})
    with pytest.raises(ConfigError, match=r"^num_nextn_predict_layers: is 1000000000; it must be") as error:
        load_model(path)
    assert error.value.field == "num_nextn_predict_layers"
    inner = write({"model_type": "llava", "text_config": LLAMA | {"num_hidden_layers": 10**9}}, "inner.json")
    with pytest.raises(ConfigError, match=r"^text_config\.num_hidden_layers: is 1000000000"):
        load_model(inner)


def test_a_file_that_is_no_model(write):
    with pytest.raises(ConfigError, match=r"model_type: is 'clip', which is not known.*known: .*llama"):
        load_model(write({"model_type": "clip"}))
    for content, said in (
        ("[1]", "not a JSON object"),
        ('{"a": 1,\n}', r"config\.json:2: is not JSON"),
        ("[" * 100000, "nested too deeply"),
        ("", r":1: is not JSON"),
    ):
        with pytest.raises(FormatError, match=said):
            load_model(write(content))


@pytest.mark.parametrize(
    ("kind", "like"),
    [
        ("qwen2_5_vl_text", "qwen2"),
        ("qwen2_vl", "qwen2"),
        ("qwen3_vl_text", "qwen3"),
        ("llama4_text", "llama4"),
        ("gemma3_text", "gemma3"),
    ],
)
def test_the_language_model_of_a_known_family_is_read_as_that_family(tmp_path, kind, like):
    shape = {
        **{"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2},
        **{"intermediate_size": 1024, "vocab_size": 1000, "sliding_window": 128, "use_sliding_window": False},
        **{"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
    }
    models = []
    for name in (kind, like):
        path = tmp_path / "small.json"
        path.write_text(json.dumps({"model_type": name, **shape}), encoding="utf-8")
        models.append(read_config(path))
    assert models[0] == models[1]
    assert "model-type-unknown" not in {note.code for note in models[0].notes}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("like Jamba", {"model_type": "unseen", "attn_layer_period": 8, "mamba_d_state": 16}),
        ("Ring-linear-2", {"model_type": "unseen", "linear_attn_config": {"head_dim": 128}}),
        ("Bamba", {"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}),
        ("Zamba2", {"model_type": "zamba2", "hybrid_layer_ids": [6, 12]}),
        ("Granite 4", {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}),
        ("Ring-linear", {"model_type": "bailing_moe_linear", "layer_group_size": 5}),
        ("like MiniMax-01", {"model_type": "unseen", "attn_type_list": [0, 0, 0, 1]}),
        ("unknown layers", {"model_type": "unseen", "layer_types": ["conv", "full_attention"]}),
        ("RecurrentGemma", {"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}),
        ("RWKV", {"model_type": "rwkv7"}),
        ("Mamba", {"model_type": "falcon_mamba", "state_size": 16}),
        ("GLM-5", {"model_type": "glm_moe_dsa", "index_topk": 2048, "kv_lora_rank": 512}),
        ("several streams", {"model_type": "unseen", "hc_mult": 4}),
        ("Llama-Nemotron", {"model_type": "nemotron-nas", "block_configs": [{"attention": {}}]}),
        ("MiMo-V2", {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1, 1]}),
        ("an output gate", {"model_type": "afmoe", "attn_output_gate": True}),
        ("one indexer head", {"model_type": "unseen", "index_n_heads": 1}),
    ],
)
def test_a_model_of_other_layers_is_refused_and_not_read_as_a_transformer(write, name, keys):
    with pytest.raises(ConfigError, match="not described, and the model would be forecast as another one"):
        load_model(write(LLAMA | keys))
    inside = {"model_type": "vision", "text_config": LLAMA | keys}
    with pytest.raises(ConfigError, match=r"text_config\..*not described"):
        load_model(write(inside))
    assert name


def test_keys_that_say_that_no_layer_is_of_another_kind_are_read(write):
    plain = load_model(write(LLAMA))
    same = {"attn_type_list": [1] * 32, "linear_attn_config": None, "hybrid_override_pattern": "", "sparse_config": {}}
    assert load_model(write(LLAMA | same)) == plain


def test_that_the_language_model_alone_is_read_is_said(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen2_5_vl", "text_config": {**LLAMA, "model_type": "qwen2"}}))
    (note,) = read_config(path).notes
    assert note.code == "language-model-only"
    assert "text_config" in note.text


def test_experts_without_shared_ones_have_none(write):
    config = {key: value for key, value in CONFIGS["deepseek-v3"].items() if key != "n_shared_experts"}
    experts = load_model(write(config)).experts
    assert experts.shared_ffn_hidden == 0
    assert load_model(write({**config, "n_shared_experts": 3})).experts.shared_ffn_hidden == 3 * experts.ffn_hidden


def test_two_groups_of_experts_limit_the_routing_and_one_does_not(write):
    for groups, chosen in ((2, 1), (1, 1)):
        experts = load_model(write({**CONFIGS["deepseek-v3"], "n_group": groups, "topk_group": chosen})).experts
        assert (experts.groups, experts.group_topk) == (groups, chosen)
