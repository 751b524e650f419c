"""SimAI topology files and ASTRA-sim network files: told, described, refused as workloads, built."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from support import write_cluster
from traincast import api
from traincast.errors import ConfigError, FormatError, InfeasibleError, ProgramError
from traincast.fabric.contention import network_factor
from traincast.fabric.graph import build_fabric
from traincast.formats.contract import FORMATS
from traincast.formats.open import identify
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec

H100 = load_cluster("h100")
YAML = """# two tiers
topology: [ Switch, Ring ]
npus_count: [ 8, 4 ]  # 32 GPUs
bandwidth: [ 400.0, 50 ]
latency: [ 936.25, 500 ]
"""


def simai(path, nodes=4, gpus=8, leaf_of=lambda _, local: local, leaves=8, spines=2, spine_gbps=400):
    """Write a file as SimAI's generator does: GPUs, NVSwitches, leaves, spines; rail-optimised by default."""
    world = nodes * gpus
    nvswitch, leaf, spine = world, world + nodes, world + nodes + leaves
    links = [f"{rank} {nvswitch + rank // gpus} 2880Gbps 0.000025ms 0" for rank in range(world)]
    links += [f"{rank} {leaf + leaf_of(rank // gpus, rank % gpus)} 400Gbps 0.0005ms 0" for rank in range(world)]
    links += [
        f"{leaf + low} {spine + high} {spine_gbps}Gbps 0.0005ms 0" for low in range(leaves) for high in range(spines)
    ]
    total = spine + spines
    lines = [
        f"{total} {gpus} {nodes} {leaves + spines} {len(links)} H100",
        " ".join(map(str, range(world, total))),
        *links,
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def build(path, world=32, **numbers):
    numbers = {"routing": "ecmp", **numbers}
    return build_fabric(replace(H100, fabric=FabricSpec(kind="file", file=str(path), **numbers)), world)


def test_simai_files_are_described(tmp_path):
    path = simai(tmp_path / "rail.txt")
    assert identify(path).name == "simai-topology"
    found = api.inspect(path)
    assert found.counts == {"GPUs": 32, "NVSwitches": 4, "leaves": 8, "spines": 2, "links": 2 * (32 + 32 + 16)}
    assert found.layout == {"gpus_per_node": 8, "bisection": "800 GB/s", "oversubscription": "leaf 2:1"}


def test_astra_files_are_described(tmp_path):
    path = tmp_path / "network.yml"
    path.write_text(YAML)
    assert identify(path).name == "astra-network"
    found = api.inspect(path)
    assert found.counts == {"dimensions": 2, "GPUs": 32, "switches": 4, "links": 64 + 64}
    assert found.layout["dimensions"] == "Switch 8 at 429.5 GB/s x Ring 4 at 53.69 GB/s"
    assert found.layout["bisection"] == "859 GB/s"


@pytest.mark.parametrize("name", ["simai.txt", "astra.yml"])
def test_a_network_is_no_workload(tmp_path, name):
    path = simai(tmp_path / name) if name == "simai.txt" else tmp_path / name
    if name == "astra.yml":
        path.write_text(YAML)
    with pytest.raises(FormatError, match=r"not a workload; name it in a cluster file.*--cluster"):
        api.read([path])


def crossed(graph, source, target, **more):
    """Return the names of the links that a flow crosses, without the limits of its ends."""
    route = graph.routes([source], [target], **more)[0]
    return [name for name in map(graph.network.link_name, route[route >= 0]) if " of " not in name]


def test_a_simai_file_becomes_a_fabric_with_shortest_routes(tmp_path):
    graph = build(simai(tmp_path / "rail.txt"))
    assert crossed(graph, 0, 8) == ["GPU 0 -> leaf 0", "leaf 0 -> GPU 8"]
    assert [each.split()[0] for each in crossed(graph, 0, 9, seed=3)] == ["GPU", "leaf", "spine", "leaf"]
    # NVLink comes before the leaf that the GPUs of a node may share.
    shared = build(simai(tmp_path / "plain.txt", leaf_of=lambda node, _: node // 2, leaves=2))
    assert crossed(shared, 0, 1) == ["GPU 0 -> NVSwitch 0", "NVSwitch 0 -> GPU 1"]
    assert np.all(shared.routes([5], [5]) == -1)


def test_fewer_hops_come_before_faster_links(tmp_path):
    """Two leaves with a cable of 100 Gbit/s between them, and each with one of 400 Gbit/s to a spine."""
    path = simai(tmp_path / "fat.txt", leaf_of=lambda node, _: node // 2, leaves=2, spines=1)
    header, *lines = path.read_text().splitlines()
    counts = header.split()
    counts[4] = str(int(counts[4]) + 1)
    path.write_text("\n".join([" ".join(counts), *lines, "36 37 100Gbps 0.0005ms 0"]) + "\n")
    assert crossed(build(path), 0, 31) == ["GPU 0 -> leaf 0", "leaf 0 -> leaf 1", "leaf 1 -> GPU 31"]


def test_routes_do_not_depend_on_how_many_are_looked_at_together(tmp_path, monkeypatch):
    graph = build(simai(tmp_path / "rail.txt"))
    source, target = (each.ravel() for each in np.meshgrid(np.arange(32), np.arange(32)))
    at_once = graph.routes(source, target)
    monkeypatch.setattr("traincast.fabric.topologies.file._AT_ONCE", 100)
    np.testing.assert_array_equal(graph.routes(source, target), at_once)


def test_a_simai_file_behaves_like_the_same_fabric_by_numbers(tmp_path):
    groups = [np.array([rank, rank + 16]) for rank in range(16)]
    path = simai(tmp_path / "fat.txt", leaf_of=lambda node, _: node // 2, leaves=2, spines=1, spine_gbps=3200)
    slowed = network_factor("send", groups, build(path))
    # 16 GPUs, of whose 50 GB/s the cluster reaches 48.5, have 400 GB/s upwards.
    assert [each.factor for each in slowed] == pytest.approx([16 * 48.5 / 400] * 16)
    assert slowed[0].bottleneck == "leaf 0 -> spine 0"


def test_an_astra_file_becomes_a_fabric(tmp_path):
    path = tmp_path / "network.yml"
    path.write_text(YAML.replace("[ Switch, Ring ]", "\n  - Switch\n  - FullyConnected"))
    graph = build(path, routing="spray")
    assert graph.gpus_per_node == 8
    assert (graph.port_bytes_per_s, graph.nic_bytes_per_s) == (50 * 2**30, 48.5e9)
    assert len(graph.routes([0], [31])[0]) == 3
    source, target = (each.ravel() for each in np.meshgrid(np.arange(32), np.arange(32)))
    network = graph.network
    for route, begin, end in zip(graph.routes(source, target), source, target, strict=True):
        links = route[route >= 0]
        ends = np.concatenate([[begin], network.target_L[links]])
        np.testing.assert_array_equal(network.source_L[links], ends[:-1])
        assert ends[-1] == end


def test_a_file_has_the_limits_of_the_cluster_s_nodes(tmp_path):
    fabric = FabricSpec(kind="file", file=str(simai(tmp_path / "rail.txt")), routing="ecmp")
    graph = build_fabric(replace(H100, fabric=fabric), 32, node_limits=True)
    rings = [np.arange(local, 32, 8) for local in range(8)]
    together = network_factor("ring", rings, graph)
    assert [each.factor for each in together] == pytest.approx([8 * 48.5 / 350] * 8)
    assert {each.bottleneck for each in together} == {"all NICs of node 0"}
    last = network_factor("send", [np.array([local + 16, local + 24]) for local in range(8)], graph)
    assert {each.bottleneck for each in last} == {"all NICs of node 2"}
    assert {each.factor for each in network_factor("ring", rings, build(simai(tmp_path / "rail.txt")))} == {1.0}
    # No GPU gets more than its own limit, however fast its link is: 50 GB/s are written, 48.5 reached.
    both = network_factor(["send", "send"], [np.array([0, 8])] * 2, build(simai(tmp_path / "rail.txt")))
    assert [(each.factor, each.bottleneck) for each in both] == [(2.0, "the NIC of GPU 0")] * 2


@pytest.mark.parametrize("node_limits", [False, True])
def test_links_of_an_astra_file_have_no_nic_but_a_node_s_limit(tmp_path, node_limits):
    """GPU 9 of the second node and GPU 17 of the third have a link of 50 GiB/s of their own between them."""
    path = tmp_path / "network.yml"
    path.write_text(YAML)
    fabric = FabricSpec(kind="file", file=str(path))
    graph = build_fabric(replace(H100, fabric=fabric), 32, node_limits=node_limits)
    (route,) = graph.routes([9], [17])
    crossed_all = [graph.network.link_name(link) for link in route if link >= 0]
    limits = ["all NICs of node 1"], ["all NICs of node 2"]
    assert crossed_all == ([*limits[0], "GPU 9 -> GPU 17", *limits[1]] if node_limits else ["GPU 9 -> GPU 17"])
    # Both limits of each of four nodes are links of their own, which no cable is.
    assert len(graph.capacity_L) == 128 + 2 * 4 * node_limits
    assert (graph.network.counts["links"], graph.network.counts.get("nodes", 0)) == (128, 4 * node_limits)
    together = network_factor("ring", [np.arange(local, 32, 8) for local in range(8)], graph)
    assert [each.factor for each in together] == pytest.approx([8 * 48.5 / 350 if node_limits else 1.0] * 8)


def without_nic(path, rank):
    """Take the link of a GPU to its leaf out of a file."""
    header, switches, *links = path.read_text().splitlines()
    kept = [link for link in links if not (link.split()[0] == str(rank) and "400Gbps" in link)]
    counts = header.split()
    path.write_text("\n".join([" ".join([*counts[:4], str(len(kept)), counts[5]]), switches, *kept]) + "\n")
    return path


def test_a_gpu_without_a_nic_is_reported_and_refused(tmp_path):
    path = without_nic(simai(tmp_path / "cut.txt"), 5)
    (warning,) = api.inspect(path).oddities
    assert (warning.code, "from GPU 5;" in warning.text) == ("gpu-cut-off", True)
    with pytest.raises(ConfigError, match="no link that leads from GPU 5 out of its node"):
        build(path)
    whole = build(path, world=5)
    assert whole.network.gpus == 32, "a world that ends before it does not need it"
    assert whole.port_bytes_per_s == 50e9, "what the others get"
    assert api.inspect(simai(tmp_path / "whole.txt")).oddities == ()
    # A switch of the node with links of its own leads out, too.
    lines = without_nic(simai(tmp_path / "switched.txt"), 5).read_text().splitlines()
    counts = lines[0].split()
    lines[0] = " ".join([*counts[:4], str(int(counts[4]) + 1), counts[5]])
    (tmp_path / "switched.txt").write_text("\n".join([*lines, "32 40 400Gbps 0.0005ms 0"]) + "\n")
    assert api.inspect(tmp_path / "switched.txt").oddities == ()
    way = ["GPU 5 -> NVSwitch 0", "NVSwitch 0 -> leaf 4", "leaf 4 -> GPU 12"]
    assert crossed(build(tmp_path / "switched.txt"), 5, 12) == way


def test_the_first_of_several_gpus_without_a_nic_is_named(tmp_path):
    path = without_nic(without_nic(simai(tmp_path / "cut.txt"), 9), 5)
    with pytest.raises(ConfigError, match="no link that leads from GPU 5 out of its node"):
        build(path, world=8)
    assert build(path, world=5).network.gpus == 32
    cluster = write_cluster(tmp_path / "mine.toml", fabric={"file": "cut.txt", "routing": "ecmp"})
    with pytest.raises(ConfigError, match="no link that leads from GPU 5"):
        api.inspect(cluster)


@pytest.mark.parametrize(
    ("numbers", "world", "said"),
    [
        ({"routing": "spray"}, 32, "fabric.routing: must be"),
        ({}, 64, "fabric.file: has 32 GPUs, fewer than the 64"),
    ],
)
def test_what_a_file_cannot_give_says_so(tmp_path, numbers, world, said):
    with pytest.raises(ConfigError, match=said):
        build(simai(tmp_path / "rail.txt"), world, **numbers)


def test_nodes_must_have_the_cluster_s_size(tmp_path):
    with pytest.raises(ConfigError, match="has 4 GPUs per node, the cluster 8"):
        build(simai(tmp_path / "rail.txt", nodes=8, gpus=4))


def test_unreachable_gpus_say_so(tmp_path):
    graph = build(simai(tmp_path / "rails.txt", spines=0))
    with pytest.raises(ProgramError, match="no switches lead from GPU 0 to GPU 9"):
        graph.routes([0], [9])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [lines[0].replace("H100", ""), *lines[1:]], ":1: the first line must be"),
        (lambda lines: [lines[0], "32 33", *lines[2:]], ":2: the second line must list the switches 32 to 45"),
        (lambda lines: lines[:-1], ":1: the header says 80 links, the file has 79"),
        (lambda lines: [*lines[:-1], "1 2 fast 0 0"], ":82: 'fast' is not a rate"),
        (lambda lines: [*lines[:-1], "1 99 1Gbps 0 0"], ":82: a link joins 1 and 99 of 46 vertices"),
        (lambda lines: [*lines[:-1], "1 2 1Gbps"], ":82: a link must be two ids"),
        (lambda _: ["2 8 1 1 0 H100", "0 1"], ":1: says 2 vertices of which none is a GPU"),
        (lambda _: ["9 8 1 0 1 H100", "8", "0 8 1Gbps 0 0"], ":1: 1 links cannot join 9"),
        (lambda _: [], ":1: the first line must be"),
    ],
)
def test_wrong_simai_files_say_where(tmp_path, change, said):
    path = simai(tmp_path / "topology.txt")
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(FormatError) as caught:
        build(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Ring", "Mesh", ":2: the shape 'Mesh' is unknown; known: Ring"),
        ("8, 4", "8", ":3: 'npus_count' has 1 values for 2 dimensions"),
        ("8, 4", "8, 2.5", ":3: '2.5' must be a positive whole number"),
        ("400.0", "fast", ":4: 'fast' is not a number"),
        ("50 ]", "0 ]", ":4: '0' must be a positive number"),
        ("[ 936.25, 500 ]", "[]", "the list 'latency' is missing or empty"),
        ("latency:", "topology:", "its key stands twice"),
        ("8, 4", "8000, 4000", "are more than the"),
    ],
)
def test_wrong_astra_files_say_where(tmp_path, old, new, said):
    path = tmp_path / "network.yml"
    path.write_text(YAML.replace(old, new))
    with pytest.raises(FormatError) as caught:
        FORMATS.get("astra-network").inspect(path)
    assert said in str(caught.value)


def test_files_that_cannot_be_read_say_so(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        build(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="is not UTF-8 text"):
        build(tmp_path / "binary.txt")


@pytest.mark.parametrize(
    ("written", "said"), [("1e308", r"above 9\.313e\+08 GB/s"), ("1e-320", r"below 9\.313e-10 GB/s")]
)
def test_a_bandwidth_that_no_link_has_is_refused_with_its_line(tmp_path, written, said):
    path = tmp_path / "net.yml"
    rows = ("topology: [ Switch, Ring ]", "npus_count: [ 4, 2 ]", f"bandwidth: [ 400, {written} ]", "latency: [ 1, 1 ]")
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(FormatError, match=rf"net\.yml:3: the bandwidth '{written}' is {said}"):
        api.inspect(path)


def test_the_rate_of_a_file_is_that_of_its_nics_and_no_more_than_a_rank_reaches(tmp_path):
    graph = build(simai(tmp_path / "rail.txt"))
    assert (graph.port_bytes_per_s, graph.nic_bytes_per_s) == (50e9, H100.inter.bandwidth_bytes_per_s)


@pytest.mark.parametrize("node_limits", [False, True])
def test_no_route_of_a_file_is_longer_than_it_says(tmp_path, node_limits):
    fabric = FabricSpec(kind="file", file=str(simai(tmp_path / "rail.txt")), routing="ecmp")
    graph = build_fabric(replace(H100, fabric=fabric), 32, node_limits=node_limits)
    source, target = (each.ravel() for each in np.meshgrid(np.arange(32), np.arange(32)))
    crossed_F = (graph.routes(source, target) >= 0).sum(axis=1)
    assert crossed_F.max() == graph.longest


def test_tables_of_a_file_are_counted_before_they_are_made(tmp_path, monkeypatch):
    """4 NVSwitches, 8 leaves and 2 spines; 46 vertices, of which a spine's 8 leaves and an NVSwitch's GPUs are most."""
    path = simai(tmp_path / "rail.txt")
    for limit, count, what in (
        ("MOST_SWITCHES", 14, "switches,"),
        ("MOST_LINKED_SWITCHES", 10, "switches that are linked to others,"),
        ("MOST_ENTRIES", 46 * 8, "entries (46 vertices x 8 links of one),"),
    ):
        with monkeypatch.context() as smaller:
            smaller.setattr(f"traincast.fabric.topologies.file.{limit}", count - 1)
            said = f"the topology file has {count} {what} above the limit of {count - 1};"
            with pytest.raises(InfeasibleError, match=re.escape(said)):
                build(path)
            smaller.setattr(f"traincast.fabric.topologies.file.{limit}", count)
            assert build(path).network.gpus == 32


def test_a_file_whose_gpus_are_nodes_of_their_own_fits_any_cluster(tmp_path):
    path = tmp_path / "ring.yml"
    path.write_text("topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n")
    graph = build(path, world=8, routing="spray")
    assert (graph.gpus_per_node, graph.network.gpus) == (1, 8)
