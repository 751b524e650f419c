"""What execution traces mean: closed forms of hand-made nodes, in both dialects, and what is refused where."""

import gzip
import json
from pathlib import Path

import pytest

from support import ALONE
from traincast import api
from traincast.errors import FormatError, TraincastError
from traincast.formats.chakra.grammar import parse
from traincast.formats.chakra.wire import bytes_field, delimited, int_field, uint_field, uints_field
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Kind

SAMPLES = Path(__file__).parents[2] / "conformance" / "samples" / "chakra"
METADATA = delimited(bytes_field(1, b"0.0.4"))
COMP, SEND, RECV, COLLECTIVE, MEM_LOAD = 4, 5, 6, 7, 2
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 0, 2, 6, 7, 9


def attribute(name, value, number=9):
    """Return an attribute; numbers are int64 unless another field is asked for."""
    said = bytes_field(29, value.encode()) if isinstance(value, str) else int_field(number, value)
    return bytes_field(10, bytes_field(1, name.encode()) + said)


def node(number, kind, after=(), us=0, name=None, more=b"", cpu=False, **attributes):
    fields = [
        uint_field(1, number) if number else b"",
        bytes_field(2, (name or f"node{number}").encode()),
        uint_field(3, kind),
        uints_field(5, list(after)),
        uint_field(7, us) if us else b"",
        attribute("is_cpu_op", int(cpu), 27),
        *(attribute(key, value) for key, value in attributes.items()),
    ]
    return delimited(b"".join(fields) + more)


def write(folder, *ranks, groups=None, metadata=METADATA):
    for rank, nodes in enumerate(ranks):
        (folder / f"run.{rank}.et").write_bytes(metadata + b"".join(nodes))
    if groups is not None:
        (folder / "comm_group.json").write_text(json.dumps(groups))
    return folder


def simulate(folder, **more):
    return api.simulate(folder, cluster="h100", engine="reference", **{**ALONE, **more})


def test_computations_follow_each_other_and_a_collective_waits_for_the_last(tmp_path):
    def rank(us):
        return [
            node(1, COMP, us=us),
            node(2, COLLECTIVE, [1], us=500, comm_type=ALL_REDUCE, comm_size=1 << 20),
            node(3, COMP, [2], us=1000),
        ]

    result = simulate(write(tmp_path, rank(2000), rank(5000)))
    assert result.iteration_time_s == pytest.approx(6.5e-3)
    assert result.ranks[0].wait_s == pytest.approx(3e-3)
    assert result.ranks[0].breakdown_s["exposed_dp"] == pytest.approx(3.5e-3)


def test_microseconds_are_microseconds(tmp_path):
    assert simulate(write(tmp_path, [node(0, COMP, us=7)])).iteration_time_s == pytest.approx(7e-6)


def test_an_all_gather_makes_what_one_rank_puts_in_times_the_ranks(tmp_path):
    def nodes(kind):
        return [node(1, COLLECTIVE, comm_type=kind, comm_size=1 << 20)]

    for kind, size in ((ALL_GATHER, 4 << 20), (REDUCE_SCATTER, 1 << 20), (ALL_REDUCE, 1 << 20), (ALL_TO_ALL, 1 << 20)):
        (found,) = simulate(write(tmp_path, *[nodes(kind)] * 4)).collectives
        assert found.size_bytes == size
        assert found.ranks == 4


def test_groups_come_from_the_comm_group_file(tmp_path):
    rates = {"tp": 1e9}

    def rank(name):
        return [node(1, COLLECTIVE, comm_type=ALL_REDUCE, comm_size=1 << 20, pg_name=name)]

    folder = write(tmp_path, *map(rank, "1122"), groups={"1": [0, 1], "2": [2, 3]})
    result = simulate(folder, tp=2, busbw_bytes_per_s=rates)
    assert result.iteration_time_s == pytest.approx((1 << 20) / 1e9, rel=0.01)
    assert result.parallel.tp == 2
    (folder / "comm_group.json").unlink()
    with pytest.raises(FormatError, match="over the group '1', whose ranks are not specified"):
        simulate(folder)


