"""Models whose layers are not all alike: variants of blocks, and lists of layers that repeat."""

import json

import pytest
from click.testing import CliRunner

from model_counts import layer_flops, layer_parameters
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.degrees import check_model
from traincast.job.request import JobRequest
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks
from traincast.report.files import write_directory

MIXED = """
base = "llama3-8b"
layers = 5
blocks = [["attention", "mlp"], { times = 2, blocks = [["attention:wide", "mlp"], ["attention", "mlp:narrow"]] }]
[variants.wide.attention]
head_dim = 256
kv_heads = 4
[variants.narrow]
ffn_hidden = 1024
"""


def mixed(tmp_path, text=MIXED):
    path = tmp_path / "mixed.toml"
    path.write_text(text)
    return load_model(str(path))


def test_blocks_of_a_variant_have_its_shape(tmp_path):
    model = mixed(tmp_path)
    usual, wide, narrow = (layer_parameters(model, layer) for layer in range(3))
    hidden, attention = 4096, 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096
    assert usual.attention == narrow.attention == attention
    assert wide.attention == hidden * (32 + 2 * 4) * 256 + 32 * 256 * hidden
    assert (usual.mlp, wide.mlp, narrow.mlp) == (3 * hidden * 14336, 3 * hidden * 14336, 3 * hidden * 1024)
    assert layer_flops(model, 1, 2048).attention_core == 2 * layer_flops(model, 0, 2048).attention_core
    assert [model.names_of(layer)[0] for layer in range(5)] == [
        *("attention", "attention:wide", "attention", "attention:wide", "attention"),
    ]
    assert parameters(model).layers.total == usual.total + 2 * (wide.total + narrow.total)


def test_a_run_of_variants_is_run_again_from_its_result(tmp_path):
    model = mixed(tmp_path)
    result = api.predict(JobRequest(model=model, gpus=8, tp=2, global_batch=8, seq_length=1024), cluster="h100")
    write_directory(result, tmp_path / "out")
    done = CliRunner().invoke(cli, ["predict", str(tmp_path / "out"), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["iteration_time_s"] == result.iteration_time_s


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"attention:wide"', '"attention:tall"', "no variant 'tall'; it has wide, narrow"),
        ('"mlp:narrow"', '"mlp"', "variants.narrow: is not a variant of any block"),
        ('"attention:wide"', '"attn:wide"', "unknown block 'attn'"),
        ("times = 2", "times = 0", "blocks.times: is 0"),
        ("times = 2", "twice = 2", "tables of times and blocks"),
        ("ffn_hidden = 1024", "mtp_layers = 1", "variants.narrow.mtp_layers: belongs to the whole model"),
        ("ffn_hidden = 1024", "ffn_hiden = 1024", "ffn_hiden: is unknown"),
        ("[variants.wide.attention]", "[variants]\nwide = 5\n[attention]", "variants.wide: is 5; it must be a table"),
    ],
)
def test_what_is_no_variant_is_refused(tmp_path, old, new, said):
    with pytest.raises(ConfigError) as refused:
        mixed(tmp_path, MIXED.replace(old, new, 1))
    assert said in str(refused.value)


def test_degrees_must_divide_variants_too(tmp_path):
    model = mixed(tmp_path, MIXED.replace("kv_heads = 4", "kv_heads = 4\nheads = 36"))
    check_model(model, tp=4, ep=1, etp=1)
    with pytest.raises(InfeasibleError, match="tp 8 does not divide the 36 attention heads"):
        check_model(model, tp=8, ep=1, etp=1)


def parts_of_layer(name, layer, **degrees):
    """Return the parts of a layer of a built-in model by their names; one sequence of 4,096 tokens."""
    model = load_model(name)
    share = Share(model=model, sequences=Sequences(length=4096), **degrees)
    return {part.name: part for block in layer_blocks(model, layer) for part in block.parts(share)}


