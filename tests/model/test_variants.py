"""Models whose layers are not all alike: variants of blocks, and lists of layers that repeat."""

import json

import pytest
from click.testing import CliRunner

from model_counts import layer_flops, layer_parameters
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.feasible import check_model
from traincast.job.job import JobRequest
from traincast.model.counts import parameters
from traincast.model.load import load_model
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
        ('"mlp:narrow"', '"mlp"', "variants.narrow: is a variant of no block"),
        ('"attention:wide"', '"attn:wide"', "unknown block 'attn'"),
        ("times = 2", "times = 0", "blocks.times: is 0"),
        ("times = 2", "twice = 2", "tables of times and blocks"),
        ("ffn_hidden = 1024", "mtp_layers = 1", "variants.narrow.mtp_layers: is of the whole model"),
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