def test_process_groups_of_pytorch_name_members_and_purpose():
    workload = api.read(SAMPLES / "process_groups")
    kinds = {(group.kind.name, tuple(group.members)) for group in workload.program.groups}
    assert {("TP", (0, 1)), ("TP", (2, 3)), ("WORLD", (0, 1, 2, 3)), ("PP", (0, 2)), ("PP", (1, 3))} <= kinds


def test_a_send_meets_the_receive_of_its_tag(tmp_path):
    sender = [
        node(1, SEND, us=100, comm_size=8, comm_dst=1, comm_tag=7),
        node(2, SEND, us=300, comm_size=8, comm_dst=1, comm_tag=9),
    ]
    receiver = [
        node(1, RECV, us=300, comm_size=8, comm_src=0, comm_tag=9),
        node(2, COMP, [1], us=1000),
        node(3, RECV, us=100, comm_size=8, comm_src=0, comm_tag=7),
        node(4, COMP, [3], us=1000),
    ]
    result = simulate(write(tmp_path, sender, receiver))
    # One engine computes: the second computation waits for the first.
    assert result.iteration_time_s == pytest.approx(2.3e-3)


def test_nodes_need_not_be_in_order_and_one_engine_computes(tmp_path):
    nodes = [node(5, COMP, [2], us=10), node(9, COMP, us=30), node(2, COMP, us=20)]
    result = simulate(write(tmp_path, nodes))
    assert result.iteration_time_s == pytest.approx(60e-6)
    streams = [node(1, COMP, us=30, stream=7), node(2, COMP, us=20, stream=8)]
    assert simulate(write(tmp_path, streams)).iteration_time_s == pytest.approx(30e-6)


def test_work_of_the_host_is_a_gap_beside_the_gpu(tmp_path):
    nodes = [node(1, COMP, us=40, cpu=True), node(2, COMP, us=100), node(3, COMP, [1, 2], us=10, cpu=True)]
    workload = api.read(write(tmp_path, nodes))
    assert [Kind(each) for each in workload.ops.kind_T[workload.program.row_N]] == [Kind.GAP, Kind.COMPUTE, Kind.GAP]
    assert simulate(tmp_path).iteration_time_s == pytest.approx(110e-6)


def test_memory_nodes_take_what_moving_their_bytes_takes(tmp_path):
    small, large = (
        simulate(write(tmp_path, [node(1, MEM_LOAD, tensor_size=size)])).iteration_time_s for size in (1 << 28, 1 << 30)
    )
    assert large / small == pytest.approx(4, rel=0.1)


def test_a_computation_that_says_flop_and_bytes_is_estimated(tmp_path):
    def step_s(flops, moved):
        return simulate(write(tmp_path, [node(1, COMP, num_ops=flops, tensor_size=moved)])).iteration_time_s

    gpu = load_cluster("h100").gpu
    assert step_s(10**13, 1) >= 10**13 / gpu.peak_flops_per_s("bf16")
    assert step_s(2 * 10**13, 1) == pytest.approx(2 * step_s(10**13, 1), rel=0.01)
    assert step_s(1, 10**10) >= 10**10 / gpu.hbm_bytes_per_s
    workload = api.read(tmp_path)
    assert any(note.code == "num-ops" for note in workload.assumptions)
    assert not any(note.code == "duration-zero" for note in workload.assumptions)


def test_a_barrier_waits_for_all_and_moves_nothing(tmp_path):
    ranks = [[node(1, COMP, us=us), node(2, COLLECTIVE, [1], us=1, comm_type=BARRIER)] for us in (10, 90)]
    assert simulate(write(tmp_path, *ranks)).iteration_time_s == pytest.approx(91e-6)


