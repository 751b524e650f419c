"""A small step made by hand: 2 stages, tp 2 (folded), 2 microbatches, one microsecond a tick."""

import io

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from traincast.analysis.gpu_time import GpuTime, StreamIdle
from traincast.analysis.summary import Interval
from traincast.analysis.timed_program import timed_program
from traincast.diagnostics import Note
from traincast.files import InputFile
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.simulation.result_records import (
    ClusterFacts,
    CollectiveResult,
    MemoryResult,
    ParallelFacts,
    PartResult,
    RankResult,
    StragglerResult,
    WhatIfResult,
)
from traincast.workload.ops import Op, table_of
from traincast.workload.program import GroupInstance, Program, Timeline
from traincast.workload.words import Group, Kind, Operation, Phase, Provenance, Stream

TICK_S = 1.1e-6
"""No whole number of nanoseconds after division, so that rounding is put to the test."""

OPS = [
    Op(
        name='mlp, "fused"',
        kind=Kind.COMPUTE,
        phase=Phase.FORWARD,
        layer=3,
        file=0,
        line=12,
        provenance=Provenance.FILE,
    ),
    Op(
        name="all_reduce",
        kind=Kind.COLLECTIVE,
        phase=Phase.FORWARD,
        stream=Stream.TP,
        group=Group.TP,
        operation=Operation.ALL_REDUCE,
        size_bytes=2**20,
        provenance=Provenance.PRICED,
    ),
    Op(name="send", kind=Kind.SEND, phase=Phase.FORWARD, stream=Stream.SEND_FORWARD, group=Group.PP, size_bytes=4096),
    Op(
        name="receive", kind=Kind.RECV, phase=Phase.FORWARD, stream=Stream.RECV_FORWARD, group=Group.PP, size_bytes=4096
    ),
    Op(name="wait", kind=Kind.WAIT, phase=Phase.FORWARD, waits_for=Stream.RECV_FORWARD),
    Op(name="optimizer", kind=Kind.GAP, phase=Phase.STEP, file=0),
]

# rank, row, microbatch, virtual stage, group, ready, start, end (ticks)
RUNS = [
    (0, 0, 0, 0, -1, 0, 0, 3),
    (0, 1, 0, 0, 0, 3, 5, 6),
    (0, 2, 0, 0, 2, 6, 6, 7),
    (0, 0, 1, 0, -1, 6, 6, 9),
    (0, 1, 1, 0, 0, 9, 9, 10),
    (0, 2, 1, 0, 2, 10, 11, 12),
    (0, 5, -1, -1, -1, 10, 10, 13),
    (2, 3, 0, 0, 2, 0, 6, 7),
    (2, 4, 0, 1, -1, 7, 7, 7),
    (2, 0, 0, 1, -1, 7, 7, 11),
    (2, 3, 1, 0, 2, 7, 11, 12),
    (2, 4, 1, 1, -1, 12, 12, 12),
    (2, 0, 1, 1, -1, 12, 12, 16),
    (2, 5, -1, -1, -1, 16, 16, 17),
]


def make_program(ranks=(0, 2)):
    """The two hand-made ranks, or more of them: even ones like rank 0, odd ones like rank 2."""
    by_rank = [[run for run in RUNS if run[0] == rank] for rank in (0, 2)]
    runs, pointers = [], [0]
    for position, rank in enumerate(ranks):
        runs += [(rank, *run[1:]) for run in by_rank[position % 2]]
        pointers.append(len(runs))
    table = np.array(runs, dtype=np.int64)
    times = table[:, 5:] * TICK_S
    empty = np.zeros(0, dtype=np.int32)
    program = Program(
        ops=table_of(OPS),
        rank_N=table[:, 0],
        row_N=table[:, 1],
        microbatch_N=table[:, 2],
        virtual_stage_N=table[:, 3],
        group_N=table[:, 4],
        peer_stage_N=np.full(len(table), -1),
        rendezvous_N=np.full(len(table), -1),
        edge_src_E=empty,
        edge_dst_E=empty,
        groups=tuple(
            GroupInstance(kind, np.array(members))
            for kind, members in ((Group.TP, [0, 1]), (Group.TP, [2, 3]), (Group.PP, [0, 2]))
        ),
        rank_R=np.array(ranks),
        stage_R=np.array([position % 2 for position in range(len(ranks))]),
        represents_R=np.array([2] * len(ranks)),
        op_ptr_R1=np.array(pointers),
    )
    timeline = Timeline(
        ready_s_N=times[:, 0], start_s_N=times[:, 1], end_s_N=times[:, 2], duration_s_N=times[:, 2] - times[:, 1]
    )
    return program, timeline


