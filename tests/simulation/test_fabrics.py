"""A step on fabrics that share links: ordered, explained, and folded as it is unfolded."""

import pytest

import traincast
from support import write_aicb

BASE = 'base = "h100"\n'
FABRICS = {
    "non-blocking": "",
    "rail-only": '[fabric]\nkind = "rail-only"\n',
    "2:1": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\noversubscription = 2.0\n',
    "4:1": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\noversubscription = 4.0\n',
}


@pytest.fixture
def step(tmp_path):
    """Simulate a small run (tp 8 in a node, dp and pp between nodes) on a fabric by its name."""
    rows = [
        "grad_param_comm\t-1\t0\tNONE\t0\t0\tNONE\t0\t0\tREDUCESCATTER\t400000000\t0",
        *["embedding_layer\t-1\t1000\tNONE\t0\t0\tNONE\t0\t0\tNONE\t0\t0"],
        "attention_layer\t-1\t9000000\tALLREDUCE\t8000000\t9000000\tALLREDUCE\t8000000\t9000000\tNONE\t0\t0",
    ]
    path = write_aicb(tmp_path / "w.txt", rows, tp=8, pp=4, ga=1, gpus=256, pp_comm=50_000_000)

    def run(name, **options):
        cluster = tmp_path / f"{name.replace(':', '-')}.toml"
        cluster.write_text(BASE + FABRICS[name])
        return traincast.simulate(path, cluster=str(cluster), **options)

    return run


def test_less_network_takes_longer(step):
    times = {name: step(name).iteration_time_s for name in FABRICS}
    assert times["non-blocking"] == times["rail-only"], "dp and pp stay on their rails"
    assert times["non-blocking"] < times["2:1"] < times["4:1"]


def test_what_is_shared_is_explained(step):
    shared = [note.text for note in step("2:1").assumptions if note.code == "shared-links"]
    assert any("dp groups" in text or "pp groups" in text for text in shared)
    assert all("held back by leaf" in text for text in shared)
    assert step("2:1").cluster["fabric"] == "fat-tree"
    assert not [note for note in step("rail-only").assumptions if note.code == "shared-links"]


def test_folded_equals_unfolded_on_a_shared_fabric(step):
    folded, unfolded = step("2:1"), step("2:1", unfold=True)
    assert folded.iteration_time_s == unfolded.iteration_time_s
    assert folded.breakdown_s == unfolded.breakdown_s


def test_bandwidth_for_a_group_that_is_not_priced_is_not_ignored_in_silence(step):
    codes = {note.code for note in step("rail-only", busbw_bytes_per_s={"edp": 1e9, "dp": 1e9}).warnings}
    assert "busbw-unused" in codes
    assert "busbw-unused" not in {note.code for note in step("rail-only", busbw_bytes_per_s={"dp": 1e9}).warnings}