def test_the_host_calls_of_collectives_are_no_collectives(tmp_path):
    nodes = [node(1, COLLECTIVE, us=85, cpu=True, name="c10d::broadcast_"), node(2, COMP, [1], us=15)]
    result = simulate(write(tmp_path, nodes))
    assert not result.collectives
    assert result.iteration_time_s == pytest.approx(100e-6)


def test_model_times_replace_those_that_are_given(tmp_path):
    ranks = [[node(1, COLLECTIVE, us=5000, comm_type=ALL_REDUCE, comm_size=1 << 20)]] * 2
    folder = write(tmp_path, *ranks)
    assert simulate(folder).iteration_time_s == pytest.approx(5e-3)
    assert 0 < simulate(folder, comm="model").iteration_time_s < 1e-3


def test_a_packed_trace_is_the_same_run():
    plain = {rank: parse("x", _plain(SAMPLES / "process_groups" / f"run.{rank}.et")) for rank in range(4)}
    assert len({len(trace.nodes) for trace in plain.values()}) == 1
    assert (SAMPLES / "process_groups" / "run.2.et").read_bytes().startswith(b"\x1f\x8b")


def _plain(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def test_unknown_fields_are_passed_over(tmp_path):
    # A number, a text, eight bytes, four bytes, and a group with a field of its own.
    unknown = (
        uint_field(900, 5)
        + bytes_field(901, b"later")
        + bytes([0xB1, 0x38])
        + bytes(8)
        + bytes([0xBD, 0x38])
        + bytes(4)
        + bytes([0xC3, 0x38, 0x08, 0x01, 0xC4, 0x38])
    )
    result = simulate(write(tmp_path, [node(1, COMP, us=7, more=unknown)]))
    assert result.iteration_time_s == pytest.approx(7e-6)


def test_the_older_schema_counts_its_collectives_otherwise():
    trace = parse("resnet.0.et", (SAMPLES / "schema_0_0_3" / "resnet.0.et").read_bytes())
    assert all(each.body.old for each in trace.nodes)
    assert trace.version == "1.0.1"
    names = [each.body.collective.name for each in trace.nodes if each.body.is_collective]
    assert names == ["ALL_TO_ALL", "ALL_REDUCE"]
    assert [each.body.duration_s for each in trace.nodes] == pytest.approx([1100e-6, 0, 2200e-6, 0, 10e-6])
    assert trace.nodes[1].body.attributes["involved_dim"] == [1, 1]
    assert (trace.nodes[4].control, trace.nodes[4].data) == ((3, 2), ())


def test_a_trace_of_the_older_schema_needs_no_metadata(tmp_path):
    data = (SAMPLES / "schema_0_0_3" / "resnet.0.et").read_bytes()
    (tmp_path / "resnet.0.et").write_bytes(data[1 + data[0] :])
    assert simulate(tmp_path, gpus=2).iteration_time_s > 3.3e-3


@pytest.mark.parametrize(
    ("sample", "codes"),
    [
        ("schema_0_0_3", {"cycles-as-microseconds", "no-is-cpu-op"}),
        ("process_groups", set()),
        ("tp2_pp2_dp2", set()),
    ],
)
def test_traps_are_warned_about(sample, codes):
    known = {"cycles-as-microseconds", "no-is-cpu-op", "duration-unit", "involved-dim", "message-without-peer"}
    assert {note.code for note in api.read(SAMPLES / sample).warnings} & known == codes


def test_nanoseconds_in_the_place_of_microseconds_are_doubted(tmp_path):
    workload = api.read(write(tmp_path, [node(1, COMP, us=900_000_000)]))
    assert [note.code for note in workload.warnings] == ["duration-unit"]


def test_a_message_to_nobody_waits_for_nobody(tmp_path):
    workload = api.read(write(tmp_path, [node(1, SEND, us=50, comm_size=8), node(2, COMP, [1], us=50)]))
    assert [note.code for note in workload.warnings] == ["message-without-peer"]
    assert simulate(tmp_path).iteration_time_s == pytest.approx(100e-6)


def test_ranks_that_are_missing_are_told(tmp_path):
    ranks = [[node(1, COLLECTIVE, us=5, comm_type=ALL_REDUCE, comm_size=8, pg_name="1")]] * 2
    workload = api.read(write(tmp_path, *ranks, groups={"1": [0, 1, 2, 3]}))
    assert workload.parallel.world_size == 4
    assert any(note.code == "ranks-not-recorded" for note in workload.assumptions)


# --- what is refused, with its place


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node(1, COMP, [8], us=1)], r"node 1 \('node1'\), at byte 8, depends on node 8, which is not in the file"),
        ([node(1, COMP, us=1), node(1, COMP, us=1)], "has the id of the node at byte 8"),
        ([node(1, COMP, [2], us=1), node(2, COMP, [1], us=1)], "data dependencies form a circle"),
        ([node(1, COLLECTIVE, comm_type=ALL_REDUCE)], "has neither comm_size nor a duration"),
        ([node(1, COLLECTIVE, comm_type=42, comm_size=8)], "a collective of the unknown type 42"),
        ([node(1, COLLECTIVE, comm_type=0, comm_size=-8)], "comm_size of -8 bytes"),
        ([node(1, SEND, comm_size=8, comm_dst=0)], "is a message of rank 0 to itself"),
        ([node(1, SEND, comm_size=8, comm_src=4, comm_dst=3)], "a message of rank 4 in the trace of rank 0"),
        ([b""], "holds no node: it ends at byte 8"),
        (
            [node(1, COMP, us=1)[:-3]],
            "the first node cannot be read: a message of 29 bytes begins, and 26 are left, at byte 8",
        ),
        ([b"\0", node(1, COMP, us=1)], "a message is empty.*at byte"),
        ([delimited(b"\x0f\x01")], "wire type 7.* at byte"),
        ([delimited(bytes_field(10, b"\x0a\x7f"))], "an attribute: field 1 has 127 bytes, and 0 are left, at byte"),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path, nodes, words):
    folder = write(tmp_path, nodes)
    with pytest.raises(FormatError, match=words) as caught:
        api.read(folder / "run.0.et")
    assert caught.value.path == str(folder / "run.0.et")


