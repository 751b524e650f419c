"""A step on fabrics that share links: ordered, explained, and folded as it is unfolded."""

import pytest

import traincast
from support import rich_rows, write_aicb, write_cluster

BASE = 'base = "h100"\n'
FABRICS = {
    "non-blocking": "",
    "rail-only": '[fabric]\nkind = "rail-only"\n',
    "2:1": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\noversubscription = 2.0\n',
    "ecmp": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\nrouting = "ecmp"\n',
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
    assert times["non-blocking"] < times["ecmp"], "hashed flows collide"
    assert times["non-blocking"] == times["rail-only"], "dp and pp stay on their rails"
    assert times["non-blocking"] < times["2:1"] < times["4:1"]


def shared(result):
    return [note.text for note in result.assumptions if note.code == "shared-links"]


def test_what_is_shared_is_explained(step):
    (pp, dp) = sorted(shared(step("2:1")), key=lambda text: " dp " in text)
    assert "pp groups take 2.00 x as long" in pp
    assert "held back by leaf" in pp
    # A ring over the nodes of two leaves crosses each uplink once: the limit of the node comes first.
    assert "dp groups take 1.11 x as long" in dp
    assert dp.endswith("held back by all NICs of node 0")
    assert step("2:1").cluster["fabric"] == "fat-tree"


def test_where_only_nodes_are_shared_their_nics_are_named(step):
    for name in ("rail-only", "non-blocking"):
        (text,) = shared(step(name))
        assert "pp and dp groups take 1.11 x as long" in text
        assert text.endswith("held back by all NICs of node 0")
    assert shared(step("2:1", network="analytical")) == []


def test_analytical_never_shares_and_flows_agree_with_it_where_nothing_blocks(step):
    alone = step("4:1", network="analytical").iteration_time_s
    assert alone == step("non-blocking", network="analytical").iteration_time_s
    assert alone < step("non-blocking").iteration_time_s < step("4:1").iteration_time_s
    for name in FABRICS:
        flow, auto = (step(name, network=network).iteration_time_s for network in ("flow", "auto"))
        assert flow == pytest.approx(auto, rel=1e-9)


@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 2, "ep": 8}, {"tp": 4, "ep": 8, "pp": 2}, {"tp": 1, "ep": 32}])
def test_analytical_and_flows_agree_within_three_percent_on_a_non_blocking_fabric(tmp_path, layout):
    """Dense and MoE steps of 64 GPUs; NICs that a node can fill, and kinds of groups that run one after the other."""
    path = write_aicb(tmp_path / "w.txt", rich_rows(size=1 << 24), ga=2, pp_comm=1 << 22)
    free = {"inter": {"node_bandwidth_bytes_per_s": 4e11}, "fabric": {"kind": "non-blocking"}}
    cluster = write_cluster(tmp_path / "free.toml", **free)
    steps = [
        traincast.simulate(path, cluster=cluster, gpus=64, network=network, **layout).iteration_time_s
        for network in ("analytical", "flow")
    ]
    assert steps[1] == pytest.approx(steps[0], rel=0.03)


def test_seeds_give_a_spread_where_flows_are_hashed(step):
    hashed = step("ecmp", network_seeds=5)
    (text,) = (note.text for note in hashed.assumptions if note.code == "network-seeds")
    least, median, most = (float(part.split()[1]) for part in text.split(": ")[1].split("; ")[0].split(", "))
    own = float(text.split("seed, ")[1].split()[0])
    assert least < most
    assert least <= median <= most
    assert least <= own <= most
    assert own == pytest.approx(hashed.iteration_time_s, rel=1e-5)
    assert hashed.iteration_time_s == step("ecmp").iteration_time_s
    unused = step("2:1", network_seeds=5)
    assert "network-seeds-unused" in {note.code for note in unused.warnings}
    assert "network-seeds" not in {note.code for note in unused.assumptions}


def test_folded_equals_unfolded_on_a_shared_fabric(step):
    folded, unfolded = step("2:1"), step("2:1", unfold=True)
    assert folded.iteration_time_s == unfolded.iteration_time_s
    assert folded.breakdown_s == unfolded.breakdown_s


def test_bandwidth_for_a_group_that_is_not_priced_is_not_ignored_in_silence(step):
    codes = {note.code for note in step("rail-only", busbw_bytes_per_s={"edp": 1e9, "dp": 1e9}).warnings}
    assert "busbw-unused" in codes
    assert "busbw-unused" not in {note.code for note in step("rail-only", busbw_bytes_per_s={"dp": 1e9}).warnings}
