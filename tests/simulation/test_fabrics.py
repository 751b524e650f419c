"""A step on fabrics that share links: ordered, explained, and folded as it is unfolded."""

from itertools import pairwise

import pytest

import traincast
from support import rich_rows, write_aicb, write_cluster

BASE = 'base = "h100"\n'
FABRICS = {
    "non-blocking": "",
    "rail-only": '[fabric]\nkind = "rail-only"\n',
    "2:1": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\noversubscription = 2.0\n',
    "ecmp": '[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\nrouting = "ecmp"\n',
    "torus": '[fabric]\nkind = "torus"\ndims = [8, 8, 4]\n',
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
    assert "pp groups are slowed 2.00x" in pp
    assert "by contention on leaf" in pp
    # A ring over the nodes of two leaves crosses each uplink once: the limit of the node comes first.
    assert "dp groups are slowed 1.11x" in dp
    assert dp.endswith("by contention on all NICs of node 0")
    assert step("2:1").cluster["fabric"] == "fat-tree"


def test_where_only_nodes_are_shared_their_nics_are_named(step):
    for name in ("rail-only", "non-blocking"):
        (text,) = shared(step(name))
        assert "pp and dp groups are slowed 1.11x" in text
        assert text.endswith("by contention on all NICs of node 0")
    assert shared(step("2:1", network="analytical")) == []


def test_analytical_never_shares_and_flows_agree_with_it_where_nothing_blocks(step):
    alone = step("4:1", network="analytical").iteration_time_s
    assert alone == step("non-blocking", network="analytical").iteration_time_s
    assert alone < step("non-blocking").iteration_time_s < step("4:1").iteration_time_s
    for name in FABRICS:
        flow, auto = (step(name, network=network).iteration_time_s for network in ("flow", "auto"))
        assert flow == pytest.approx(auto, rel=1e-9)


SWEPT = {
    "non-blocking": {"kind": "non-blocking"},
    "rail-only": {"kind": "rail-only"},
    "fat-tree": {"kind": "fat-tree", "nodes_per_leaf": 2, "oversubscription": 4.0},
    "ecmp": {"kind": "rail-optimised", "nodes_per_leaf": 2, "routing": "ecmp"},
    "torus": {"kind": "torus", "dims": [8, 8]},
    "file": {"file": "topology.txt", "routing": "ecmp"},
}
RATES_BYTES_PER_S = (5e9, 12.5e9, 25e9, 40e9, 48.5e9, 50e9, 60e9, 100e9, 200e9)
DENSE, MOE = {"tp": 8}, {"tp": 2, "ep": 16}


def rail_optimised_file(path, rate_bytes_per_s, nodes=8):
    """Write a SimAI file of nodes of 8 whose GPUs have a leaf per rail, and two spines."""
    gpus, nvswitch, leaf, spine = 8 * nodes, 8 * nodes, 9 * nodes, 9 * nodes + 8
    rate = f"{rate_bytes_per_s * 8e-9:g}Gbps 0.0005ms 0"
    links = [f"{rank} {nvswitch + rank // 8} 2880Gbps 0.000025ms 0" for rank in range(gpus)]
    links += [f"{rank} {leaf + rank % 8} {rate}" for rank in range(gpus)]
    links += [f"{leaf + low} {spine + high} {rate}" for low in range(8) for high in range(2)]
    switches = " ".join(map(str, range(gpus, spine + 2)))
    path.write_text("\n".join([f"{spine + 2} 8 {nodes} 10 {len(links)} H100", switches, *links]) + "\n")


def swept_steps(folder, fabric, **options):
    """Return the step of 64 GPUs for each of the rates of the fabric's links."""
    path = write_aicb(folder / "w.txt", rich_rows(size=1 << 26), ga=2, pp_comm=1 << 24)
    steps = []
    for rate in RATES_BYTES_PER_S:
        link = {} if "file" in fabric else {"link_bytes_per_s": rate}
        cluster = folder / "swept.toml"
        # Lists and texts are written alike in TOML and Python.
        lines = [f"{key} = {value!r}\n" for key, value in (fabric | link).items()]
        cluster.write_text(BASE + "[fabric]\n" + "".join(lines))
        rail_optimised_file(folder / "topology.txt", rate)
        steps.append(traincast.simulate(path, cluster=str(cluster), gpus=64, **options))
    return steps


@pytest.mark.parametrize(
    "network", ["auto", *(pytest.param(each, marks=pytest.mark.slow) for each in ("analytical", "flow"))]
)
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(DENSE, marks=pytest.mark.slow, id="dense"),
        pytest.param(MOE, marks=pytest.mark.slow, id="moe"),
        pytest.param({**MOE, "overlap_grad_reduce": True}, id="hidden"),
    ],
)
@pytest.mark.parametrize("name", SWEPT)
def test_a_faster_link_never_makes_a_longer_step_and_a_slow_one_does(tmp_path, name, layout, network):
    results = swept_steps(tmp_path, SWEPT[name], network=network, **layout)
    steps = [each.iteration_time_s for each in results]
    assert all(slower >= faster * (1 - 1e-9) for slower, faster in pairwise(steps)), steps
    assert steps[0] > steps[1] > steps[2] > steps[4]
    said = ["".join(note.text for note in each.assumptions if note.code == "fabric-rate") for each in results]
    assert "has 5 GB/s for each GPU, and that is its rate" in said[0]
    assert said[4] == ""
    assert "has 200 GB/s for each GPU, which uses the 48.5 GB/s of inter" in said[-1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("rail-only", "ecmp") else pytest.mark.slow) for name in SWEPT]
)
def test_prices_respect_the_nic_of_the_fabric(tmp_path, name):
    """Gradients over n GPUs on rails: (n - 1) / n of their bytes leave each, at the rate of its NIC at most."""
    for network in ("auto", "analytical"):
        found = swept_steps(tmp_path, SWEPT[name], network=network, **DENSE)
        for rate, result in zip(RATES_BYTES_PER_S, found, strict=True):
            for each in result.collectives:
                if each.group != "dp" or each.op == "all_reduce":
                    continue
                bound_s = (each.ranks - 1) / each.ranks * each.size_bytes / min(rate, 48.5e9)
                assert each.ranks == each.nodes == 8
                assert each.time_s >= bound_s
                if network == "analytical" and each.size_bytes > 1 << 27:
                    assert each.time_s < 1.1 * bound_s, "and is not far from it where nothing is shared"


