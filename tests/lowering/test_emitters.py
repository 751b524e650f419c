"""What emitters make of what lowering says: pieces that are hidden or not, and operations with bytes and times."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from told import Told
from traincast.job.share import rank_share
from traincast.lowering.emit import RowEmitter
from traincast.lowering.launches import Launches
from traincast.lowering.work import Exchange, Pass
from traincast.model.blocks.part import Gemm, Kernel
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.ops import OperatorCall
from traincast.workload.words import CostClass, Group, Kind, Operation, Phase, Stream

PASS = [("pass",)]
GATHER, SCATTER = (Exchange(Group.TP, each, 1000) for each in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER))
STATE = Exchange(Group.DP, Operation.ALL_GATHER, 500)


def test_the_host_launches_while_what_it_launches_runs_and_each_wait_costs_two_launches():
    job = job_of()
    job = replace(job, framework=replace(job.framework, host_layer_s=11e-6, module_launches=1.0))
    emit = Told(job)
    hosted = emit.hosted(Launches(10, waits=3), Phase.FORWARD, PASS)
    assert hosted == [
        ("launched", pytest.approx(10e-6)),
        *PASS,
        ("gap", "waits of the host", pytest.approx(6e-6)),
        ("joined",),
    ]
    assert emit.hosted(Launches(10), Phase.FORWARD, PASS) == [("launched", pytest.approx(10e-6)), *PASS, ("joined",)]
    assert emit.hosted(Launches(), Phase.FORWARD, PASS) == PASS
    assert emit.hosted(Launches(10, waits=3), Phase.FORWARD, []) == []


def test_a_share_of_exchanges_is_that_of_how_often_each_is_done():
    emit = Told(job_of())
    assert emit.all({GATHER: 3, SCATTER: 1}, share=0.25) == [
        ("TP ALL_GATHER", 750, "blocks"),
        ("TP REDUCE_SCATTER", 250, "blocks"),
    ]
    assert emit.all([STATE], blocking=False) == [("DP ALL_GATHER", 500, "launched")]
    assert emit.all([STATE], share=0) == []


def test_what_no_kernel_hides_of_a_transfer_follows_the_pass():
    job = job_of(gpus=4, tp=4, overlap_tp=True)
    job = replace(job, framework=replace(job.framework, unhidden_tp=0.25))
    assert Told(job).alongside({GATHER: 2}, Phase.FORWARD, PASS) == [
        ("TP ALL_GATHER", 1500, "launched"),
        *PASS,
        ("joined",),
        ("TP ALL_GATHER", 500, "unhidden"),
    ]
    whole = Told(job_of(gpus=4, tp=4, overlap_tp=False)).alongside({GATHER: 2}, Phase.FORWARD, PASS)
    assert whole == [*PASS, ("TP ALL_GATHER", 2000, "blocks")]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (
            {"overlap_tp": False},
            {Group.TP: 1, Group.ETP: 1, Group.CP: 0.3, Group.EP: 1, Group.DP: 1, Group.EDP: 1, Group.SHARD: 1},
        ),
        ({"overlap_tp": True}, {Group.TP: 0.2, Group.ETP: 1, Group.CP: 0.3, Group.EP: 1, Group.DP: 1}),
        ({"zero": 3}, {Group.TP: 0.2, Group.DP: 0.4, Group.EDP: 0.4, Group.SHARD: 0.4, Group.REPLICA: 1, Group.EP: 1}),
        ({"zero": 2}, {Group.DP: 1, Group.EDP: 1, Group.SHARD: 1, Group.WORLD: 1}),
    ],
)
def test_what_shows_of_an_exchange_is_what_its_framework_says_of_its_group(fields, shown):
    job = job_of(TINY_EXPERTS, gpus=8, tp=2, ep=2, etp=2, **fields)
    shares = {"unhidden_tp": 0.2, "unhidden_cp": 0.3, "unhidden_fsdp": 0.4}
    emit = Told(replace(job, framework=replace(job.framework, **shares)))
    assert {group: emit.unhidden(group) for group in shown} == shown


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("ring", {2: 0.3, 4: 0.15, 8: 0.075}), ("all_gather", {2: 0.3, 8: 0.3}), ("all_to_all", {2: 0.3, 8: 0.3})],
)
def test_of_a_ring_the_last_of_its_steps_is_in_sight(kind, shown):
    for cp, share in shown.items():
        job = job_of(TINY, gpus=cp, cp=cp, cp_kind=kind, global_batch=cp)
        emit = Told(replace(job, framework=replace(job.framework, unhidden_cp=0.3)))
        assert emit.unhidden(Group.CP) == pytest.approx(share)


@pytest.mark.parametrize(
    ("gpus", "tp", "ranks_per_node", "hides"),
    [
        (8, 4, 8, True),
        (16, 8, 4, False),
        (16, 4, 4, True),
        (16, 4, 6, False),
        # All ranks are on one node, whatever it holds besides.
        (4, 4, 6, True),
    ],
)
def test_groups_that_cross_nodes_hide_nothing(gpus, tp, ranks_per_node, hides):
    job = job_of(TINY_EXPERTS, gpus=gpus, tp=tp, global_batch=16, overlap_tp=True)
    assert Told(job, ranks_per_node).can_overlap_tp() == hides


def rows():
    job = job_of()
    builder = WorkloadBuilder("w", job.parallel, job.pipeline.schedule)
    return RowEmitter(job, rank_share(job), builder), builder.ops


def test_a_transfer_of_some_messages_is_as_many_collectives_of_a_part_each():
    emit, ops = rows()
    (row,) = emit.exchange(STATE._replace(messages=3), Phase.STEP, 2.0)
    made = ops[row]
    assert (made.kind, made.group, made.operation) == (Kind.COLLECTIVE, Group.DP, Operation.ALL_GATHER)
    # 500 bytes in three messages, rounded up; two such transfers.
    assert (made.size_bytes, made.repeats, made.name, made.blocking) == (167, 6, "dp all_gather", True)
    assert made.cost_class is CostClass.NONE


def test_equal_transfers_and_waits_are_one_operation_and_others_are_not():
    emit, ops = rows()
    first = emit.exchange(STATE)
    others = [
        emit.exchange(STATE, Phase.FORWARD),
        emit.exchange(STATE, count=2.0),
        emit.exchange(STATE, blocking=False),
        emit.exchange(STATE, cost_class=CostClass.UNHIDDEN),
        emit.exchange(STATE._replace(size_bytes=501)),
    ]
    assert emit.exchange(STATE) == first
    assert len({*first, *(row for each in others for row in each)}) == 6
    assert ops[others[3][0]].cost_class is CostClass.UNHIDDEN
    waits = emit.wait(Stream.OFFLOAD_IN, Stream.OFFLOAD_OUT)
    assert emit.wait(Stream.OFFLOAD_IN) == waits[:1]
    assert waits[0] != waits[1]
    assert emit.wait(Stream.OFFLOAD_IN, where=False) == []


def test_nothing_makes_no_operation_and_one_byte_makes_one():
    emit, ops = rows()
    assert emit.exchange(STATE._replace(size_bytes=0)) == emit.exchange(STATE, count=0.0) == []
    assert emit.copy("c", Phase.STEP, Stream.OFFLOAD_IN, 0) == emit.outside("o", 0.0) == []
    assert emit.gap("g", 0.0, CostClass.FIXED) == []
    assert ops == []
    assert [ops[row].size_bytes for row in emit.exchange(STATE._replace(size_bytes=1), count=0.5)] == [1]
    assert [ops[row].size_bytes for row in emit.copy("c", Phase.STEP, Stream.OFFLOAD_IN, 1)] == [1]
    assert [ops[row].duration_s for row in emit.outside("o", 1e-9)] == [1e-9]
    assert [ops[row].duration_s for row in emit.gap("g", 1e-9, CostClass.FIXED)] == [1e-9]


def test_calls_with_nothing_to_do_are_left_out():
    emit, ops = rows()
    some = [Gemm(m=4, n=8, k=16, dtype="bf16"), Kernel(family="norm", shape=(1, 1), dtype="bf16")]
    none = [Gemm(m=0, n=8, k=16, dtype="bf16"), Kernel(family="norm", shape=(4, 0), dtype="bf16")]
    (row,) = emit.runs("r", Phase.STEP, [(each, 2) for each in (*some, *none)])
    assert [(call.family, often) for call, often in ops[row].calls] == [("gemm", 2.0), ("norm", 2.0)]
    assert emit.runs("r", Phase.STEP, [(each, 2) for each in none]) == []
    call = OperatorCall(family="gemm", shape=(4, 8, 16), dtype="bf16")
    assert emit.compute("c", Phase.STEP, Pass()) == []
    assert [ops[row].calls for row in emit.compute("c", Phase.STEP, Pass({call: 3.0}))] == [((call, 3.0),)]


def test_what_is_launched_is_waited_for_where_nothing_has_waited_for_it():
    emit, ops = rows()
    copies = emit.copy("c", Phase.STEP, Stream.OFFLOAD_IN, 8)
    hiding = emit.gap("g", 1e-3, CostClass.FIXED)
    found = emit.overlapped(copies, hiding)
    assert found[:2] == [*copies, *hiding]
    assert [ops[row].waits_for for row in found[2:]] == [Stream.OFFLOAD_IN]
    blocks = emit.copy("c", Phase.STEP, Stream.OFFLOAD_IN, 8, blocking=True)
    assert emit.overlapped(blocks, hiding) == [*blocks, *hiding]