@pytest.mark.parametrize("tp", [1, 2])
def test_a_global_layer_of_gemma_4_has_one_projection_for_keys_and_values(tp):
    """31B: 32 heads of 256 with 16 of keys in a window of 1,024; in each sixth layer of 512 with 4, without a window.

    Source: Transformers, modular_gemma4.py (Gemma4TextAttention, use_alternative_attention).
    """
    local, whole = (parts_of_layer("gemma4-31b", layer, tp=tp, sequence_parallel=True) for layer in (0, 5))
    for parts, width, kept, window, scales in (
        (local, (32 + 2 * 16) * 256, (32 + 2 * 16) * 256, 1024, 2 * 256),
        (whole, (32 + 4) * 512, (32 + 2 * 4) * 512, 0, 2 * 512),
    ):
        (qkv,), (core,) = parts["self_attention.linear_qkv"].gemms, parts["self_attention.core_attention"].kernels
        assert (qkv.m, qkv.n, qkv.k) == (4096, width // tp, 5376)
        assert parts["self_attention.linear_qkv"].saved["queries, keys, values"] == 2 * 4096 * kept // tp
        assert core.window == window
        assert parts["self_attention.qk_layernorm"].vectors == scales


def test_late_layers_of_gemma_4_e2b_have_the_keys_of_others_and_a_wider_mlp():
    """15 layers of 8 heads of 256 with one of keys; in 20 more only queries, and 12,288 channels, not 6,144."""
    early, late, last = (parts_of_layer("gemma4-e2b", layer) for layer in (0, 15, 34))
    for parts, width, scales, heads in (
        (early, (8 + 2) * 256, 2 * 256, 9),
        (late, 8 * 256, 256, 8),
        (last, 8 * 512, 512, 8),
    ):
        (qkv,), (rotary,) = parts["self_attention.linear_qkv"].gemms, parts["self_attention.rotary_pos_emb"].kernels
        assert (qkv.n, qkv.k) == (width, 1536)
        assert parts["self_attention.qk_layernorm"].vectors == scales
        assert rotary.shape[1] == heads
    assert [parts["mlp.linear_fc2"].gemms[0].k for parts in (early, late)] == [6144, 12288]
    # All meet the same keys: of a window, or in each fifth layer of all.
    assert early["self_attention.core_attention"].flops == late["self_attention.core_attention"].flops
    assert last["self_attention.core_attention"].flops > late["self_attention.core_attention"].flops


@pytest.mark.parametrize("tp", [1, 2])
def test_an_input_of_each_layer_by_hand(tp):
    """A row of 256 channels for each of 262,144 tokens, a projection of the embedding, a gate and a way back."""
    parts = parts_of_layer("gemma4-e4b", 0, tp=tp, sequence_parallel=True)
    found = {name.rpartition(".")[2]: part for name, part in parts.items() if name.startswith("per_layer_input.")}
    assert found["word_embeddings"].vectors == 262144 * 256 // tp
    shapes = {name: [(gemm.n, gemm.k) for gemm in part.gemms] for name, part in found.items() if part.gemms}
    width = 256 // tp
    assert shapes == {"model_projection": [(width, 2560)], "gate": [(width, 2560)], "projection": [(2560, width)]}
    exchanged = [each.size_bytes for each in found["word_embeddings"].forward]
    assert exchanged == ([] if tp == 1 else [2 * 4096 * 256])
    counts = parameters(load_model("gemma4-e4b"))
    assert counts.layers.tables == 42 * 262144 * 256
    assert counts.layers.others == 42 * 3 * 2560 * 256
    # 2.3 B "effective" parameters of E2B, 5.1 B with the tables and 0.5 B of images and sound (its model card).
    small = parameters(load_model("gemma4-e2b"))
    assert round(small.computed / 1e9, 1) == 2.3


def test_layers_of_gemma_4_26b_have_an_mlp_and_experts():
    """Beside the MLP 128 experts of 704 channels, 8 for a token; the router scales 2,816 channels and 128 weights."""
    parts = parts_of_layer("gemma4-26b", 0)
    assert parts["mlp.linear_fc1"].elements == 2 * 2112 * 2816
    assert parts["mlp.experts.linear_fc1"].elements == 128 * 2 * 704 * 2816
    assert parts["mlp.router"].elements == 2816 * 128 + 2816 + 128
    counts = parameters(load_model("gemma4-26b"))
    assert (round(counts.total / 1e9, 1), round(counts.active / 1e9, 1)) == (25.2, 3.8)
