"""Hybrids of state-space, attention and MLP layers: parameters and FLOPs summed by hand, exchanges, their files."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.model.blocks.gated_delta import GatedDelta
from traincast.model.blocks.mamba import Mamba
from traincast.model.blocks.share import Execution, Sequences, Share
from traincast.model.counts import further_blocks, model_flops_per_token, parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks

PUBLISHED = {
    # Model cards and reports: NVIDIA-Nemotron-3-Nano-30B-A3B (31.6B, 3.6B active with embeddings), arXiv 2504.03624
    # (Nemotron-H 8B, 56B and 47B), NVIDIA-Nemotron-Nano-9B-v2 (8.89B), -12B-v2 (12.31B), Nemotron-3-Super-120B-A12B
    # (120.6B, 12.7B active with embeddings), Nemotron-3-Ultra (550B, 55B without the lookup of embeddings).
    "nemotron-3-nano": (31.58e9, 3.58e9),
    "nemotron-3-super": (120.6e9, 12.75e9),
    "nemotron-3-ultra": (549.5e9, 56.0e9),
    "nemotron-h-8b": (8.10e9, 8.10e9),
    "nemotron-h-47b": (46.8e9, 46.8e9),
    "nemotron-h-56b": (56.3e9, 56.3e9),
    "nemotron-nano-9b-v2": (8.89e9, 8.89e9),
    "nemotron-nano-12b-v2": (12.31e9, 12.31e9),
}


@pytest.mark.parametrize(("name", "counts"), PUBLISHED.items())
def test_parameters_are_those_of_the_model_cards(name, counts):
    found = parameters(load_model(name))
    assert (found.total, found.active) == pytest.approx(counts, rel=0.005)


def test_parameters_of_nemotron_3_nano_by_hand():
    """52 layers: 23 of Mamba-2, 6 of attention, 23 of experts, a norm before each; config.json of the 30B-A3B."""
    hidden, inner, state, groups, heads = 2688, 64 * 64, 128, 8, 64
    mixed = inner + 2 * groups * state
    mamba = hidden * (inner + mixed + heads) + mixed * (4 + 1) + 3 * heads + inner + inner * hidden
    attention = hidden * (32 + 2 * 2) * 128 + 32 * 128 * hidden
    experts = hidden * 128 + 128 + 128 * 2 * hidden * 1856 + 2 * hidden * 3712
    table = 131072 * hidden
    total = 23 * mamba + 6 * attention + 23 * experts + 52 * hidden + hidden + 2 * table
    assert parameters(load_model("nemotron-3-nano")).total == total == 31_577_940_288


def test_counts_of_published_checkpoints_are_met_to_the_last_one():
    """Headers of the weights: Qwen3-Coder-Next without its MTP layer, and 10 of 512 experts of each layer active;
    Nemotron 3 Super's 123,611,012,096 in bf16 with its MTP layer, and 512 fp32 routing biases of 41 layers."""
    qwen = parameters(load_model("qwen3-next-80b-a3b"))
    assert (qwen.total, qwen.active) == (79_674_391_296, 3_874_929_408)
    nemotron = parameters(load_model("nemotron-3-super"))
    assert nemotron.trained == 123_611_012_096 + 41 * 512
    assert nemotron.trained - nemotron.total == 2_942_324_736 + 512


def test_flops_of_linear_attention_are_counted_as_megatron_does():
    """Projections, and 8 H P^2 of the delta rule: Megatron-LM, megatron/training/training.py (gdn_layer_flops)."""
    found, layers = token_flops(load_model("qwen3-next-80b-a3b"), 4096), 36
    assert found.scan == layers * 2 * 32 * 128**2 * 4
    assert found.others == layers * 2 * 2048 * (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32 + 32 * 128)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-next-80b-a3b", "nemotron-3-super", "deepseek-v4-flash"])
def test_blocks_of_further_kinds_are_told_apart(name):
    model = load_model(name)
    found = further_blocks(model, 2048)
    assert sum(each.parameters for each in found) == parameters(model).layers.others
    assert sum(each.forward_flops for each in found) == pytest.approx(token_flops(model, 2048).others)
    assert len({each.kind for each in found}) == len(found)
    assert [each.kind for each in found if each.kind in ("linear_attention", "mamba", "hyper_connections")] == {
        "qwen3-next-80b-a3b": ["linear_attention"],
        "nemotron-3-super": ["mamba"],
        "deepseek-v4-flash": ["hyper_connections"],
    }.get(name, [])


