"""Layers of Mamba-1: parameters, FLOPs and exchanges by hand."""

import pytest

from traincast.estimate.operators.families.state_space import selective_scan
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import parameters, token_flops
from traincast.model.load import load_model
from traincast.model.structure import layer_blocks
from traincast.workload.ops import OperatorCall

TOKENS, WIDTH, STATE, RANK, HIDDEN = 4096, 8192, 16, 256, 4096


def parts_of(**degrees):
    """Return the parts of the first layer of Jamba by the last word of their names."""
    model = load_model("jamba-52b")
    share = Share(model=model, sequences=Sequences(length=TOKENS), **degrees)
    return {part.name.rpartition(".")[2]: part for part in layer_blocks(model, 0)[0].parts(share)}


def test_parameters_of_jamba_by_hand():
    """32 layers, 28 of Mamba-1 with norms of step, B and C; 16 experts in every second one: config.json."""
    mamba = (
        *(HIDDEN * 2 * WIDTH, WIDTH * (4 + 1), WIDTH * (RANK + 2 * STATE), RANK * WIDTH + WIDTH),
        *(WIDTH * STATE, WIDTH, WIDTH * HIDDEN, RANK + 2 * STATE),
    )
    attention = HIDDEN * (32 + 2 * 8) * 128 + 32 * 128 * HIDDEN
    mlp, table = 3 * HIDDEN * 14336, 65536 * HIDDEN
    dense = 28 * sum(mamba) + 4 * attention + 16 * mlp + 16 * 16 * HIDDEN + 65 * HIDDEN + 2 * table
    found = parameters(load_model("jamba-52b"))
    assert found.total == dense + 16 * 16 * mlp
    assert found.active == dense + 16 * 2 * mlp
    # "12B active".
    assert round(found.active / 1e9) == 12


def test_active_parameters_of_jamba_1_5_large_are_those_of_its_report():
    """94 B, arXiv 2408.12570, section 2."""
    assert parameters(load_model("jamba-1.5-large")).active / 1e9 == pytest.approx(94, rel=0.005)


def test_flops_of_jamba_by_hand():
    """Projections, and 9 FLOP for each element of the states."""
    found = token_flops(load_model("jamba-52b"), TOKENS)
    assert found.scan == 28 * 9 * WIDTH * STATE
    assert found.others == 28 * 2 * (3 * HIDDEN * WIDTH + WIDTH * (RANK + 2 * STATE) + RANK * WIDTH)


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_a_layer_of_mamba_1_by_hand(tp, cp):
    """Ranks split channels, and sum up what step, B and C are made of."""
    tokens, width, thin = TOKENS // cp, WIDTH // tp, RANK + 2 * STATE
    parts = parts_of(tp=tp, cp=cp, sequence_parallel=True)
    shapes = {name: [(each.m, each.n, each.k) for each in part.gemms] for name, part in parts.items() if part.gemms}
    assert shapes == {
        "in_proj": [(tokens, 2 * width, HIDDEN)],
        "x_proj": [(tokens, thin, width)],
        "dt_proj": [(tokens, width, RANK)],
        "out_proj": [(tokens, HIDDEN, width)],
    }
    (scan,) = parts["scan"].kernels
    assert (scan.family, scan.shape) == ("selective_scan", (tokens, width, STATE))
    summed = [("tp", "all_reduce", 2 * tokens * thin)] * (tp > 1) + [("cp", "all_reduce", 2 * TOKENS * thin)] * (cp > 1)
    for exchanges in (parts["x_proj"].forward, parts["x_proj"].backward):
        assert [(each.group, each.operation, each.size_bytes) for each in exchanges if each.size_bytes] == summed
    turned = [each.size_bytes for name in ("conv1d", "scan") for each in parts[name].forward]
    assert turned == ([4 * tokens * width, 2 * tokens * width] if cp > 1 else [0, 0])


def test_the_selective_scan_by_hand():
    """Input, step, gate and output of each channel, B and C of each token; arithmetic in fp32."""
    work = {
        way: selective_scan(
            OperatorCall(family="selective_scan", shape=(TOKENS, WIDTH, STATE), dtype="bf16", direction=way)
        )
        for way in ("forward", "backward")
    }
    assert work["forward"].bytes_moved == 2 * TOKENS * (4 * WIDTH + 2 * STATE)
    assert work["backward"].bytes_moved == TOKENS * (2 * 7 * WIDTH + 6 * 2 * STATE)
    assert work["forward"].flops == 9 * TOKENS * WIDTH * STATE == work["backward"].flops / 3
    assert work["forward"].compute_dtype == "fp32"
