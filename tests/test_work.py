"""Work is counted from its inputs and refused, or announced, before it is done."""

from importlib import import_module

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from support import row, write_aicb
from traincast import api
from traincast.calibration.collectives import read_collectives
from traincast.cli.main import cli
from traincast.cli.terminal import announced
from traincast.errors import FormatError, InfeasibleError
from traincast.estimate.collective_table import members_on
from traincast.fabric.contention import network_factor
from traincast.fabric.graph import build_fabric
from traincast.fabric.patterns import PATTERNS, flow_count, flows_of
from traincast.fabric.topologies import file as topology_file
from traincast.formats.values import MOST_LINES
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.job.parallel import MAX_SLOTS, MAX_WORLD_SIZE, Parallel
from traincast.progress import advanced, announce, listening
from traincast.simulation import step as simulation_step
from traincast.simulation.study import Study
from traincast.workload.builder import wait_op
from traincast.workload.ops import Op, table_of
from traincast.workload.words import Kind, Phase, Stream


def cluster_with(tmp_path, fabric, **numbers) -> Cluster:
    path = tmp_path / "mine.toml"
    given = "".join(f"{name} = {value}\n" for name, value in numbers.items())
    path.write_text(f'base = "h100"\n{given}[fabric]\n{fabric}\n')
    return load_cluster(str(path))


FABRICS = {
    "non-blocking": 'kind = "non-blocking"',
    "fat-tree": 'kind = "fat-tree"\nnodes_per_leaf = 2',
    "fat-tree-ecmp": 'kind = "fat-tree"\nnodes_per_leaf = 2\nleaves_per_pod = 2\nrouting = "ecmp"\nqueue_pairs = 3',
    "rail-optimised": 'kind = "rail-optimised"\nnodes_per_leaf = 2\npxn = true\nrouting = "ecmp"',
    "rail-only": 'kind = "rail-only"\nrails = 4',
    "dual-plane": 'kind = "dual-plane"\nnodes_per_leaf = 4\nrouting = "ecmp"',
    "dragonfly+": 'kind = "dragonfly+"\nnodes_per_leaf = 2\nleaves_per_pod = 2\nrouting = "ecmp"',
    "torus": 'kind = "torus"\ndims = [4, 5, 4]',
}


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=list(FABRICS))
@pytest.mark.parametrize("node_limits", [False, True])
def test_links_and_routes_are_no_more_than_was_counted(tmp_path, monkeypatch, fabric, node_limits):
    asked = []
    for family in ("clos", "dimensions"):
        monkeypatch.setattr(
            f"traincast.fabric.topologies.{family}.check_links", lambda links, what: asked.append((links, what))
        )
    graph = build_fabric(cluster_with(tmp_path, fabric), 64, node_limits=node_limits)
    (links, _), *_ = asked
    # A limit of a node is a link to itself for each way; a torus keeps two ways of every ring.
    assert len(graph.capacity_L) <= links <= len(graph.capacity_L) * 1.2
    flows = flows_of("all-to-all", np.arange(64), graph.gpus_per_node)
    crossed = (graph.routes(flows.source_F, flows.target_F) >= 0).sum(axis=1)
    assert crossed.max() <= graph.longest <= 2 * crossed.max() + 2


@pytest.mark.parametrize("pattern", list(PATTERNS))
@pytest.mark.parametrize("members", [1, 2, 3, 16, 33])
def test_flows_are_no_more_than_was_counted(pattern, members):
    flows = flows_of(pattern, np.arange(members), 1)
    assert len(flows.source_F) <= flow_count(pattern, members) <= len(flows.source_F) + 4 * members