def breakdown(**ticks):
    return {key: ticks.get(key, 0) * TICK_S for key in BREAKDOWN_KEYS}


def make_rank(rank, stage, measured_end=None, after=0, **ticks):
    """Return a rank that waits `after` its end for the end of the step."""
    values = breakdown(**{**ticks, "other": ticks.get("other", 0) + after})
    return RankResult(
        rank=rank,
        stage=stage,
        represents=2,
        end_s=sum(ticks.values()) * TICK_S,
        compute_s=values["compute"],
        wait_s=2 * TICK_S,
        breakdown_s=values,
        measured_end_s=None if measured_end is None else measured_end * TICK_S,
    )


def make_collective(size_bytes, count=4):
    return CollectiveResult(
        group="tp",
        op="all_reduce",
        size_bytes=size_bytes,
        ranks=2,
        nodes=1,
        count=count,
        time_s=1e-12 * size_bytes,
        algorithm="ring",
        protocol="LL128",
    )


def memory(activations):
    other = {"parameters": 2**30, "gradients": 2**29, "optimizer": 2**29, "other": 0.0}
    return MemoryResult(activations=activations, **other, peak=2**31 + activations)


@pytest.fixture
def result():
    program, timeline = make_program()
    return Result(
        iteration_time_s=17 * TICK_S,
        breakdown_s=breakdown(compute=8, exposed_tp=0.5, exposed_pp=1.5, bubble=6, other=1),
        ranks=(
            make_rank(0, 0, 13, compute=6, exposed_tp=4, other=3, after=4),
            make_rank(2, 1, 18, compute=8, exposed_pp=2, bubble=6, other=1),
        ),
        parallel=ParallelFacts(
            world_size=4, dp=1, tp=2, pp=2, vpp=1, cp=1, ep=1, etp=2, microbatches=2, schedule="1f1b"
        ),
        collectives=tuple(make_collective(2**size) for size in range(20, 31)),
        inputs=(InputFile(path="job, one.txt", format="aicb", sha256="00" * 32),),
        cluster=ClusterFacts(
            name="h100", description="eight a node", gpu="H100", gpu_tdp_w=700.0, gpus_per_node=8, nodes=1, ideal=False
        ),
        assumptions=(Note("ga", "ga is absent: 2 microbatches from the number of blocks " * 3, "job, one.txt:1"),),
        warnings=tuple(Note("odd", f"[red]row {row} is odd[/red]", f"job, one.txt:{row}") for row in range(9)),
        interval=Interval(level=0.9, low_s=16 * TICK_S, high_s=19 * TICK_S),
        mfu=0.412,
        memory_bytes=(memory(activations=2**30), memory(activations=2**31)),
        stragglers=(StragglerResult(rank=2, stage=1, slowdown=1.25, cost_s=2 * TICK_S),),
        what_if=(WhatIfResult(change="no stragglers", iteration_time_s=15 * TICK_S, saving_s=2 * TICK_S),),
        measured_s=18 * TICK_S,
        parts=(
            PartResult(rank=0, part="forward_step", time_s=6 * TICK_S, measured_s=5 * TICK_S),
            PartResult(rank=0, part="host_gap", time_s=3 * TICK_S),
            PartResult(rank=2, part="forward_step", time_s=8 * TICK_S, measured_s=8 * TICK_S),
        ),
        gpu_time=(
            GpuTime(
                rank=0,
                total_s=12 * TICK_S,
                compute_s=6 * TICK_S,
                exposed_comm_s=3 * TICK_S,
                exposed_copy_s=0.0,
                idle_s=3 * TICK_S,
                comm_s=4 * TICK_S,
                copy_s=TICK_S,
                streams=(StreamIdle(stream=0, host_wait_s=TICK_S, kernel_wait_s=TICK_S, other_s=TICK_S),),
            ),
        ),
        version="0.1.0",
        timed=timed_program(program, timeline),
    )


@pytest.fixture
def many_ranks(result):
    """Twenty simulated ranks; rank 14 ends last, rank 9 computes longest."""
    program, timeline = make_program(tuple(range(20)))
    ranks = [make_rank(rank, rank % 2, compute=6, other=3) for rank in range(20)]
    ranks[14] = make_rank(14, 0, compute=6, other=30)
    ranks[9] = make_rank(9, 1, compute=9)
    return replace(result, timed=timed_program(program, timeline), ranks=tuple(ranks))


@pytest.fixture
def shown():
    """Print something as on no terminal of 80 columns, and return the text."""

    def show(printer, subject, encoding="utf-8", width=80, **options):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        printer(Console(file=stream, width=width, force_terminal=False, _environ={}), subject, **options)
        stream.flush()
        return stream.buffer.getvalue().decode(encoding)

    return show
