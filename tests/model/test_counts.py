import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model.published import CHECKPOINTS, PRINTED, TIED, VISION
from model_counts import adapter_parameters, layer_flops, layer_parameters
from traincast.errors import ConfigError
from traincast.model.blocks.part import mean_keys
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import (
    hardware_flops_per_token,
    model_flops_per_token,
    parameters,
    token_flops,
)
from traincast.model.load import load_model, model_names
from traincast.model.model import Attention, Experts, Latent, Model
from traincast.model.structure import layer_blocks, parts_of


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameters_are_those_of_the_checkpoint(name):
    published = CHECKPOINTS[name]
    assert parameters(load_model(name)).total == published.count - published.more
    assert bool(published.more) == bool(published.cause)
    # What is another model, or a copy, is not a deviation.
    if published.cause not in (VISION, TIED):
        assert abs(published.more) <= 0.0005 * published.count


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_round_to_the_printed_ones(name):
    assert parameters(load_model(name)).total == pytest.approx(PRINTED[name].count, rel=0.005)


def test_every_count_that_was_published_stands_once():
    assert not set(CHECKPOINTS) & set(PRINTED)
    assert len(CHECKPOINTS) + len(PRINTED) >= 113
    assert set(CHECKPOINTS) | set(PRINTED) <= set(model_names())


def test_grok_is_within_its_rounding():
    # "314B parameters" (github.com/xai-org/grok-1); its matrices alone are 315.7.
    assert parameters(load_model("grok-1")).total / 1e9 == pytest.approx(314, rel=0.006)


@pytest.mark.parametrize(
    ("name", "published_billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.1),
        ("qwen3-30b-a3b", 3.35),
        ("qwen3-235b-a22b", 22.2),
        ("dbrx", 36.5),
    ],
)
def test_active_parameters_of_sources_that_count_the_embedding(name, published_billions):
    assert parameters(load_model(name)).active / 1e9 == pytest.approx(published_billions, rel=0.005)


