"""Prices from measured tables: exact where it was measured, sound everywhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.estimate.collective_table import collective_table
from traincast.estimate.collectives import estimate_collective, estimate_collectives
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import OPERATIONS, Measured, MeasuredTable
from traincast.hardware.clusters import load_cluster, measured_tables_from
from traincast.workload.words import Operation

AR, A2A, SEND = Operation.ALL_REDUCE, Operation.ALL_TO_ALL, Operation.SEND_RECV
SIZES, TIMES = (2**10, 2**16, 2**20, 2**26), (35e-6, 80e-6, 80e-6, 1.2e-3)
TWO = Placement((8, 8))
H100 = load_cluster("h100")


def message(size_bytes, same_node, cluster, rate=None):
    ends = Placement((2,) if same_node else (1, 1))
    return estimate_collective(Operation.SEND_RECV, size_bytes, ends, cluster, rate)


def with_tables(*tables, cluster=H100):
    return replace(cluster, measured=Measured(tables=tables, intra=cluster.intra, inter=cluster.inter))


def table(op="all_reduce", ranks=16, nodes=2, sizes=SIZES, times=TIMES):
    return MeasuredTable(op=op, ranks=ranks, nodes=nodes, size_bytes=sizes, time_s=times, source="here")


KNOWN = with_tables(table())


def times(sizes, cluster=KNOWN, placement=TWO, operation=AR):
    return [estimate_collective(operation, size, placement, cluster).time_s for size in sizes]


def test_measured_sizes_have_their_times_and_a_straight_line_between():
    assert times(SIZES) == pytest.approx(TIMES, rel=1e-12)
    assert times([2**13]) == pytest.approx([np.sqrt(35e-6 * 80e-6)], rel=1e-12)
    price = estimate_collective(AR, 2**13, TWO, KNOWN)
    assert (price.algorithm, price.protocol) == ("table", None)


def test_outside_the_formula_goes_on_from_the_last_time():
    assert times([2**10 - 1, 2**26 + 1]) == pytest.approx([TIMES[0], TIMES[-1]], rel=0.01)
    bare = times([2**26, 2**33, 2**10, 8], H100)
    assert times([2**33, 8]) == pytest.approx([TIMES[-1] * bare[1] / bare[0], TIMES[0] * bare[3] / bare[2]])


@given(st.integers(1, 2**36), st.integers(1, 2**36))
def test_never_falling_with_the_size(one, other):
    small, large = times(sorted((one, other)))
    assert 0 < small <= large * (1 + 1e-12)


@given(st.lists(st.integers(0, 2**34), min_size=1, max_size=6), st.sampled_from([1.0, 0.5, 3.0]))
def test_many_prices_are_those_of_each(sizes, slower):
    cluster = slowed(slower)
    places = [TWO, Placement((8,)), Placement((1,))]
    which = [index % 3 for index in range(len(sizes))]
    expected = [estimate_collective(AR, size, places[w], cluster).time_s for size, w in zip(sizes, which, strict=True)]
    assert estimate_collectives(AR, sizes, places, cluster, which).tolist() == pytest.approx(expected, rel=1e-12)


def slowed(factor):
    inter = KNOWN.inter
    rates = {name: getattr(inter, name) / factor for name in ("bandwidth_bytes_per_s", "node_bandwidth_bytes_per_s")}
    return replace(KNOWN, inter=replace(inter, **rates))


@given(st.integers(1, 2**34), st.floats(1.01, 50))
def test_slower_links_scale_the_table_as_they_scale_the_formula(size, factor):
    assert times([size], slowed(factor))[0] >= times([size])[0] * (1 - 1e-9)
    assert times([size], slowed(1 / factor))[0] <= times([size])[0] * (1 + 1e-9)
    bare = replace(slowed(factor), measured=None)
    ratio = times([size], bare)[0] / times([size], H100)[0]
    assert times([size], slowed(factor))[0] == pytest.approx(times([size])[0] * ratio)


@pytest.mark.parametrize(
    ("operation", "placement"),
    [(Operation.ALL_GATHER, TWO), (AR, Placement((8,))), (AR, Placement((4,) * 4)), (AR, Placement((15, 1)))],
)
def test_no_other_group_is_touched(operation, placement):
    assert times(SIZES, KNOWN, placement, operation) == times(SIZES, H100, placement, operation)


def test_who_asks_for_an_algorithm_or_gives_a_rate_gets_it():
    ring = estimate_collective(AR, 2**20, TWO, KNOWN, algorithm="ring")
    assert ring == estimate_collective(AR, 2**20, TWO, H100, algorithm="ring")
    assert estimate_collective(AR, 2**30, TWO, KNOWN, 1e9) == estimate_collective(AR, 2**30, TWO, H100, 1e9)
    assert estimate_collective(AR, 0, TWO, KNOWN).time_s == 0.0
    assert estimate_collective(AR, 2**20, TWO, replace(KNOWN, ideal=True)).algorithm == "none"


def test_messages_and_loads_are_looked_up_too():
    known = with_tables(table("send_recv", 2, 2), table("all_to_all", 4, 1))
    assert message(2**20, False, known).time_s == pytest.approx(80e-6)
    assert message(2**20, True, known) == message(2**20, True, H100)
    busiest = estimate_collective(A2A, 0, Placement((4,)), known, loads=[5, 2**20, 7, 0])
    assert (busiest.time_s, busiest.algorithm) == (pytest.approx(80e-6), "table")


def test_the_table_of_a_collective_says_that_it_was_measured():
    inside, beyond = (collective_table(AR, sizes, TWO, KNOWN) for sizes in ([2**12], [2**12, 2**30]))
    assert [note.code for note in inside.assumptions] == ["measured-table"]
    assert "here" in inside.assumptions[0].text
    assert "scaled" not in inside.assumptions[0].text
    assert "above 64 MiB by the formula, scaled" in beyond.assumptions[0].text
    assert {row.algorithm for row in beyond.rows} == {"table"}
    assert collective_table(AR, [2**12], Placement((8,)), KNOWN).assumptions == ()


def test_the_names_of_operations_are_those_of_the_workload():
    assert set(OPERATIONS) == {each.name.lower() for each in Operation if each is not Operation.NONE}


RAW = {"op": "all_reduce", "ranks": 8, "nodes": 1, "size_bytes": [8, 16], "time_s": [1e-6, 2e-6]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "all_reduc"}, r"measured\[0\].op: is 'all_reduc'; known: all_reduce, .*did you mean all_reduce"),
        ({"op": 3}, r"measured\[0\].op: is 3; it must be a text"),
        ({"ranks": 0}, r"measured\[0\].ranks: is 0; it must be"),
        ({"nodes": 9}, "cannot sit on 9 nodes"),
        ({"size_bytes": [16, 8]}, "rising sizes"),
        ({"time_s": [2e-6, 1e-6]}, "times that never fall"),
        ({"time_s": [1e-6]}, "one time for each size"),
        ({"time_s": [float("nan"), 1.0]}, "is nan; it must be a number"),
        ({"time_s": 1.0}, "one time for each size"),
        ({"size_bytes": ["eight", 16]}, r"measured\[0\].size_bytes: "),
        ({"bandwidth": 1}, r"measured\[0\].bandwidth: is unknown; known: op, ranks"),
        ({"source": 1}, r"measured\[0\].source: is 1; it must be a text"),
    ],
)
def test_a_wrong_table_is_refused(change, said):
    assert measured_tables_from([RAW], "x.toml")[0].source == "set in x.toml"
    with pytest.raises(ConfigError, match=said):
        measured_tables_from([{**RAW, **change}], "x.toml")


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (8, 8)])
def test_the_smallest_group_is_of_two(ranks, nodes):
    (table,) = measured_tables_from([{**RAW, "ranks": ranks, "nodes": nodes}], "x.toml")
    assert (table.ranks, table.nodes) == (ranks, nodes)
    with pytest.raises(ConfigError, match="1 ranks cannot sit on 1 nodes and communicate"):
        measured_tables_from([{**RAW, "ranks": 1, "nodes": 1}], "x.toml")


def test_tables_must_be_a_list_without_repeats():
    with pytest.raises(ConfigError, match="list of tables"):
        measured_tables_from(5, "x.toml")
    with pytest.raises(ConfigError, match="given twice"):
        measured_tables_from([RAW, RAW], "x.toml")
