"""Every registered algorithm of collectives keeps these promises; a new one is tested by registering."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.cli.main import main
from traincast.errors import ProgramError, UnknownNameError
from traincast.estimate.collectives import ALGORITHMS, estimate_collective, estimate_collectives
from traincast.estimate.collectives.algorithms import PROTOCOLS
from traincast.estimate.collectives.cost import candidates
from traincast.estimate.collectives.links import curve, evaluate
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.workload.words import Operation, bus_factor

PLACEMENTS = [
    Placement(counts) for counts in [(2,), (3,), (8,), (1, 1), (1,) * 7, (4, 2), (8, 8), (8, 1), (8, 7, 3), (8,) * 128]
]
OPERATIONS = [operation for operation in Operation if operation is not Operation.NONE]
H100 = load_cluster("h100")
EVERY = pytest.mark.parametrize("name", ALGORITHMS.names())
MB = 2**20


def traffics(name):
    """Yield what an algorithm sends, for every operation and placement that it can do."""
    algorithm = ALGORITHMS.get(name)
    for operation in OPERATIONS:
        for placement in PLACEMENTS:
            if algorithm.can_do(operation, placement):
                yield algorithm.traffic(operation, placement), operation, placement


def test_each_operation_has_an_algorithm_for_any_placement_on_any_cluster():
    for cluster in map(load_cluster, cluster_names()):
        for operation in OPERATIONS:
            for placement in PLACEMENTS:
                assert any(candidates(operation, placement, cluster))


@EVERY
def test_an_algorithm_says_where_it_applies(name):
    algorithm = ALGORITHMS.get(name)
    assert algorithm.name == name
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert algorithm.operations <= set(OPERATIONS)
    assert algorithm.protocols
    assert set(algorithm.protocols) <= set(PROTOCOLS)
    assert algorithm.since is None or re.fullmatch(r"\d+\.\d+", algorithm.since)
    assert list(traffics(name)), "it does nothing over any of the placements"
    for operation in OPERATIONS:
        for placement in PLACEMENTS:
            if not algorithm.can_do(operation, placement):
                with pytest.raises(ProgramError, match=f"{name} cannot do {operation.name}"):
                    estimate_collective(operation, 64, placement, H100, algorithm=name)


@EVERY
def test_only_what_a_library_chooses_or_a_cluster_names_is_a_candidate(name):
    algorithm = ALGORITHMS.get(name)
    for _, operation, placement in traffics(name):
        chosen = [each.name for each, _ in candidates(operation, placement, H100)]
        assert (name in chosen) <= (algorithm.since is not None)
        old = [each.name for each, _ in candidates(operation, placement, replace(H100, nccl="1.0"))]
        assert name not in old
        named = [each.name for each, _ in candidates(operation, placement, replace(H100, algorithms=(name,)))]
        assert named == sorted({*chosen, name})


@pytest.mark.parametrize("cluster", cluster_names())
def test_a_cluster_may_name_every_algorithm_in_any_spelling_and_no_other(cluster):
    known = load_cluster(cluster)
    every = replace(known, algorithms=tuple(name.replace("_", "-") for name in ALGORITHMS.names()))
    for operation in OPERATIONS:
        for placement in PLACEMENTS:
            cost = estimate_collective(operation, MB, placement, every)
            assert cost.time_s <= estimate_collective(operation, MB, placement, known).time_s
    with pytest.raises(UnknownNameError, match="unknown collective algorithm 'abacus'"):
        estimate_collective(Operation.ALL_REDUCE, MB, Placement((8,)), replace(known, algorithms=("abacus",)))


@EVERY
def test_traffic_uses_the_levels_it_must_and_no_other(name):
    for traffic, operation, placement in traffics(name):
        across, inside = placement.nodes > 1, placement.max_members > 1
        assert (traffic.inter_hops > 0, traffic.nic_load > 0, traffic.node_load > 0) == (across,) * 3
        if operation is not Operation.SEND_RECV:
            assert (traffic.intra_hops > 0, traffic.port_load > 0) == (inside,) * 2
        # A node sends no more than all of its NICs could.
        assert traffic.node_load <= traffic.nic_load * placement.max_members + 1e-12


@EVERY
def test_no_algorithm_sends_less_than_the_operation_needs(name):
    for traffic, operation, placement in traffics(name):
        n, counts = placement.ranks, placement.members_per_node
        if traffic.in_switch:
            # The switch sums: a rank sends its data once, whatever the number of ranks.
            assert traffic.port_load == 1
        elif placement.nodes == 1:
            assert traffic.port_load >= bus_factor(operation, n) - 1e-12
        elif operation is Operation.ALL_TO_ALL:
            assert traffic.node_load >= max(m * (n - m) for m in counts) / n - 1e-12
        elif operation is not Operation.SEND_RECV:
            # Every node must get what its members do not have, through as many NICs as it has members.
            rooted = operation in (Operation.BROADCAST, Operation.REDUCE)
            needed = 1.0 if rooted else max((n - m) / n for m in counts)
            assert traffic.node_load >= needed - 1e-12
            assert traffic.nic_load >= max((n - m) / n / m for m in counts) - 1e-12


@EVERY
def test_time_never_falls_with_the_size_and_is_the_same_in_columns(name):
    sizes = np.array([[0, 1, 1000], [2**20, 2**30, 10**12]])
    for traffic, _, _ in traffics(name):
        cost = curve(traffic, H100)
        times = evaluate(cost, sizes)
        assert times.shape == sizes.shape
        assert times.ravel().tolist() == [float(evaluate(cost, int(size))) for size in sizes.ravel()]
        assert times[0, 0] == 0
        assert (np.diff(times.ravel()) > 0).all()


# --- a new one


@pytest.fixture
def one_shot(monkeypatch):
    """Return the algorithm that docs/adding.md adds, registered as its file would be."""
    text = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
    (code,) = re.findall(r'```python\n("""One-shot.*?)```', text, re.DOTALL)
    ALGORITHMS.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    exec(compile(code, "one_shot.py", "exec"), {"__name__": "one_shot"})  # noqa: S102 our own page
    return "one_shot"


def test_an_algorithm_is_added_as_one_file_and_keeps_every_promise(one_shot):
    test_an_algorithm_says_where_it_applies(one_shot)
    test_only_what_a_library_chooses_or_a_cluster_names_is_a_candidate(one_shot)
    test_traffic_uses_the_levels_it_must_and_no_other(one_shot)
    test_no_algorithm_sends_less_than_the_operation_needs(one_shot)
    test_time_never_falls_with_the_size_and_is_the_same_in_columns(one_shot)


def test_an_added_algorithm_counts_where_it_is_asked_for_and_nowhere_else(one_shot):
    eight, named = Placement((8,)), replace(H100, algorithms=(one_shot,))

    def cost(size, cluster, **asked):
        return estimate_collective(Operation.ALL_REDUCE, size, eight, cluster, **asked)

    assert cost(64 * 1024, H100).algorithm != one_shot
    asked = cost(64 * 1024, H100, algorithm=one_shot)
    assert asked == cost(64 * 1024, named)
    assert (asked.algorithm, asked.protocol) == (one_shot, None)
    assert asked.time_s < cost(64 * 1024, H100).time_s
    # Every rank sends all it has to all others, which does not pay for long, and is not made for more than 8 MiB.
    assert cost(8 * MB, named) == cost(8 * MB, H100)
    assert cost(16 * MB, named) == cost(16 * MB, H100)
    with pytest.raises(ProgramError, match="one_shot cannot do ALL_REDUCE of this size over 8 ranks"):
        cost(16 * MB, H100, algorithm=one_shot)
    with pytest.raises(ProgramError, match="one_shot cannot do ALL_REDUCE"):
        estimate_collective(Operation.ALL_REDUCE, 64, Placement((8, 8)), H100, algorithm=one_shot)
    sizes = np.array([64, 64 * 1024, MB, 8 * MB, 16 * MB])
    many = estimate_collectives(Operation.ALL_REDUCE, sizes, [eight], named)
    assert many.tolist() == [cost(int(size), named).time_s for size in sizes]


def test_an_added_algorithm_is_asked_for_on_the_command_line_and_in_a_cluster_file(one_shot, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\nalgorithms = ["one-shot"]\n')

    def rows(*words):
        with pytest.raises(SystemExit, match="0"):
            main(["collective", "all_reduce", "--size", "64KiB", "--json", *words])
        return [row["algorithm"] for row in json.loads(capsys.readouterr().out)["rows"]]

    assert rows("--cluster", "h100") == ["ring"]
    assert rows("--cluster", "h100", "--algorithm", "one-shot") == [one_shot]
    assert rows("--cluster", str(path)) == [one_shot]