@pytest.mark.parametrize(
    ("name", "published_billions"), [("deepseek-v3", 36.7), ("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)]
)
def test_active_parameters_of_sources_that_do_not(name, published_billions):
    # DeepSeek-V3 prints 37; README_WEIGHTS.md of its repository 36.7.
    assert parameters(load_model(name)).computed / 1e9 == pytest.approx(published_billions, rel=0.005)


def test_the_further_token_layers_of_deepseek_v3():
    # README_WEIGHTS.md: 11.5 B unique parameters, beside the shared embedding and head.
    counts = parameters(load_model("deepseek-v3"))
    assert (counts.trained - counts.total) / 1e9 == pytest.approx(11.5, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", model_names())
def test_layers_and_parts_add_up(name):
    model = load_model(name)
    counts = parameters(model)
    layers = [layer_parameters(model, layer) for layer in range(model.layers)]
    assert sum(layer.total for layer in layers) == counts.layers.total
    assert sum(layer.active for layer in layers) == counts.layers.active
    outside = counts.embedding + counts.positions + counts.final_norm + counts.head + counts.other
    assert counts.total == counts.layers.total + outside
    assert counts.computed <= counts.active <= counts.total <= counts.trained
    flops = token_flops(model, 4096)
    by_layer = sum(layer_flops(model, layer, 4096).forward for layer in range(model.layers))
    assert by_layer <= flops.forward * (1 + 1e-12)
    # Every matrix that a token passes through costs two FLOPs an element; vectors cost none.
    without_mtp = token_flops(replace(model, mtp_layers=0), 4096)
    assert without_mtp.matrices == pytest.approx(2 * counts.computed, rel=0.015)
    assert without_mtp.matrices <= 2 * counts.computed


def test_padding_adds_to_both_ends_of_the_model():
    model = load_model("llama3-8b")
    assert parameters(model, 130000).total - parameters(model).total == 2 * (130000 - 128256) * 4096
    tied = replace(model, tied_embeddings=True)
    assert parameters(tied, 130000).total - parameters(tied).total == (130000 - 128256) * 4096
    assert token_flops(model, 4096, 130000).head - token_flops(model, 4096).head == 2 * (130000 - 128256) * 4096
    with pytest.raises(ConfigError, match="vocab"):
        parameters(model, 0)


def test_flops_of_gpt_are_those_of_the_formula():
    # Narayanan et al. 2021: 72 B s l h^2 (1 + s / 6h + V / 12 l h) without recomputation; half of the middle term.
    model = load_model("gpt3-175b")
    s, layers, h, vocab = 2048, model.layers, model.hidden, model.vocab
    formula = 72 * s * layers * h**2 * (1 + s / (12 * h) + vocab / (12 * layers * h))
    assert s * model_flops_per_token(model, s) == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "seq_length", "tflops_per_gpu", "tokens_per_s_per_gpu"),
    [
        # NVIDIA-NeMo/Megatron-Bridge: docs/performance-summary.md.
        ("llama3-8b", 8192, 1933.0, 37556.0),
        ("llama3.1-405b", 8192, 2646.0, 1048.0),
        ("qwen3-30b-a3b", 4096, 618.0, 26859.0),
        ("deepseek-v3", 4096, 1276.0, 4912.0),
        # AI-Hypercomputer/tpu-recipes: MaxText on Ironwood; the second has far more attention than matrices.
        ("llama3-70b", 8192, 1207.05, 2686.98),
        ("llama3-70b", 131072, 897.94, 963.03),
        ("gpt-oss-120b", 8192, 330.25, 9581.66),
        ("gemma4-26b", 4096, 592.31, 23655.73),
        ("gemma4-31b", 8192, 1057.76, 5370.74),
        ("gemma4-e2b", 8192, 892.84, 57873.71),
        ("gemma4-e4b", 8192, 1002.50, 33755.24),
    ],
)
def test_flops_equal_what_frameworks_print(name, seq_length, tflops_per_gpu, tokens_per_s_per_gpu):
    printed = tflops_per_gpu * 1e12 / tokens_per_s_per_gpu
    assert model_flops_per_token(load_model(name), seq_length) == pytest.approx(printed, rel=0.005)


def test_low_rank_adapters_spare_the_weight_gradients():
    model = load_model("llama3-70b")
    flops = token_flops(model, 8192)
    saved = model_flops_per_token(model, 8192) - model_flops_per_token(model, 8192, "lora")
    assert saved == pytest.approx(flops.matrices)
    assert model_flops_per_token(model, 8192, "sft") == model_flops_per_token(model, 8192)
    with pytest.raises(ConfigError, match="pretrain"):
        model_flops_per_token(model, 8192, "rlhf")


def test_adapters_by_hand():
    # qkv 4096 -> 6144, output 4096 -> 4096, up and gate 4096 -> 28672, down 14336 -> 4096.
    attention, mlp = (4096 + 6144) + (4096 + 4096), (4096 + 28672) + (14336 + 4096)
    model = load_model("llama3-8b")
    assert adapter_parameters(model, 16) == 16 * 32 * (attention + mlp)
    assert adapter_parameters(model, 16, mlp=False) == 16 * 32 * attention
    sparse = load_model("mixtral-8x7b")
    assert adapter_parameters(sparse, 8) - adapter_parameters(sparse, 8, mlp=False) == 8 * 32 * 8 * mlp


def test_recomputation_adds_a_forward_pass():
    model = load_model("llama3-8b")
    flops, plain = token_flops(model, 8192), model_flops_per_token(model, 8192)
    assert hardware_flops_per_token(model, 8192) == plain
    assert hardware_flops_per_token(model, 8192, "selective") - plain == pytest.approx(flops.attention_core)
    full = hardware_flops_per_token(model, 8192, "full") - plain
    assert full == pytest.approx(flops.forward - flops.head)
    half = hardware_flops_per_token(model, 8192, "full", recompute_share=0.5) - plain
    assert half == pytest.approx(full / 2)
    for wrong in ({"recompute": "some"}, {"recompute": "full", "recompute_share": 1.5}):
        with pytest.raises(ConfigError, match="recompute"):
            hardware_flops_per_token(model, 8192, **wrong)


@given(st.integers(1, 3000), st.integers(0, 4000))
def test_mean_keys_is_the_sum_over_the_queries(seq_length, window):
    mean = mean_keys(seq_length, window, causal=True)
    reach = window or seq_length
    summed = sum(min(query + 1, reach) for query in range(seq_length)) / seq_length
    # The formula leaves out half of the diagonal, as all who count "the causal half" do.
    assert summed - 0.5 <= mean + 1e-9 <= summed + 1e-9
    assert mean_keys(seq_length, 0, causal=False) == seq_length
    assert mean <= mean_keys(seq_length, window, causal=False) <= seq_length


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_a_window_never_costs_more(seq_length, window):
    model = load_model("llama3-8b")
    narrow = replace(model, attention=replace(model.attention, window=window, window_layers=1, window_period=2))
    everywhere = replace(model, attention=replace(model.attention, window=window, window_layers=1))
    costs = [token_flops(each, seq_length).attention_core for each in (everywhere, narrow, model)]
    assert costs == sorted(costs)
    if window >= seq_length:
        assert costs[0] == costs[2]


def matrices(model):
    """Return the inputs and outputs of the matrices of the attention of a layer."""
    parts = parts_of(layer_blocks(model, 0)[:1], Share(model=model, sequences=Sequences(length=8)))
    return {(gemm.k, gemm.n) for part in parts for gemm in part.gemms}


def test_latent_attention_by_hand():
    latent = Latent(q_rank=6, kv_rank=5, rope_head_dim=2, nope_head_dim=3, v_head_dim=4)
    attention = Attention(heads=2, kv_heads=2, head_dim=5, latent=latent)
    model = Model(name="x", layers=1, hidden=10, attention=attention, ffn_hidden=20, gated=True, vocab=7)
    assert matrices(model) == {(10, 6), (6, 10), (10, 7), (5, 14), (8, 10)}
    weights = 60 + 60 + 70 + 70 + 80
    assert layer_parameters(model, 0).attention == weights + 6 + 5
    flops = layer_flops(model, 0, 8)
    assert flops.attention_projections == 2 * weights
    assert flops.attention_core == 2 * 2 * (5 + 4) * 4
    direct = replace(model, attention=replace(attention, latent=replace(latent, q_rank=None)))
    assert matrices(direct) == {(10, 10), (10, 7), (5, 14), (8, 10)}
    # attention_bias of DeepSeek (Transformers, modeling_deepseek_v3.py): of q_a_proj and kv_a_proj_with_mqa.
    biased = replace(model, attention=replace(attention, qkv_bias=True))
    assert layer_parameters(biased, 0).attention == weights + 6 + 5 + 6 + (5 + 2)


def test_experts_by_hand():
    experts = Experts(experts=4, topk=2, ffn_hidden=3, shared_ffn_hidden=5, first_dense_layers=1, period=2)
    attention = Attention(heads=2, kv_heads=1, head_dim=5)
    model = Model(
        name="x", layers=4, hidden=10, attention=attention, ffn_hidden=20, gated=True, vocab=7, experts=experts
    )
    assert [model.has_experts(layer) for layer in range(4)] == [False, False, True, False]
    sparse, dense = layer_parameters(model, 2), layer_parameters(model, 1)
    assert (sparse.router, sparse.experts, sparse.active_experts, sparse.shared_experts) == (40, 360, 180, 150)
    assert (sparse.mlp, dense.mlp, dense.experts) == (0, 600, 0)
    # A token passes through two of four experts.
    assert (sparse.active, dense.active) == (sparse.total - 180, dense.total)
    flops = layer_flops(model, 2, 8)
    assert (flops.router, flops.experts, flops.shared_experts, flops.mlp) == (80, 360, 300, 0)
    assert layer_parameters(replace(model, gated=False), 1).mlp == 400


def test_norms_and_biases_by_hand():
    attention = Attention(heads=2, kv_heads=1, head_dim=5, qkv_bias=True, qk_norm=True)
    model = Model(
        name="x",
        layers=1,
        hidden=10,
        attention=attention,
        ffn_hidden=20,
        gated=False,
        vocab=7,
        norm="layer",
        linear_bias=True,
        norms_per_layer=4,
        learned_positions=3,
        other_params=11,
    )
    layer = layer_parameters(model, 0)
    assert layer.attention == 10 * 20 + 10 * 10 + 20 + 2 * 5 + 10
    assert layer.mlp == 2 * 10 * 20 + 20 + 10
    assert layer.norms == 4 * 20
    counts = parameters(model)
    assert (counts.positions, counts.final_norm, counts.other, counts.head) == (30, 20, 11, 70)
    # A token is multiplied with all but what is looked up: positions, and the embedding unless it is the LM head.
    assert counts.computed == counts.total - 30 - 70
    tied = parameters(replace(model, tied_embeddings=True))
    assert (tied.total, tied.computed) == (counts.total - 70, counts.total - 70 - 30)


def test_what_is_not_there_is_an_error():
    model = load_model("llama3-8b")
    with pytest.raises(ConfigError, match="seq_length"):
        token_flops(model, 0)


def test_experts_of_a_period_follow_the_dense_layers():
    """After the dense layers at the start, the last of each period has experts."""
    model = load_model("mixtral-8x7b")
    model = replace(model, layers=8, experts=replace(model.experts, first_dense_layers=1, period=3))
    assert [layer for layer in range(8) if model.has_experts(layer)] == [3, 6]
    assert parameters(model).layers.experts == 2 * layer_parameters(model, 3).experts


def test_a_vocabulary_has_one_entry_or_more():
    model = load_model("llama3-8b")
    assert parameters(model, 1).embedding == parameters(model, 1).head == model.hidden
    with pytest.raises(ConfigError, match="at least 1"):
        parameters(model, 0)


@pytest.mark.parametrize(
    ("name", "published", "experts"), [("glm-4.5", 358_337_791_296, 90), ("glm-4.5-air", 110_468_824_832, 46)]
)
def test_checkpoints_of_glm_4_5_have_both_tables_again_in_their_mtp_layer(name, published, experts):
    """Counts of the hub (zai-org/GLM-4.5, GLM-4.5-Air), with a correction bias for each expert of each such layer."""
    model = load_model(name)
    tables, biases = 2 * model.vocab * model.hidden, experts * model.experts.experts
    assert parameters(model).trained == published - tables - biases


@pytest.mark.parametrize(("seq_length", "mean"), [(4096, 2048), (8192, 4096), (32768, 4096), (12288, 3072)])
def test_chunks_of_llama_4_are_sequences_of_their_own(seq_length, mean):
    """A query of 36 of 48 layers meets half of a chunk, of the others half of the sequence.

    As AI-Hypercomputer/maxtext counts (maxtext_utils.py, calculate_llama4_attention_tflops), where chunks divide it.
    """
    model = load_model("llama4-scout")
    each = 2 * 2 * 40 * 128
    found = token_flops(model, seq_length).attention_core
    assert found == pytest.approx(each * (36 * mean + 12 * seq_length / 2))
    everywhere = replace(model, attention=replace(model.attention, chunked=False))
    assert found <= token_flops(everywhere, seq_length).attention_core * (1 + 1e-12)
