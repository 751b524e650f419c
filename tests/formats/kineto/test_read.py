"""What profiler traces mean: steps, launches, groups, what ranks did together, and a replay as long as was measured."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from kineto_traces import AUTOGRAD, MAIN, Writer
from support import ALONE
from traincast import api
from traincast.analysis.critical_path import critical_path
from traincast.engine.graph import build_graph
from traincast.errors import ConfigError, FormatError
from traincast.formats.kineto.communication import library_kernel, meaning, operation_of
from traincast.formats.kineto.grammar import Communicated, Document, read_trace
from traincast.formats.kineto.step import chosen, cut, marks
from traincast.formats.open import identify
from traincast.job.options import LayoutOptions
from traincast.report.files import write_directory
from traincast.report.json import inspection_to_dict
from traincast.workload.words import Group, Kind, Operation, Phase

US = 1e-6
EXAMPLE = Path(__file__).parents[3] / "examples" / "pytorch_ddp_2gpu_rank0.json.gz"
TP = (("3", "TENSOR_MODEL_PARALLEL_GROUP", [0, 1]),)


def simulate(path, **more):
    return api.simulate(path, cluster="h100", engine="reference", **{**ALONE, **more})


def codes(notes):
    return {each.code for each in notes}


def write(writers, folder):
    for writer in writers:
        writer.write(folder / f"rank-{writer.rank}.pt.trace.json")
    return folder


def two_ranks(skew_us=0.0, transfer_us=100.0, base_ns=(0, 0)):
    """Two ranks that compute for 100 and 160 us, reduce, and compute again; the clock of the second is ahead."""
    writers = []
    for rank, late in enumerate((0.0, 60.0)):
        writer = Writer(rank, 2, base_us=5_000_000.0 + rank * skew_us, groups=TP)
        writer.tail["baseTimeNanoseconds"] = base_ns[rank]
        for step in range(4):
            at = 1000.0 * step
            writer.step(step, at, at + 900)
            writer.work("gemm", at + 10, at + 20, at + 120 + late)
            writer.collective(at + 20, at + 121 + late, at + 181 + transfer_us, seq=step)
            writer.work("gemm", at + 30, at + 183 + transfer_us, at + 300 + transfer_us)
            writer.call("cudaDeviceSynchronize", at + 40, at + 305 + transfer_us)
        writers.append(writer)
    return writers


# --- several ranks


@pytest.mark.parametrize("skew_us", [0.0, 1500.0, -4e9])
def test_ranks_meet_whatever_their_clocks_say(tmp_path, skew_us):
    result = simulate(write(two_ranks(skew_us), tmp_path))
    assert result.iteration_time_s == pytest.approx(900 * US)
    assert result.measured_s == pytest.approx(900 * US)
    early, late = result.ranks
    assert early.breakdown_s["exposed_tp"] == pytest.approx(160 * US)
    assert late.breakdown_s["exposed_tp"] == pytest.approx(100 * US)
    assert (early.wait_s, late.wait_s) == pytest.approx((60 * US, 0.0))
    (reduce,) = result.collectives
    assert (reduce.op, reduce.size_bytes, reduce.time_s) == ("all_reduce", 2 << 20, pytest.approx(100 * US))
    assert ("clocks-aligned" in codes(result.assumptions)) == (skew_us != 0)


def test_times_count_from_the_base_that_a_file_says(tmp_path):
    base_ns = 1_711_964_646_000_000_000
    result = simulate(write(two_ranks(-250.0, base_ns=(base_ns, base_ns + 250_000)), tmp_path))
    assert result.iteration_time_s == pytest.approx(900 * US)
    assert "clocks-aligned" not in codes(result.assumptions)


def test_other_prices_of_communication_move_what_depends_on_it(tmp_path):
    folder = write(two_ranks(), tmp_path)
    workload = api.read(folder, LayoutOptions(comm="model"))
    slow = simulate(workload, busbw_bytes_per_s={"tp": 2e9})
    (reduce,) = slow.collectives
    assert reduce.time_s == pytest.approx((2 << 20) / 2e9, rel=0.1)
    # All that follows is later by as much as the reduction takes longer; the host waits for it.
    assert slow.iteration_time_s == pytest.approx(900 * US + reduce.time_s - 100 * US, rel=1e-6)
    assert simulate(folder, comm="model", busbw_bytes_per_s={"tp": 1e15}).iteration_time_s < 810 * US


def test_a_late_rank_is_a_straggler_of_a_trace(tmp_path):
    writers = [Writer(rank, 4, groups=[("0", "default_pg", [0, 1, 2, 3])]) for rank in range(4)]
    for writer in writers:
        took = 300.0 if writer.rank == 2 else 100.0
        writer.work("gemm", 0, 10, 10 + took)
        writer.collective(5, 11 + took, 350, ranks=[0, 1, 2, 3], group="0", desc="default_pg")
    result = simulate(write(writers, tmp_path))
    assert [each.rank for each in result.stragglers] == [2]
    assert result.stragglers[0].slowdown == pytest.approx(3.0)
    assert result.stragglers[0].cost_s == pytest.approx(200 * US, rel=0.02)


def test_sends_meet_their_receives_by_ranks_and_order(tmp_path):
    first, second = (Writer(rank, 2, groups=[("5", "PIPELINE_MODEL_PARALLEL_GROUP", [0, 1])]) for rank in (0, 1))
    own = {"group": "5", "desc": "PIPELINE_MODEL_PARALLEL_GROUP"}
    for at in (0.0, 200.0):
        first.work("gemm", at, at + 10, at + 60)
        first.collective(at + 5, at + 62, at + 100, name="send", target=1, **own)
        second.collective(at + 2, at + 12, at + 100, name="recv", source=0, **own)
        second.work("gemm", at + 6, at + 105, at + 155)
    workload = api.read(write([first, second], tmp_path))
    kind_N = workload.ops.kind_T[workload.program.row_N]
    assert sorted(Kind(kind).name for kind in kind_N if kind in (Kind.SEND, Kind.RECV)) == [
        "RECV",
        "RECV",
        "SEND",
        "SEND",
    ]
    met_N = workload.program.rendezvous_N
    assert sorted(np.unique(met_N[met_N >= 0], return_counts=True)[1].tolist()) == [2, 2]
    assert workload.parallel.pp == 2
    result = simulate(workload)
    assert result.iteration_time_s == pytest.approx(355 * US)
    # The receiver waits from 12 to 62, twice; a transfer takes 38.
    assert result.ranks[1].breakdown_s["bubble"] == pytest.approx(100 * US)
    assert result.ranks[1].breakdown_s["exposed_pp"] == pytest.approx(76 * US)


def test_collectives_are_matched_by_comms_id_before_seq_before_order(tmp_path):
    first, second = (Writer(rank, 2, groups=TP) for rank in (0, 1))
    # Launched in another order, on two streams, so that order alone would be wrong.
    first.collective(0, 10, 50, elements=100, comms=2**63 + 5, stream=20)
    first.collective(1, 60, 90, elements=200, seq=8, stream=21)
    second.collective(0, 61, 90, elements=200, seq=8, stream=21)
    second.collective(1, 11, 50, elements=100, comms=2**63 + 5, stream=20)
    workload = api.read(write([first, second], tmp_path))
    assert not workload.warnings
    met = {}
    for op in np.flatnonzero(workload.program.rendezvous_N >= 0):
        row = workload.program.row_N[op]
        met.setdefault(int(workload.program.rendezvous_N[op]), set()).add(int(workload.ops.size_bytes_T[row]))
    assert sorted(map(sorted, met.values())) == [[200], [400]]


def test_what_differs_between_ranks_waits_for_nobody(tmp_path):
    first, second = (Writer(rank, 2, groups=TP) for rank in (0, 1))
    first.collective(0, 10, 50, elements=100)
    second.collective(0, 10, 50, elements=101)
    result = simulate(write([first, second], tmp_path))
    assert "collectives-differ" in codes(result.warnings)
    assert result.iteration_time_s == pytest.approx(50 * US)


# --- missing fields


def test_a_rank_is_that_of_the_name_where_the_file_is_silent_else_its_place(tmp_path):
    for names, ranks in ((("rank-3.x.json", "rank-5.x.json"), {3, 5}), (("a.json", "b.json"), {0, 1})):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            writer = Writer(world=None)
            writer.work("gemm", 0, 10, 20)
            writer.write(folder / name)
        workload = api.read(folder)
        assert set(workload.program.rank_R.tolist()) == ranks
        assert "rank-not-said" in codes(workload.assumptions)


def test_two_files_of_one_rank_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        writer = Writer(rank=1, world=2)
        writer.work("gemm", 0, 10, 20)
        writer.write(tmp_path / name)
    with pytest.raises(FormatError, match=r"says rank 1, as those of .*a\.json do; give one trace of each rank"):
        api.read(tmp_path)


@pytest.mark.parametrize("by", ["number", "launch"])
def test_a_kernel_without_arguments_has_those_of_its_operator(tmp_path, by):
    writers = two_ranks()
    for writer in writers:
        for event in [each for each in writer.events if "Collective name" in each.get("args", {})]:
            said = {
                key: event["args"].pop(key) for key in list(event["args"]) if key[0].isupper() and key != "External id"
            }
            said |= {key: event["args"].pop(key) for key in ("dtype",)}
            launch = next(
                each
                for each in writer.events
                if each["cat"] == "cuda_runtime" and each["args"]["correlation"] == event["args"]["correlation"]
            )
            number = event["args"]["External id"] if by == "number" else 77777
            writer.events.append(
                {**launch, "cat": "cpu_op", "name": "record_param_comms", "args": {"External id": number, **said}}
            )
    result = simulate(write(writers, tmp_path))
    assert [(each.group, each.size_bytes) for each in result.collectives] == [("tp", 2 << 20)]
    assert result.ranks[0].wait_s == pytest.approx(60 * US)


def test_collectives_without_groups_are_of_all_ranks_where_all_ran_the_same(tmp_path):
    writers = [Writer(rank, None) for rank in (0, 1)]
    for writer in writers:
        writer.work(
            "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
            0,
            10 + 20 * writer.rank,
            60,
        )
    workload = api.read(write(writers, tmp_path))
    assert "groups-not-said" in codes(workload.assumptions)
    result = simulate(workload)
    assert result.ranks[0].wait_s == pytest.approx(20 * US)


def test_other_collectives_without_groups_keep_their_time(tmp_path):
    writer = Writer(0, 8)
    writer.work("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 0, 10, 60, stream=20)
    result = simulate(writer.write(tmp_path / "t.json"), comm="model")
    assert result.iteration_time_s == pytest.approx(60 * US)
    assert {"groups-not-said", "waits-not-seen"} <= codes(result.assumptions)


def said(**more):
    return Communicated(**{**dict.fromkeys(Communicated._fields), "dtype": "BFloat16", "group_name": "7", **more})


@pytest.mark.parametrize(
    ("arguments", "listed", "members"),
    [
        ({"group_ranks": "[4, 6]", "group_size": 2}, None, (4, 6)),
        (
            {"group_ranks": "[0, 1, 2, ..., 63]", "group_size": 64, "first_rank": 0, "rank_stride": 1},
            None,
            tuple(range(64)),
        ),
        ({"group_ranks": "[0, 8, ..., 504]", "group_size": 64}, [8 * at for at in range(64)], tuple(range(0, 512, 8))),
        ({"group_size": 2}, "[3, 9]", (3, 9)),
        ({"group_size": 4}, None, (0, 1, 2, 3)),
        ({"group_size": 3}, None, None),
        ({"group_ranks": "[1, 1]", "group_size": 2}, None, None),
    ],
)
def test_members_of_a_group_from_what_is_left_of_them(arguments, listed, members):
    groups = [] if listed is None else [{"pg_name": "7", "pg_desc": "mesh_tp", "ranks": listed}]
    document = Document(distributed={"rank": 0, "world_size": 4, "pg_config": groups})
    found = meaning(said(collective="allreduce", in_elements=1, **arguments), "", document, 0).group
    assert (found and found.members) == members


@pytest.mark.parametrize(
    ("name", "counts", "operation", "size"),
    [
        ("allreduce", (8, 8), Operation.ALL_REDUCE, 16),
        ("_allgather_base", (8, 64), Operation.ALL_GATHER, 128),
        ("allgather_into_tensor_coalesced", (8, 64), Operation.ALL_GATHER, 128),
        ("_reduce_scatter_base", (64, 8), Operation.REDUCE_SCATTER, 128),
        ("all_to_allv", (64, 60), Operation.ALL_TO_ALL, 128),
        ("broadcast", (8, 8), Operation.BROADCAST, 16),
        ("reduce", (8, 8), Operation.REDUCE, 16),
        ("send", (8, 0), Operation.SEND_RECV, 16),
        ("recv", (0, 8), Operation.SEND_RECV, 16),
    ],
)
def test_sizes_are_what_nccl_tests_count(name, counts, operation, size):
    found = meaning(said(collective=name, in_elements=counts[0], out_elements=counts[1]), "", Document(), 0)
    assert (found.operation, found.size_bytes, found.dtype) == (operation, size, "bf16")


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Operation.ALL_REDUCE),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", Operation.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", Operation.REDUCE_SCATTER),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Operation.SEND_RECV),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", Operation.REDUCE),
        ("ncclDevKernel_Generic(ncclDevComm*)", Operation.NONE),
    ],
)
def test_a_kernel_says_what_it_does(kernel, operation):
    assert operation_of(kernel) is operation


# --- steps


def test_steps_follow_each_other_though_the_host_runs_ahead(tmp_path):
    writer = Writer()
    # The host is done with a step after 100 us, the GPU after 300.
    for step in range(4):
        writer.step(step, 100.0 * step, 100.0 * step + 100)
        for part in range(3):
            writer.work(
                "gemm", 100.0 * step + 20 * part, 10 + 300.0 * step + 100 * part, 110 + 300.0 * step + 100 * part
            )
    trace = read_trace(writer.write(tmp_path / "t.json"))
    steps = [cut(trace, 0, mark) for mark in marks(trace)]
    assert [len(step.at_G) for step in steps] == [3, 3, 3, 3]
    for step, following in itertools.pairwise(steps):
        assert following.begin_us == pytest.approx(step.stop_us)
    assert simulate(tmp_path / "t.json").iteration_time_s == pytest.approx(300 * US)


def test_a_steady_step_is_taken_and_another_on_request(tmp_path):
    writer = Writer()
    for step, took in ((7, 90.0), (8, 50.0), (9, 60.0), (10, 70.0), (11, 20.0)):
        at = 100.0 * step
        writer.step(step, at, at + took)
        writer.work("gemm", at + 1, at + 5, at + took - 5)
    # The profiler opens a step when the last one ends.
    writer.step(12, 1200.0, 1200.5)
    path = writer.write(tmp_path / "t.json")
    # Without the first and last of those with work, 8, 9 and 10 took 50, 60 and 70 us.
    assert chosen(read_trace(path), None).number == 9
    assert simulate(path).iteration_time_s == pytest.approx(60 * US)
    assert simulate(path, step=7).iteration_time_s == pytest.approx(90 * US)
    with pytest.raises(ConfigError, match=r"no ProfilerStep#3; its steps: 7 to 12"):
        simulate(path, step=3)


def test_a_trace_of_the_host_alone_is_described_and_refused(tmp_path):
    writer = Writer()
    writer.op("aten::mm", 0, 10)
    path = writer.write(tmp_path / "t.json")
    assert "no-gpu" in codes(api.inspect(path).oddities)
    with pytest.raises(FormatError, match="has no work of a GPU"):
        api.read(path)


# --- who waits for whom


def test_the_host_waits_for_the_gpu_and_not_the_gpu_for_a_host_that_waited(tmp_path):
    writer = Writer()
    writer.work("gemm", 0, 10, 110)
    writer.call("cudaStreamSynchronize", 20, 112)
    writer.work("gemm", 120, 125, 150)
    path = writer.write(tmp_path / "t.json")
    assert simulate(path).iteration_time_s == pytest.approx(150 * US)
    # Twice as slow a GPU holds up the host for as long.
    assert simulate(path, compute_slowdown={0: 2.0}).iteration_time_s == pytest.approx((150 + 100 + 25) * US)


def test_a_blocking_copy_holds_the_host(tmp_path):
    writer = Writer()
    writer.work("gemm", 0, 10, 110)
    copy = "Memcpy DtoH (Device -> Pageable)"
    writer.work(copy, 20, 112, 114, cat="gpu_memcpy", call="cudaMemcpyAsync", took=100)
    writer.work("gemm", 130, 135, 160)
    path = writer.write(tmp_path / "t.json")
    assert simulate(path, compute_slowdown={0: 2.0}).iteration_time_s == pytest.approx((160 + 100 + 25) * US)


def test_a_stream_that_waits_for_another_does_so_when_that_takes_longer(tmp_path):
    writer = Writer()
    writer.work("first", 0, 10, 110)
    # Late on another stream, just after the first one ended: it waited for it.
    writer.work("second", 5, 113, 150, stream=9)
    path = writer.write(tmp_path / "t.json")
    assert simulate(path).iteration_time_s == pytest.approx(150 * US)
    assert simulate(path, compute_slowdown={0: 2.0}).iteration_time_s == pytest.approx((150 + 100 + 37) * US)


def test_waits_that_the_trace_says_need_no_inference(tmp_path):
    writer = Writer()
    writer.work("first", 0, 10, 60)
    recorded, waited = 900, 901
    writer.call("cudaEventRecord", 5, 6, correlation=recorded)
    writer.call("cudaStreamWaitEvent", 7, 8, correlation=waited)
    wait = {"stream": 9, "correlation": waited, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": recorded}
    writer.event("cuda_sync", "Stream Wait Event", 7, 8, 9, 0, **wait)
    writer.work("second", 80, 90, 100, stream=9)
    path = writer.write(tmp_path / "t.json")
    assert simulate(path).iteration_time_s == pytest.approx(100 * US)
    # It began long after the first had ended, for the host was late; slowed down, it waits for it.
    assert simulate(path, compute_slowdown={0: 4.0}).iteration_time_s == pytest.approx((210 + 10 + 40) * US)


def test_kernels_of_one_stream_that_overlap_are_read(tmp_path):
    writer = Writer()
    writer.work("first", 0, 10, 60)
    writer.work("second", 2, 50, 90)
    writer.work("third", 4, 92, 100)
    result = simulate(writer.write(tmp_path / "t.json"))
    assert result.iteration_time_s == pytest.approx(100 * US)
    assert result.gpu_time[0].compute_s == pytest.approx(88 * US)


def test_phases_are_those_of_the_operators_that_launched(tmp_path):
    writer = Writer()
    writer.work("a", 0, 10, 20)
    writer.op("autograd::engine::evaluate_function: MmBackward0", 30, 50, tid=AUTOGRAD)
    writer.work("b", 35, 40, 50, tid=AUTOGRAD)
    writer.work("c", 36, 52, 60, tid=MAIN)
    writer.op("Optimizer.step#AdamW.step", 70, 90)
    writer.work("d", 75, 80, 90)
    workload = api.read(writer.write(tmp_path / "t.json"))
    phase_of = {
        name: Phase(phase) for name, phase in zip(workload.ops.name_T, workload.ops.phase_T.tolist(), strict=True)
    }
    assert [phase_of[name] for name in "abcd"] == [Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.STEP]


# --- what is one, and what it becomes


def test_copies_and_kernels_of_rocm_are_told(tmp_path):
    writer = Writer()
    writer.work("__amd_rocclr_copyBuffer.kd", 0, 10, 20, call="hipLaunchKernel")
    writer.work("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs", 2, 22, 40, call="hipExtModuleLaunchKernel")
    writer.work("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", 4, 42, 60, stream=11)
    (found,) = simulate(writer.write(tmp_path / "t.json")).gpu_time
    assert (found.copy_s, found.compute_s, found.comm_s) == pytest.approx((10 * US, 18 * US, 18 * US))


def test_our_own_timeline_is_not_taken_for_a_profile(tmp_path):
    writer = Writer()
    writer.work("gemm", 0, 10, 20)
    path = writer.write(tmp_path / "t.json.gz")
    assert identify(path).name == "kineto"
    result = simulate(path)
    write_directory(result, tmp_path / "out")
    with pytest.raises(FormatError, match="timeline in Chrome's trace format"):
        api.read(tmp_path / "out" / "trace.json.gz")


def test_groups_are_told_by_their_members_where_the_user_gives_degrees(tmp_path):
    writers = []
    for rank in range(4):
        writer = Writer(rank, 4)
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        writer.collective(0, 10, 50, ranks=pair, group=str(pair[0]), desc="undefined")
        writers.append(writer)
    write(writers, tmp_path)
    assert {group.kind for group in api.read(tmp_path).program.groups} == {Group.DP}
    assert {group.kind for group in api.read(tmp_path, LayoutOptions(tp=2)).program.groups} == {Group.TP}


def test_no_number_of_a_read_step_is_missing(tmp_path):
    workload = api.read(write(two_ranks(), tmp_path))
    timeline = workload.timeline
    assert math.isfinite(timeline.step_s)
    assert (timeline.ready_s_N <= timeline.start_s_N).all()
    assert (timeline.start_s_N <= timeline.end_s_N).all()


def test_a_wait_that_held_nobody_up_does_when_its_collective_takes_longer(tmp_path):
    writers = two = [Writer(rank, 2, groups=TP) for rank in (0, 1)]
    for writer in two:
        writer.work("first", 0, 10, 20)
        writer.call("cudaStreamWaitEvent", 3, 4)
        writer.collective(5, 22, 60, seq=1)
        # Hides the collective; what comes next needs its result.
        writer.work("second", 10, 21, 121)
        writer.call("cudaStreamWaitEvent", 15, 16)
        writer.work("third", 20, 122, 150)
    folder = write(writers, tmp_path)
    assert simulate(folder).iteration_time_s == pytest.approx(150 * US)
    slow = simulate(folder, comm="model", busbw_bytes_per_s={"tp": 2e9})
    (reduce,) = slow.collectives
    assert reduce.time_s > 1000 * US
    assert slow.iteration_time_s == pytest.approx(22 * US + reduce.time_s + 29 * US, abs=2 * US)


@pytest.mark.parametrize("batched", [False, True])
def test_messages_of_one_batch_meet_their_other_ends(tmp_path, batched):
    """Two stages exchange an activation and a gradient; batched, one kernel without arguments does both."""
    own = {"group": "5", "desc": "PIPELINE_MODEL_PARALLEL_GROUP"}
    writers = [Writer(rank, 2, groups=[("5", own["desc"], [0, 1])]) for rank in (0, 1)]
    for writer, begin, peer in ((writers[0], 20, 1), (writers[1], 50, 0)):
        writer.work("gemm", 0, 10, begin - 1)
        if not batched:
            writer.collective(6, begin, 90, name="send", target=peer, stream=20, **own)
            writer.collective(7, begin, 90, name="recv", source=peer, stream=21, **own)
            continue
        for at, (name, side) in enumerate((("send", "Dst Rank"), ("recv", "Src Rank"))):
            said = {"Collective name": name, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": 2}
            said |= {"dtype": "BFloat16", "Process Group Name": "5", "Process Group Ranks": "[0, 1]", side: peer}
            writer.op("record_param_comms", 2 + at, 2.5 + at, **{"External id": 500 + at, **said})
        writer.work("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 6, begin, 90, stream=20, external=900)
    workload = api.read(write(writers, tmp_path))
    assert not workload.warnings
    kind_N = workload.ops.kind_T[workload.program.row_N]
    assert [int((kind_N == kind).sum()) for kind in (Kind.SEND, Kind.RECV)] == [2, 2]
    result = simulate(workload)
    assert result.iteration_time_s == pytest.approx(90 * US)
    assert result.ranks[0].breakdown_s["bubble"] == pytest.approx(30 * US)
    assert result.gpu_time[0].comm_s == pytest.approx(70 * US)
    assert result.collectives[0].size_bytes == 2 << 20


def test_a_message_to_a_rank_that_nobody_traced_has_a_price(tmp_path):
    writer = Writer(0, None)
    writer.work("gemm", 0, 10, 60)
    writer.collective(5, 62, 100, name="send", target=8, ranks=[0, 8], group="5", desc="PIPELINE_MODEL_PARALLEL_GROUP")
    path = writer.write(tmp_path / "t.json")
    assert simulate(path).parallel.world_size == 9
    (message,) = simulate(path, comm="model").collectives
    assert (message.op, message.nodes) == ("send_recv", 2)
    assert message.time_s > 20 * US


def test_two_traces_are_compared_part_by_part(tmp_path):
    folders = []
    for name, transfer_us in (("a", 100.0), ("b", 150.0)):
        (tmp_path / name).mkdir()
        folders.append(write(two_ranks(transfer_us=transfer_us), tmp_path / name))
    compared = api.compare(*folders)
    assert compared.parts["tp"].difference_s == pytest.approx(2 * 50 * US)
    assert compared.breakdown["exposed_tp"].difference_s == pytest.approx(50 * US)


def test_the_critical_path_of_a_measured_step_crosses_ranks(tmp_path):
    workload = api.read(write(two_ranks(), tmp_path))
    program = workload.program
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)
    path = critical_path(graph, workload.timeline)
    assert path.time_s_H.sum() == pytest.approx(workload.timeline.step_s)
    named = [(program.ops.name_T[program.row_N[op]], int(program.rank_N[op])) for op in path.op_H]
    # The late rank's first GEMM holds both up.
    assert ("gemm", 1) in named
    assert named.index(("gemm", 1)) < next(at for at, (name, _) in enumerate(named) if "AllReduce" in name)


def test_an_inspection_shows_one_step_of_a_file(tmp_path):
    two_ranks()[1].write(tmp_path / "t.json")
    found = api.inspect(tmp_path / "t.json")
    assert found.layout["rank"] == 1
    assert found.counts["steps"] == 4
    of_group = {(each.group, each.what): each for each in found.totals}
    assert of_group["tp", "all_reduce"].time_s == pytest.approx(100 * US, abs=US)
    assert of_group["compute", "kernel"].count == 2
    (gpu,) = inspection_to_dict(found)["gpu_time"]
    assert gpu["compute_s"] == pytest.approx((160 + 117) * US)


def test_a_trace_without_the_calls_of_the_runtime_is_read(tmp_path):
    writer = Writer()
    writer.work("first", None, 10, 60)
    writer.collective(None, 70, 90, seq=1)
    writer.work("second", None, 100, 120)
    (found,) = simulate(writer.write(tmp_path / "t.json")).gpu_time
    assert (found.compute_s, found.comm_s, found.total_s) == pytest.approx((70 * US, 20 * US, 110 * US))


# --- kernels of libraries that leave no arguments in a trace

SAID = [
    ("void deep_ep::internode::dispatch<false, 8, false, 8>(int4*, float*)", Operation.ALL_TO_ALL, Group.EP),
    ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)", Operation.ALL_TO_ALL, Group.EP),
    ("void deep_ep::intranode::cached_notify_dispatch<8>(int const*, int)", Operation.ALL_TO_ALL, Group.EP),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", Operation.ALL_TO_ALL, Group.EP),
    ("void hybrid_ep::dispatch_kernel<unsigned short, 4>(hybrid_ep::param_t)", Operation.ALL_TO_ALL, Group.EP),
    ("EpCombineIntraNodeKernel_bf16", Operation.ALL_TO_ALL, Group.EP),
    ("nccl_ep_jit_ht_combine", Operation.ALL_TO_ALL, Group.EP),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int, int)", Operation.REDUCE_SCATTER, Group.TP),
    ("void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int, int)", Operation.ALL_GATHER, Group.TP),
    ("kuserbuffers_pushsendrecv(int*, int*, int4*, int4*, int)", Operation.SEND_RECV, Group.TP),
    (
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>()",
        Operation.ALL_REDUCE,
        Group.NONE,
    ),
    (
        "two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true, false>(c10::BFloat16**)",
        Operation.REDUCE_SCATTER,
        Group.NONE,
    ),
    ("multimem_all_gather_kernel<16>(char*, char*)", Operation.ALL_GATHER, Group.NONE),
    ("void mscclpp::collective::allreduceFullmesh<(ReduceOp)0, __half>(__half*)", Operation.ALL_REDUCE, Group.NONE),
    ("void alltoall_on_stream_kernel<int>(int, int*, int const*)", Operation.ALL_TO_ALL, Group.NONE),
    ("ncclDevKernel_Generic(ncclDevComm*)", Operation.NONE, Group.NONE),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        Operation.REDUCE_SCATTER,
        Group.NONE,
    ),
]
LOCAL = [
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<4>(int4*)",
    "void hybrid_ep::scan<256>(bool const*)",
    "kuserbuffers_inc(int*)",
    "void at::native::reduce_kernel<512, 1>()",
    "void dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel()",
    "void moe_permute_kernel<__nv_bfloat16>()",
]


@pytest.mark.parametrize(("kernel", "operation", "group"), SAID)
def test_names_of_kernels_tell_what_libraries_exchange_and_for_whom(kernel, operation, group):
    found = library_kernel(kernel)
    assert (found.operation, found.group) == (operation, group)


@pytest.mark.parametrize("kernel", LOCAL)
def test_what_a_library_computes_for_its_exchange_is_computation(kernel):
    assert library_kernel(kernel) is None


def test_exchanges_of_experts_without_arguments_are_ep_and_their_overlap_is_told(tmp_path):
    """A dispatch of 100 us of which a GEMM of 60 us beside it covers 50."""
    writer = Writer(0, 8)
    writer.work("void deep_ep::internode::dispatch<false, 8, false, 8>(int4*)", 0, 10, 110, stream=27)
    writer.work("gemm", 5, 60, 120)
    writer.work("Memcpy PtoP (Device -> Device)", 8, 130, 140, stream=30, cat="gpu_memcpy")
    result = simulate(writer.write(tmp_path / "rank-0.json"))
    assert result.breakdown_s["exposed_ep"] == pytest.approx(50 * US)
    assert result.breakdown_s["exposed_tp"] == pytest.approx(10 * US)
    assert result.breakdown_s["compute"] == pytest.approx(60 * US)
    (times,) = result.gpu_time
    assert times.comm_s == pytest.approx(110 * US)
    assert "count 1 as tp and 1 as ep" in next(
        each.text for each in result.assumptions if each.code == "groups-not-said"
    )


def test_annotations_tell_the_passes_of_two_microbatches_that_overlap(tmp_path):
    """The main thread marks passes while another thread launches; the engine of gradients counts first."""
    writer = Writer(0, 1)
    marks = (
        ("1F1B", 0, 500),
        ("attn(F)", 10, 100),
        ("mlp(B)", 100, 200),
        ("mlp(W)", 200, 300),
        ("forward_step", 300, 400),
    )
    for name, start, end in marks:
        writer.event("user_annotation", name, start, end, MAIN)
    writer.op("autograd::engine::evaluate_function: MulBackward0", 320, 360, AUTOGRAD)
    launches = {"f": 20, "b": 150, "w": 250, "forward": 310, "engine": 330, "other": 450}
    for name, at in launches.items():
        writer.work(name, at, at + 5, at + 15, tid=AUTOGRAD)
    trace = read_trace(writer.write(tmp_path / "rank-0.json"))
    step = cut(trace, 0, None)
    phases = {
        trace.names[name]: Phase(phase) for name, phase in zip(trace.gpu.name_G[step.at_G], step.phase_G, strict=True)
    }
    assert phases == {
        "f": Phase.FORWARD,
        "b": Phase.BACKWARD,
        "w": Phase.WEIGHT_GRADIENT,
        "forward": Phase.FORWARD,
        "engine": Phase.BACKWARD,
        "other": Phase.FORWARD,
    }


def test_a_trace_that_pytorch_wrote_is_the_step_it_measured():
    """Three steps of one of two A100 under DDP: HTA's test data, whose NCCL kernels say what they sent."""
    found = api.inspect(EXAMPLE)
    assert (found.counts["steps"], found.counts["kernels"], found.counts["events"]) == (3, 2700, 40573)
    result = api.simulate(EXAMPLE, cluster="a100")
    assert result.iteration_time_s == pytest.approx(result.measured_s, rel=1e-3)
    reduced = [each for each in result.collectives if each.op == "all_reduce"]
    assert len(reduced) == 5 and {each.group for each in reduced} == {"world"}
    # Gradients of ResNet-50, 25,557,032 parameters in fp32, and nothing else.
    assert sum(each.size_bytes for each in reduced) == 4 * 25_557_032
    assert result.breakdown_s["other"] > 0.7 * result.iteration_time_s