def test_flops_of_a_mamba_layer_are_counted_as_megatron_does():
    """in_proj, 7 d_inner N of the scan, out_proj: Megatron-LM, megatron/training/training.py (mamba_layer_flops)."""
    model = load_model("nemotron-h-8b")
    hidden, inner, state = 4096, 128 * 64, 128
    mamba = 2 * hidden * (2 * inner + 2 * 8 * state + 128) + 7 * inner * state + 2 * inner * hidden
    mlp = 2 * 2 * hidden * 21504
    attention = 2 * hidden * (32 + 2 * 8) * 128 + 2 * 32 * 128 * hidden + 2 * 2 * 32 * 128 * 8192 / 2
    found = token_flops(model, 8192)
    assert found.forward == pytest.approx(24 * mamba + 24 * mlp + 4 * attention + 2 * hidden * 131072)
    assert found.scan == 24 * 7 * inner * state
    assert model_flops_per_token(model, 8192) == pytest.approx(3 * found.forward)
    # A frozen matrix has no gradient of its own; the scan has none that is frozen.
    assert model_flops_per_token(model, 8192, "lora") == pytest.approx(2 * found.matrices + 3 * found.core)


def parts_of(precision="bf16", **degrees):
    model = load_model("nemotron-h-8b")
    (mamba,) = layer_blocks(model, 0)
    assert isinstance(mamba, Mamba)
    share = Share(model=model, sequences=Sequences(length=4096), execution=Execution(precision=precision), **degrees)
    return {part.name: part for part in mamba.parts(share)}


def test_heads_and_groups_of_a_mixer_are_split_over_tp():
    whole, half = parts_of(), parts_of(tp=2, sequence_parallel=True)
    for name in ("mixer.in_proj", "mixer.conv1d", "mixer.scan", "mixer.norm", "mixer.out_proj"):
        assert half[name].elements * 2 == whole[name].elements, name
        assert half[name].flops * 2 == whole[name].flops, name
    assert [each.operation for each in half["mixer.in_proj"].forward if each.size_bytes] == ["all_gather"]
    assert [each.operation for each in half["mixer.out_proj"].forward if each.size_bytes] == ["reduce_scatter"]
    assert not [each for part in whole.values() for each in (*part.forward, *part.backward) if each.size_bytes]


def test_context_parallel_ranks_swap_tokens_for_heads():
    parts = parts_of(cp=4)
    tokens, inner, mixed = 1024, 128 * 64, 128 * 64 + 2 * 8 * 128
    for part, width in (("mixer.conv1d", inner + mixed + 128), ("mixer.scan", inner)):
        for exchanges in (parts[part].forward, parts[part].backward):
            (each,) = exchanges
            assert (each.group, each.operation, each.size_bytes) == ("cp", "all_to_all", 2 * tokens * width)


def test_saved_tensors_of_a_mixer():
    """Inputs, projections, outputs of the scan and of the gate: what recomputation of the layer does not drop."""
    saved = {name: size for part in parts_of().values() for name, size in part.saved.items()}
    inner, mixed = 128 * 64, 128 * 64 + 2 * 8 * 128
    assert saved["mixer inputs"] == 4096 * 4096 * 2
    assert saved["mixer projections"] == 4096 * (inner + mixed + 128) * 2
    assert saved["scan outputs"] == saved["mixer outputs"] == 4096 * inner * 2


