"""Attention and Mamba-2 side by side: parameters, FLOPs and kept tensors by hand."""

import pytest

from traincast.errors import ConfigError
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks

TOKENS, HIDDEN, INNER, STATE, HEADS = 4096, 1024, 24 * 64, 128, 24
MIXED = INNER + 2 * STATE


def parts_of(**degrees):
    model = load_model("falcon-h1-0.5b")
    share = Share(model=model, sequences=Sequences(length=TOKENS), **degrees)
    return layer_blocks(model, 0)[0].parts(share)


def test_parameters_of_falcon_h1_by_hand():
    """36 layers of attention with Mamba-2 beside it, no norm behind the gate, and an MLP; config.json of 0.5B."""
    mamba = HIDDEN * (INNER + MIXED + HEADS) + MIXED * (4 + 1) + 3 * HEADS + INNER * HIDDEN
    attention = HIDDEN * (8 + 2 * 2) * 64 + 8 * 64 * HIDDEN
    total = 36 * (mamba + attention + 3 * HIDDEN * 2048 + 2 * HIDDEN) + HIDDEN + 2 * 32784 * HIDDEN
    assert parameters(load_model("falcon-h1-0.5b")).total == total


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_flops_of_falcon_h1_by_hand(tokens):
    found = token_flops(load_model("falcon-h1-0.5b"), tokens)
    assert found.scan == 36 * 7 * INNER * STATE
    assert found.others == 36 * 2 * HIDDEN * (INNER + MIXED + HEADS + INNER)
    assert found.attention_core == 36 * 2 * 2 * 8 * 64 * tokens / 2


def test_both_read_one_norm_and_one_kept_input():
    parts = parts_of()
    names = [part.name for part in parts]
    assert names.count("input_layernorm") == 1
    assert "self_attn_bda" not in names
    assert [names.count(name) for name in ("mamba_bda", "mixer_sum")] == [1, 1]
    kept = [name for part in parts for name in part.saved if name.endswith("inputs")]
    assert kept == ["layernorm inputs", "attention inputs"]


@pytest.mark.parametrize("tp", [2, 4])
def test_each_of_both_is_split_and_exchanged_for_itself(tp):
    sizes = [each.size_bytes for part in parts_of(tp=tp, sequence_parallel=True) for each in part.forward]
    assert [size for size in sizes if size] == [2 * TOKENS * HIDDEN] * 4


def test_the_norm_of_a_mixer_is_there_or_not(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('base = "falcon-h1-0.5b"\nsettings = { mamba_norm = 1 }\n')
    assert parameters(load_model(str(path))).total - parameters(load_model("falcon-h1-0.5b")).total == 36 * INNER
    path.write_text('base = "falcon-h1-0.5b"\nsettings = { mamba_norm = 2 }\n')
    with pytest.raises(ConfigError, match=r"settings\.mamba_norm: is 2; it must be 1"):
        load_model(str(path))