def test_a_message_without_its_receive_has_its_place(tmp_path):
    folder = write(tmp_path, [node(1, SEND, comm_size=8, comm_dst=1)], [node(1, COMP, us=1)])
    with pytest.raises(TraincastError, match=r"'node1' \(.*run\.0\.et:1\).* has 1 sends and 0 receives"):
        api.read(folder)


def test_members_that_disagree_have_their_places(tmp_path):
    ranks = [[node(1, COLLECTIVE, comm_type=ALL_REDUCE, comm_size=size)] for size in (8, 16)]
    with pytest.raises(TraincastError, match=r"disagree: 'node1' \(.*run\.0\.et:1\).*16 bytes"):
        api.read(write(tmp_path, *ranks))


def test_ranks_of_two_runs_are_refused(tmp_path):
    write(tmp_path, [node(1, COMP, us=1)])
    (tmp_path / "other.1.et").write_bytes((tmp_path / "run.0.et").read_bytes())
    with pytest.raises(FormatError, match="is of another run"):
        api.read(tmp_path)


@pytest.mark.parametrize(
    "groups", [{"1": [0], "2": "all"}, {"1": [0, 0]}, {"1": [-1]}, {"1": []}, {"1": [0], "tp": [0]}, {"1": [0.5]}]
)
def test_a_damaged_comm_group_file_is_refused(tmp_path, groups):
    folder = write(tmp_path, [node(1, COMP, us=1)], groups=groups)
    with pytest.raises(FormatError, match=r"comm_group\.json: "):
        api.read(folder)