def delta_parts_of(precision="bf16", **degrees):
    """Return the parts of a layer of gated DeltaNet of Qwen3-Next-80B-A3B by their names; sequences of 4,096 tokens."""
    model = load_model("qwen3-next-80b-a3b")
    (delta,) = (each for each in layer_blocks(model, 0) if isinstance(each, GatedDelta))
    share = Share(model=model, sequences=Sequences(length=4096), execution=Execution(precision=precision), **degrees)
    return {part.name.removeprefix("self_attention."): part for part in delta.parts(share)}


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_a_layer_of_gated_deltanet_by_hand(tp, cp):
    """Hidden 2,048; 16 heads of queries and keys and 32 of values and of the gate, all of 128; 4 tokens of convolution.

    Source: Qwen3-Next-80B-A3B's config.json; Transformers, modeling_qwen3_next.py (Qwen3NextGatedDeltaNet).
    """
    tokens, inner, keys = 4096 // cp, 32 * 128 // tp, 16 * 128 // tp
    mixed, wide = inner + 2 * keys, 2 * inner + 2 * keys + 2 * 32 // tp
    parts = delta_parts_of(tp=tp, cp=cp, sequence_parallel=True)
    shapes = {name: [(gemm.m, gemm.n, gemm.k) for gemm in part.gemms] for name, part in parts.items() if part.gemms}
    assert shapes == {"in_proj": [(tokens, wide, 2048)], "out_proj": [(tokens, 2048, inner)]}
    assert [(each.family, each.shape) for each in parts["conv1d"].kernels] == [("activation", (tokens, mixed))]
    assert [(each.family, each.shape) for each in parts["out_norm"].kernels] == [("activation", (tokens, inner))]
    (rule,) = parts["gated_delta_rule"].kernels
    assert (rule.family, rule.shape) == ("delta_rule", (tokens, 32 // tp, 128, 128))
    vectors = {"conv1d": 4 * mixed, "gated_delta_rule": 2 * 32 // tp, "out_norm": 128}
    assert {name: parts[name].vectors for name in vectors} == vectors
    saved = [
        (key, size) for part in parts.values() for key, size in part.saved.items() if key.split()[0] != "layernorm"
    ]
    assert sorted(saved) == [
        ("mixer inputs", 2 * tokens // tp * 2048),
        ("mixer outputs", 2 * tokens * inner),
        ("mixer projections", 2 * tokens * mixed),
        ("mixer projections", 2 * tokens * wide),
        ("scan outputs", 2 * tokens * inner),
    ]
    for name, size in (("conv1d", 2 * tokens * wide), ("gated_delta_rule", 2 * tokens * inner)):
        for exchanges in (parts[name].forward, parts[name].backward):
            found = [(each.group, each.operation, each.size_bytes) for each in exchanges if each.size_bytes]
            assert found == ([("cp", "all_to_all", size)] if cp > 1 else [])


@pytest.mark.parametrize("tp", [1, 2])
def test_a_gate_for_every_channel_of_every_head_by_hand(tp):
    """16 heads of 256 with 2 of keys and values; the projection to queries is twice as wide as they are.

    Source: Transformers, modeling_qwen3_next.py (Qwen3NextAttention).
    """
    model = load_model("qwen3-next-80b-a3b")
    attention = layer_blocks(model, 3)[0]
    share = Share(model=model, sequences=Sequences(length=4096), tp=tp)
    parts = {part.name.removeprefix("self_attention."): part for part in attention.parts(share)}
    (qkv,), (gate,) = parts["linear_qkv"].gemms, parts["output_gate"].kernels
    assert (qkv.m, qkv.n, qkv.k) == (4096, (2 * 16 + 2 * 2) * 256 // tp, 2048)
    assert (gate.family, gate.shape) == ("activation", (4096, 16 * 256 // tp))
    assert parts["output_gate"].saved == {"gated attention outputs": 2 * 4096 * 16 * 256 // tp}


@pytest.mark.parametrize(("parts", "inner", "hidden"), [(parts_of, 128 * 64, 4096), (delta_parts_of, 32 * 128, 2048)])
def test_projections_of_a_mixer_say_what_ranks_have_a_part_of(parts, inner, hidden):
    found = parts(precision="fp8", tp=2, sequence_parallel=True)
    for name, split, inputs in (("in_proj", "outputs", hidden), ("out_proj", "inputs", inner // 2)):
        (gemm,) = (part.gemms[0] for key, part in found.items() if key.endswith(name))
        assert (gemm.dtype, gemm.split, gemm.m, gemm.k) == ("fp8", split, 4096, inputs)


def test_arrays_of_layouts_are_priced_with_the_same_lines():
    tp, cp = np.array([[1], [2], [8]]), np.array([1, 2, 4])
    many = parts_of(tp=tp, cp=cp)
    for row, column in np.ndindex(3, 3):
        one = parts_of(tp=int(tp[row, 0]), cp=int(cp[column]))
        for name, part in one.items():
            assert np.broadcast_to(many[name].flops, (3, 3))[row, column] == pytest.approx(part.flops, rel=1e-12)
            assert np.broadcast_to(many[name].elements, (3, 3))[row, column] == part.elements


def test_latent_experts_take_narrow_tokens():
    """1,024 of 4,096 channels are dispatched; router and shared experts see all, every rank has the projections."""
    model = load_model("nemotron-3-super")
    wide = replace(model, experts=replace(model.experts, latent_hidden=0))

    def parts(which):
        (moe,) = layer_blocks(which, 1)
        return {part.name: part for part in moe.parts(Share(model=which, sequences=Sequences(length=4096), ep=8))}

    narrow, usual = parts(model), parts(wide)
    assert narrow["mlp.experts.linear_fc1"].flops * 4 == usual["mlp.experts.linear_fc1"].flops
    assert narrow["mlp.router"].flops == usual["mlp.router"].flops
    sent = [
        next(exchange.size_bytes for exchange in each["mlp.token_dispatcher"].forward if exchange.goes == "out")
        for each in (narrow, usual)
    ]
    assert sent[0] * 4 == sent[1] > 0
    assert narrow["mlp.fc1_latent_proj"].elements == narrow["mlp.fc2_latent_proj"].elements == 4096 * 1024
    assert "mlp.fc1_latent_proj" not in usual


def test_mtp_layers_have_blocks_of_their_own():
    """An MTP layer of Super is attention and experts, where its last layer has experts alone."""
    counts = parameters(load_model("nemotron-3-super"))
    attention = 4096 * (32 + 2 * 2) * 128 + 32 * 128 * 4096
    assert counts.mtp.attention == attention
    assert counts.mtp.experts == counts.layers.experts / 40


CONFIG = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "vocab_size": 131072,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 262144,
}
"""Of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, what counts of it."""


def read(tmp_path, **changes):
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load_model(str(tmp_path / "config.json"))


def test_a_config_is_the_built_in_model(tmp_path):
    model, known = read(tmp_path), load_model("nemotron-3-nano")
    names = [layer_blocks(each, layer) for each in (model, known) for layer in range(52)]
    assert names[:52] == names[52:]
    assert parameters(model) == parameters(known)


def test_what_a_hybrid_s_config_leaves_out_is_not_there(tmp_path):
    whole = read(tmp_path).experts
    assert (whole.shared_ffn_hidden, whole.latent_hidden) == (3712, 0)
    for key in ("n_shared_experts", "moe_shared_expert_intermediate_size"):
        assert read(tmp_path, **{key: None}).experts.shared_ffn_hidden == 0
    dense = read(tmp_path, n_routed_experts=None, hybrid_override_pattern="M-*-" * 13)
    assert (dense.experts, dense.mtp_layers, dense.linear_bias) == (None, 0, False)


def test_a_config_may_list_its_layers(tmp_path):
    names = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    listed = [names[letter] for letter in CONFIG["hybrid_override_pattern"]]
    model = read(tmp_path, hybrid_override_pattern=None, layers_block_type=listed)
    assert parameters(model) == parameters(read(tmp_path))
    with pytest.raises(ConfigError, match="layers_block_type: has 'conv'; known: mamba, attention, moe, mlp"):
        read(tmp_path, hybrid_override_pattern=None, layers_block_type=["mamba", "conv"])
    with pytest.raises(ConfigError, match="layers_block_type: is missing, and there is no hybrid_override_pattern"):
        read(tmp_path, hybrid_override_pattern=None)


def test_a_letter_that_stands_for_nothing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has 'Q'; a pattern is made of M \(mamba2\), \* \(attention\)"):
        read(tmp_path, hybrid_override_pattern="MQ*E")


def test_other_hybrids_are_still_refused(tmp_path):
    with pytest.raises(ConfigError, match="mamba_num_heads: hybrids"):
        read(tmp_path, model_type="bamba")


QWEN = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151936,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize(("key", "layers"), [(None, 0), (1, 1), (2, 2)])
def test_mtp_layers_of_linear_attention_are_those_of_the_config(tmp_path, key, layers):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN | {"mtp_num_hidden_layers": key}))
    assert load_model(str(path)).mtp_layers == layers


@pytest.mark.parametrize("layers", [None, (["linear_attention"] * 3 + ["full_attention"]) * 12])
def test_a_config_of_linear_attention_is_the_built_in_model(tmp_path, layers):
    (tmp_path / "config.json").write_text(json.dumps(QWEN | ({} if layers is None else {"layer_types": layers})))
    model, known = load_model(str(tmp_path)), load_model("qwen3-next-80b-a3b")
    assert [layer_blocks(model, layer) for layer in range(48)] == [layer_blocks(known, layer) for layer in range(48)]
    assert parameters(model).total == parameters(known).total


def test_layers_of_another_kind_are_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"layer_types": ["lightning_attention"] * 48}))
    with pytest.raises(ConfigError, match="has 'lightning_attention'; known: linear_attention, full_attention"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("size", [0, 2.5])
def test_a_mixer_without_heads_is_refused(tmp_path, size):
    (tmp_path / "m.toml").write_text(f'base = "nemotron-h-8b"\nsettings = {{ mamba_heads = {size} }}\n')
    with pytest.raises(ConfigError, match=r"settings\.mamba_heads: is"):
        load_model(str(tmp_path / "m.toml"))
