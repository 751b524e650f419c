"""Topologies: counts, capacities, and routes that hold together; one is added as one file."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from support import write_cluster
from traincast import api
from traincast.errors import ConfigError, InfeasibleError, ProgramError
from traincast.fabric.contention import network_factor
from traincast.fabric.graph import build_fabric
from traincast.fabric.topologies.dimensions import dimensions_fabric
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import TOPOLOGIES, FabricSpec
from traincast.hardware.network import Dimension

H100 = load_cluster("h100")
WORLD = 128
NIC = H100.inter.bandwidth_bytes_per_s
SPECS = {
    "non-blocking": {},
    "fat-tree": {"nodes_per_leaf": 2},
    "rail-optimised": {"nodes_per_leaf": 4},
    "rail-only": {},
    "dual-plane": {"nodes_per_leaf": 4},
    "dragonfly+": {"nodes_per_leaf": 1, "leaves_per_pod": 4},
    "torus": {"dims": (8, 4, 4)},
}
VARIANTS = [
    *((kind, numbers) for kind, numbers in SPECS.items()),
    *((kind, {**numbers, "routing": "ecmp", "queue_pairs": 2}) for kind, numbers in SPECS.items()),
    ("fat-tree", {"nodes_per_leaf": 2, "leaves_per_pod": 2}),
    ("fat-tree", {"nodes_per_leaf": 2, "leaves_per_pod": 3, "oversubscription": (2.0, 3.0), "routing": "ecmp"}),
    ("rail-optimised", {"nodes_per_leaf": 4, "rails": 2, "pxn": True, "routing": "ecmp"}),
    ("rail-optimised", {"nodes_per_leaf": 3, "leaves_per_pod": 16, "spines": 5, "routing": "ecmp"}),
    ("dual-plane", {"nodes_per_leaf": 4, "planes": 4, "leaves_per_pod": 16, "routing": "ecmp"}),
]


def build(kind, world=WORLD, node_limits=False, **numbers):
    cluster = replace(H100, fabric=FabricSpec(kind=kind, **numbers))
    return build_fabric(cluster, world, node_limits=node_limits)


def test_every_kind_has_a_topology():
    assert set(TOPOLOGIES.names()) == {*SPECS, "file"}


def assert_routes_lead(graph, source, target):
    """Follow each route link by link; a limit on a vertex leaves one where one is."""
    network = graph.network
    ends = (np.repeat(each, graph.queue_pairs) for each in (source, target))
    for route, begin, end in zip(graph.routes(source, target), *ends, strict=True):
        links = route[route >= 0]
        hops = [link for link in links if network.source_L[link] != network.target_L[link]]
        at = begin
        for link in hops:
            assert network.source_L[link] == at
            at = network.target_L[link]
        assert at == end
        assert len(set(links)) == len(links)


@pytest.mark.slow
@pytest.mark.parametrize("node_limits", [False, True])
@pytest.mark.parametrize(("kind", "numbers"), VARIANTS)
def test_every_gpu_reaches_every_other_one(kind, numbers, node_limits):
    graph = build(kind, node_limits=node_limits, **numbers)
    source, target = (each.ravel() for each in np.meshgrid(np.arange(0, WORLD, 3), np.arange(WORLD)))
    assert_routes_lead(graph, source, target)


@pytest.mark.parametrize(("kind", "numbers"), VARIANTS)
def test_all_links_are_used_by_somebody(kind, numbers):
    graph = build(kind, **numbers)
    source, target = (each.ravel() for each in np.meshgrid(np.arange(WORLD), np.arange(WORLD)))
    used = np.unique(np.concatenate([graph.routes(source, target, seed=seed).ravel() for seed in range(3)]))
    at_switches = np.setdiff1d(np.arange(len(graph.capacity_L)), used)
    assert len(at_switches) == 0


@pytest.mark.parametrize(("kind", "numbers"), VARIANTS)
def test_routes_are_deterministic_and_follow_the_seed(kind, numbers):
    source, target = np.arange(WORLD), (np.arange(WORLD) + 40) % WORLD
    first, again = (build(kind, **numbers).routes(source, target) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = build(kind, **numbers).routes(source, target, seed=1)
    choice = numbers.get("routing") == "ecmp" and kind not in ("non-blocking", "rail-only", "torus")
    assert np.array_equal(first, other) != choice


def test_hashed_routes_do_not_depend_on_the_other_flows():
    graph = build("fat-tree", nodes_per_leaf=2, routing="ecmp")
    source, target, ids = np.arange(WORLD), (np.arange(WORLD) + 40) % WORLD, np.arange(WORLD)
    some = np.array([5, 77, 100])
    np.testing.assert_array_equal(
        graph.routes(source, target, ids)[some], graph.routes(source[some], target[some], ids[some])
    )


def test_hashing_is_even_and_queue_pairs_part_ways():
    graph = build("fat-tree", nodes_per_leaf=2, spines=4, routing="ecmp", queue_pairs=16)
    routes = graph.routes(np.zeros(4000, dtype=int), np.full(4000, 100))
    taken, counts = np.unique(routes[:, 1], return_counts=True)
    assert len(taken) == 4
    assert counts.min() > 0.97 * 16000
    assert len(np.unique(routes[:16, 1])) > 1


@pytest.mark.parametrize(
    ("kind", "numbers", "counts", "oversubscription", "bisection"),
    [
        ("non-blocking", {}, {"GPUs": 128, "nodes": 16, "leaves": 1, "links": 512}, {}, 64),
        ("fat-tree", {"nodes_per_leaf": 2}, {"leaves": 8, "spines": 1, "links": 528}, {"leaf": 1}, 64),
        (
            "fat-tree",
            {"nodes_per_leaf": 2, "oversubscription": (2.0,), "routing": "ecmp"},
            {"leaves": 8, "spines": 8, "links": 512 + 2 * 64},
            {"leaf": 2},
            32,
        ),
        (
            "fat-tree",
            {"nodes_per_leaf": 2, "leaves_per_pod": 2, "oversubscription": (2.0, 2.0), "routing": "ecmp"},
            {"leaves": 8, "spines": 32, "cores": 8, "links": 512 + 2 * 64 + 2 * 32},
            {"leaf": 2, "spine": 2},
            16,
        ),
        (
            "fat-tree",
            {"nodes_per_leaf": 2, "leaves_per_pod": 4, "oversubscription": (1.0, 2.0), "routing": "ecmp"},
            {"leaves": 8, "spines": 32, "cores": 32, "links": 512 + 2 * 128 + 2 * 64},
            {"leaf": 1, "spine": 2},
            32,
        ),
        (
            "fat-tree",
            {"nodes_per_leaf": 2, "leaves_per_pod": 2, "oversubscription": (1.0, 8.0), "routing": "ecmp"},
            {"leaves": 8, "spines": 64, "cores": 16, "links": 512 + 2 * 128 + 2 * 64},
            {"leaf": 1, "spine": 8},
            8,
        ),
        ("rail-optimised", {"nodes_per_leaf": 4}, {"leaves": 32, "spines": 1}, {"leaf": 1}, 64),
        ("rail-only", {}, {"leaves": 8, "links": 512}, {}, 64),
        ("dual-plane", {"nodes_per_leaf": 4, "routing": "ecmp"}, {"leaves": 64, "spines": 8}, {"leaf": 1}, 64),
        (
            "dragonfly+",
            {"nodes_per_leaf": 1, "leaves_per_pod": 4},
            {"leaves": 16, "spines": 4},
            {"leaf": 1, "spine": 1},
            64 * 2 / 3,
        ),
        ("torus", {"dims": (8, 4, 4)}, {"GPUs": 128, "links": 768}, {}, 64),
    ],
)  # fmt: skip
def test_counts_capacities_and_bisection(kind, numbers, counts, oversubscription, bisection):
    network = build(kind, **numbers).network
    assert counts.items() <= network.counts.items()
    assert network.oversubscription == pytest.approx(oversubscription)
    assert network.bisection_bytes_per_s / NIC == pytest.approx(bisection)


@pytest.mark.parametrize("node_limits", [False, True])
@pytest.mark.parametrize(("kind", "numbers"), VARIANTS)
def test_the_longest_route_is_as_long_as_it_says(kind, numbers, node_limits):
    graph = build(kind, node_limits=node_limits, **numbers)
    source, target = (each.ravel() for each in np.meshgrid(np.arange(WORLD), np.arange(WORLD)))
    assert (graph.routes(source, target) >= 0).sum(axis=1).max() == graph.longest


@pytest.mark.parametrize("size", [4, 8, 12])
def test_half_of_a_ring_goes_up_to_the_opposite_gpu_and_half_down(size):
    """Every GPU sends half-way round: size / 2 hops each over 2 x size links, the same number on each."""
    graph = dimensions_fabric((Dimension("Ring", size, 1e9),), gpus_per_node=1, description="ring")
    source = np.arange(size)
    links, counts = np.unique(graph.routes(source, (source + size // 2) % size), return_counts=True)
    assert links.tolist() == list(range(2 * size))
    assert set(counts.tolist()) == {size // 4}
    assert graph.longest == size // 2


def test_the_slowest_way_out_of_a_node_is_what_a_gpu_gets():
    inner, fast, slow, none = (Dimension("Ring", size, rate) for size, rate in ((8, 5e8), (4, 3e9), (2, 1e9), (1, 1e6)))
    for outer in ((fast, slow, none), (slow, none, fast)):
        assert dimensions_fabric((inner, *outer), gpus_per_node=8, description="some").nic_bytes_per_s == 1e9


def test_rails_keep_apart_unless_nvlink_joins_them():
    graph = build("rail-only")
    route = graph.routes([0], [13])[0]
    assert [graph.network.link_name(link) for link in route] == [
        "GPU 0 -> node 0",
        "node 0 -> GPU 5",
        "GPU 5 -> leaf 5",
        "leaf 5 -> GPU 13",
    ]
    plain, pxn = (build("rail-optimised", nodes_per_leaf=4, pxn=each).routes([0], [13])[0] for each in (False, True))
    assert len(plain) == len(pxn) == 4
    assert graph.network.link_name(0) == "GPU 0 -> node 0"


def test_a_flow_to_itself_crosses_nothing():
    for kind, numbers in SPECS.items():
        assert np.all(build(kind, **numbers).routes([3], [3]) == -1)


def test_nodes_are_filled_up_and_small_worlds_work():
    assert build("torus", dims=(8, 4, 4)).gpus_per_node == 1
    assert build("fat-tree", world=9, nodes_per_leaf=2).network.gpus == 16
    for kind, numbers in SPECS.items():
        assert build(kind, world=1, **numbers).network.gpus >= 1


def test_every_line_of_two_switched_dimensions_has_a_switch_of_its_own():
    dimensions = (Dimension("Switch", 4, 1e9), Dimension("Switch", 2, 2e9))
    graph = dimensions_fabric(dimensions, gpus_per_node=4, description="two")
    network = graph.network
    assert network.counts == {"GPUs": 8, "switches": 2 + 4, "links": 2 * 8 + 2 * 8}
    for ends in (network.source_L, network.target_L):
        at_switches = np.bincount(ends, minlength=14)[8:]
        assert at_switches.tolist() == [4, 4, 2, 2, 2, 2]
    source, target = (each.ravel() for each in np.meshgrid(np.arange(8), np.arange(8)))
    assert_routes_lead(graph, source, target)
    assert graph.nic_bytes_per_s == 2e9
    assert graph.longest == 2 + 2


def test_each_gpu_of_a_full_mesh_has_a_link_to_each_other_one():
    graph = dimensions_fabric(
        (Dimension("FullyConnected", 4, 1e9), Dimension("Ring", 3, 1e9)), gpus_per_node=4, description="mesh"
    )
    assert graph.network.counts == {"GPUs": 12, "links": 12 * 3 + 12 * 2}
    source, target = (each.ravel() for each in np.meshgrid(np.arange(12), np.arange(12)))
    assert_routes_lead(graph, source, target)
    used = graph.routes(source, target)
    assert np.unique(used[used >= 0]).tolist() == list(range(60))
    assert (graph.longest, graph.nic_bytes_per_s) == (1 + 1, 1e9)


@pytest.mark.parametrize(("kind", "links"), [("torus", 768), ("fat-tree", 528)])
def test_links_are_counted_before_they_are_made(monkeypatch, kind, links):
    monkeypatch.setattr("traincast.fabric.graph.MOST_LINKS", links)
    assert len(build(kind, **SPECS[kind]).capacity_L) == links
    monkeypatch.setattr("traincast.fabric.graph.MOST_LINKS", links - 1)
    with pytest.raises(InfeasibleError, match=f"has {links} links, above the limit of {links - 1};"):
        build(kind, **SPECS[kind])


def test_unknown_gpus_say_so():
    with pytest.raises(ProgramError, match="not one of the 128"):
        build("fat-tree", nodes_per_leaf=2).routes([0], [128])


@pytest.mark.parametrize(
    ("kind", "numbers", "said"),
    [
        ("rail-only", {"rails": 3}, "fabric.rails: is 3; it must divide the 8"),
        ("rail-optimised", {"nodes_per_leaf": 4, "leaves_per_pod": 12}, "fabric.leaves_per_pod: is 12"),
        ("torus", {"dims": (4, 4)}, "fabric.dims: hold 16 GPUs, fewer than the 128"),
    ],
)
def test_numbers_that_do_not_fit_the_cluster_say_so(kind, numbers, said):
    with pytest.raises(ConfigError, match=said):
        build(kind, **numbers)


@pytest.fixture
def star(monkeypatch):
    """Return the kind of fabric that docs/adding.md adds, registered as its file would be."""
    text = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
    (code,) = re.findall(r'```python\n("""A star of nodes.*?)```', text, re.DOTALL)
    TOPOLOGIES.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(TOPOLOGIES, "_entries", dict(TOPOLOGIES._entries))
    exec(compile(code, "star.py", "exec"), {"__name__": "star"})  # noqa: S102 our own page
    return "star"


def test_a_topology_is_added_as_one_file_and_keeps_every_promise(star, tmp_path):
    path = write_cluster(tmp_path / "mine.toml", fabric={"kind": "Star", "link_bytes_per_s": "10GB/s"})
    assert load_cluster(str(path)).fabric.kind == star
    graph = build(star, link_bytes_per_s=10e9)
    source, target = (each.ravel() for each in np.meshgrid(np.arange(WORLD), np.arange(WORLD)))
    assert_routes_lead(graph, source, target)
    test_all_links_are_used_by_somebody(star, {})
    assert graph.network.counts == {"GPUs": 128, "nodes": 16, "hubs": 1, "links": 2 * 128 + 2 * 16}
    # Eight rings at once share the one cable of every node.
    (alone,) = network_factor("ring", [range(0, WORLD, 8)], graph)
    together = network_factor("ring", [range(local, WORLD, 8) for local in range(8)], graph)
    assert (alone.factor, together[0].factor) == (pytest.approx(1), pytest.approx(8))
    assert together[0].bottleneck.startswith("node ")
    assert api.inspect(path).layout["fabric"] == "star"
    with pytest.raises(ConfigError, match=r"fabric\.rails: means nothing to the kind 'star'"):
        FabricSpec(kind=star, rails=2)