@pytest.mark.parametrize(
    ("fabric", "numbers", "gpus"),
    [('kind = "rail-only"\nrails = 4', {"gpus_per_node": 65536}, 2**30),
     ('kind = "rail-optimised"\nnodes_per_leaf = 2\nspines = 1048576\nrouting = "ecmp"', {}, 1024),
     ('kind = "dragonfly+"\nnodes_per_leaf = 1\nleaves_per_pod = 1', {"gpus_per_node": 1}, 2**20)],
)  # fmt: skip
def test_a_network_of_too_many_links_is_not_built(tmp_path, monkeypatch, fabric, numbers, gpus):
    cluster = cluster_with(tmp_path, fabric, **numbers)
    monkeypatch.setattr("traincast.fabric.topologies.clos.Clos.network", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(InfeasibleError, match=r"has [\d,]+ links, above the limit of 16,777,216"):
        build_fabric(cluster, gpus)


@pytest.mark.parametrize(
    ("fabric", "pattern", "members"),
    [('kind = "torus"\ndims = [64, 64]', "all-to-all", 4096), ('kind = "non-blocking"', "all-to-all", 8192),
     ('kind = "rail-optimised"\nnodes_per_leaf = 2\nrouting = "ecmp"\nqueue_pairs = 1024', "ring", 16384)],
)  # fmt: skip
def test_flows_of_too_many_hops_are_not_made(tmp_path, monkeypatch, fabric, pattern, members):
    graph = build_fabric(cluster_with(tmp_path, fabric), members)
    monkeypatch.setattr("traincast.fabric.contention.flows_of", lambda *_: pytest.fail("they were made"))
    with pytest.raises(InfeasibleError, match=r"hops to solve, above the limit of 33,554,432; .*network=analytical"):
        network_factor(pattern, [np.arange(members)], graph)


def test_a_topology_of_too_large_tables_is_not_prepared():
    for counts in ((2**15 + 1, 2, 10, 2), (100, 2**12 + 1, 10, 2), (100, 10, 2**20, 2**8)):
        with pytest.raises(InfeasibleError, match="above the limit"):
            topology_file._check_tables(*counts)
    topology_file._check_tables(2**15, 2**12, 2**19, 2**8)


def test_a_topology_file_of_too_many_links_is_not_read(tmp_path):
    path = tmp_path / "big.txt"
    path.write_text("800001 8 0 1 800000 H100\n800000\n0 800000 400Gbps 0.0005ms 0\n")
    with pytest.raises(FormatError, match=r"big.txt:1: the header says 800,000 links, above the limit of 524,288"):
        api.inspect(path)


def test_a_collective_of_too_many_ranks_is_not_placed(monkeypatch):
    monkeypatch.setattr("traincast.estimate.collective_table.Placement", lambda *_: pytest.fail("it was placed"))
    with pytest.raises(InfeasibleError, match=r"100,000,000 ranks are above the limit of 1,048,576"):
        members_on(10**8, None, 8)


def test_the_largest_collective_is_placed():
    assert members_on(MAX_WORLD_SIZE, None, 8).nodes == MAX_WORLD_SIZE // 8


@pytest.mark.parametrize("degrees", [{"pp": 2, "microbatches": 262144}, {"pp": 16, "microbatches": 20000}])
def test_a_plan_of_too_many_slots_is_not_made(degrees):
    with pytest.raises(InfeasibleError, match=r"slots to schedule, above the limit of 262144"):
        Parallel(**degrees)
    assert Parallel(pp=2, microbatches=MAX_SLOTS // 2).world_size == 2


def test_a_program_of_too_many_operations_is_not_laid_out(tmp_path, monkeypatch):
    path = tmp_path / "w.txt"
    write_aicb(path, [row("mlp_layer", forward=1000, input_grad=1000)] * 40)
    monkeypatch.setattr(simulation_step, "MAX_OPS", 50)
    monkeypatch.setattr(Study, "program", lambda *_: pytest.fail("it was laid out"))
    with pytest.raises(InfeasibleError, match="operations, above the limit of 50"):
        api.simulate(path)


@pytest.mark.parametrize("line", ["norm -1 1 NONE 0 1 NONE 0 1 NONE 0 1", "rank:0:step(", "a\tb"])
def test_a_file_of_too_many_lines_is_not_parsed(line):
    head = {"n": f"MICRO\n{MOST_LINES + 1}\n", "r": "rank:0:step()\n", "a": ""}[line[0]]
    text = head + f"{line}\n" * (MOST_LINES + 1)
    for form in ("aicb", "echo", "neusight"):
        parse = import_module(f"traincast.formats.{form}.grammar").parse
        with pytest.raises(FormatError, match=r"x: has 131,\d\d\d lines, above the limit of 131,072"):
            parse("x", text)


# --- progress


def test_only_announced_work_is_told():
    told = []
    with listening(lambda what, share: told.append((what, share))):
        advanced(0.5)
        announce("long work")
        advanced(0.5)
    announce("nobody listens")
    advanced(0.7)
    assert told == [("long work", 0.0), ("long work", 0.5)]


def test_a_long_run_tells_its_size_and_how_far_it_is(tmp_path, monkeypatch):
    path = tmp_path / "w.txt"
    write_aicb(path, [row("mlp_layer", forward=1000, input_grad=1000)] * 40)
    monkeypatch.setattr(simulation_step, "LONG_OPS", 10)
    told = []
    with listening(lambda what, share: told.append((what, share))):
        api.simulate(path)
    assert {what.partition(" operations")[0].rstrip("0123456789,") for what, _ in told} == {"simulating about "}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert len(shares) > 3


def test_lines_on_stderr_have_the_time_left(capsys, monkeypatch):
    seconds = iter([0.0, 0.0, 5.0, 6.0, 15.0])
    monkeypatch.setattr("traincast.cli.terminal.monotonic", lambda: next(seconds))
    with announced(quiet=False):
        announce("scheduling much")
        for share in (0.25, 0.3, 0.5):
            advanced(share)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "scheduling much\n25 % done, about 15 s left\n50 % done, about 8 s left\n"
    with announced(quiet=True):
        announce("scheduling much")
    assert capsys.readouterr().err == ""


def test_a_size_that_is_no_size_as_a_product_is_refused():
    for name in ("size_bytes", "received_bytes"):
        op = replace(Op(name="mlp", kind=Kind.COMPUTE, phase=Phase.FORWARD), **{name: 2**70})
        with pytest.raises(InfeasibleError, match=rf"mlp has 1.18e\+21 bytes \({name}\), above the limit of 2\^62"):
            table_of([wait_op(Stream.COMPUTE), op])


def test_what_would_free_memory_needs_no_plan_that_cannot_be_made():
    words = "predict --model llama3-70b --gpus 8 --tp 8 --cluster h100 --seq-length 4096 --allow-oom --quiet"
    words += " --micro-batch 1048576 --global-batch 1048576"
    assert CliRunner().invoke(cli, words.split(), standalone_mode=False).exception is None


def test_a_measured_collective_of_too_many_ranks_is_left_out(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("op,ranks,size_bytes,time_us,gpu\nall_reduce,100000000,1024,1,H100\nall_reduce,8,1024,9,H100\n")
    reading = read_collectives([path])
    assert len(reading.measurements) == 1
    assert "100,000,000 ranks are above the limit of 1,048,576" in reading.skipped[0].reason