def test_a_torus_passes_by_the_limit_of_the_nodes(step):
    assert step("torus").iteration_time_s < step("non-blocking").iteration_time_s


@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 2, "ep": 8}, {"tp": 4, "ep": 8, "pp": 2}, {"tp": 1, "ep": 32}])
def test_analytical_and_flows_agree_within_three_percent_on_a_non_blocking_fabric(tmp_path, layout):
    """Dense and MoE steps of 64 GPUs; NICs that a node can fill, and kinds of groups that run one after the other.

    Both agree with the plain price on a cluster whose own links have the rate of the fabric's.
    """
    path = write_aicb(tmp_path / "w.txt", rich_rows(size=1 << 24), ga=2, pp_comm=1 << 22)
    for rate in (25e9, 48.5e9):
        fabric = {"kind": "non-blocking", "link_bytes_per_s": rate}
        free = write_cluster(tmp_path / "free.toml", inter={"node_bandwidth_bytes_per_s": 4e11}, fabric=fabric)
        inter = {"node_bandwidth_bytes_per_s": 4e11, "bandwidth_bytes_per_s": rate}
        plain = write_cluster(tmp_path / "plain.toml", inter=inter)
        expected = traincast.simulate(path, cluster=plain, gpus=64, network="analytical", **layout).iteration_time_s
        for network in ("analytical", "flow"):
            step_s = traincast.simulate(path, cluster=free, gpus=64, network=network, **layout).iteration_time_s
            if network == "analytical":
                assert step_s == pytest.approx(expected, rel=1e-9)
            elif rate == 48.5e9 or "pp" not in layout:
                assert step_s == pytest.approx(expected, rel=0.03)
            else:
                # Messages last longer on slow links, so that more of them meet gradients.
                assert expected < step_s < 1.05 * expected


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
    for name, options, why in (
        ("2:1", {}, "no flow is hashed"),
        ("ecmp", {"network": "analytical"}, "--network analytical solves no flows"),
    ):
        unused = step(name, network_seeds=5, **options)
        (said,) = (note.text for note in unused.warnings if note.code == "network-seeds-unused")
        assert why in said
    assert "network-seeds" not in {note.code for note in unused.assumptions}


def test_folded_equals_unfolded_on_a_shared_fabric(step):
    folded, unfolded = step("2:1"), step("2:1", unfold=True)
    assert folded.iteration_time_s == unfolded.iteration_time_s
    assert folded.breakdown_s == unfolded.breakdown_s


def test_bandwidth_for_a_group_that_is_not_priced_is_not_ignored_in_silence(step):
    codes = {note.code for note in step("rail-only", busbw_bytes_per_s={"edp": 1e9, "dp": 1e9}).warnings}
    assert "busbw-unused" in codes
    assert "busbw-unused" not in {note.code for note in step("rail-only", busbw_bytes_per_s={"dp": 1e9}).warnings}
