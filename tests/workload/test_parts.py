"""What a rank spent in each part, and of it waiting; times are written by hand."""

import numpy as np
from msgspec.structs import replace

from support import collective, compute
from traincast.workload.builder import host_op, wait_op
from traincast.workload.ops import Op, table_of
from traincast.workload.parts import step_parts
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation, Phase, Stream


def piece(op, part="forward_step"):
    return replace(op, part=part)


def message(kind, *, blocking=True):
    name = f"{kind.name.lower()}_forward"
    stream = Stream.SEND_FORWARD if kind is Kind.SEND else Stream.RECV_FORWARD
    common = {"phase": Phase.FORWARD, "group": Group.PP, "operation": Operation.SEND_RECV, "size_bytes": 8}
    return Op(name=name, part=name, kind=kind, stream=stream, blocking=blocking, **common)


def spent(*runs):
    """Return the parts of a rank that ran (operation, ready, start, end)."""
    count = len(runs)
    none, empty = np.full(count, -1, dtype=np.int32), np.zeros(0, dtype=np.int32)
    program = Program(
        ops=table_of([run[0] for run in runs]),
        row_N=np.arange(count),
        rank_N=np.zeros(count, dtype=np.int32),
        microbatch_N=none,
        virtual_stage_N=none,
        peer_stage_N=none,
        group_N=none,
        rendezvous_N=none,
        edge_src_E=empty,
        edge_dst_E=empty,
        groups=(),
        rank_R=np.array([0]),
        stage_R=np.array([0]),
        represents_R=np.array([1]),
        op_ptr_R1=np.array([0, count]),
    )
    ready, start, end = (np.array([run[place] for run in runs], dtype=np.float64) for place in (1, 2, 3))
    (parts,) = step_parts(program, Timeline(ready_s_N=ready, start_s_N=start, end_s_N=end, duration_s_N=end - start))
    return parts


def test_what_stands_before_a_collective_begins_is_waiting():
    work, reduction = piece(compute(1)), piece(collective(1))
    assert spent((work, 0, 0, 2), (reduction, 2, 5, 6), (work, 6, 6, 9)) == {"forward_step": (9, 3)}


def test_waiting_beside_other_work_of_the_part_is_none():
    """An asynchronous collective is awaited from 1 to 4, while a GEMM runs from 1 to 3."""
    launch, work = piece(collective(1, blocking=False)), piece(compute(1))
    assert spent((work, 0, 0, 1), (launch, 1, 4, 6), (work, 1, 1, 3)) == {"forward_step": (6, 1)}


def test_parts_one_after_the_other_are_apart():
    work, reduction = piece(compute(1)), piece(collective(1), "dp_allreduce")
    found = spent((work, 0, 0, 2), (reduction, 2, 3, 4), (work, 4, 4, 5))
    assert found == {"forward_step": (3, 0), "dp_allreduce": (2, 1)}


def test_a_send_and_the_receive_posted_with_it_are_one_exchange():
    together = message(Kind.SEND, blocking=False), message(Kind.RECV)
    assert spent((together[0], 0, 3, 4), (together[1], 0, 3, 5)) == {"send_forward": (5, 3)}
    after = message(Kind.SEND), message(Kind.RECV)
    assert spent((after[0], 0, 3, 4), (after[1], 4, 6, 7)) == {"send_forward": (4, 3), "recv_forward": (3, 2)}


def test_waiting_is_a_part_of_the_time_of_each_span():
    work, reduction = piece(compute(1)), piece(collective(1))
    runs, now = [], 0.0
    for _ in range(5):
        runs += [(work, now, now, now + 2), (reduction, now + 2, now + 2.5, now + 3)]
        runs.append((piece(compute(1), "loss_func"), now + 3, now + 3, now + 4))
        now += 4
    assert spent(*runs) == {"forward_step": (15, 2.5), "loss_func": (5, 0)}


def test_a_part_that_a_trace_calls_wait_is_shown_and_an_unnamed_wait_is_not():
    traced, unnamed = piece(compute(1), "wait"), wait_op(Stream.COMPUTE)
    assert spent((traced, 0, 0, 2), (unnamed, 2, 2, 2), (compute(1), 2, 2, 3)) == {"wait": (2, 0), "forward": (1, 0)}


def test_what_no_trace_names_goes_by_what_it_is():
    """A computation by its phase, a communication by its group, and what the host does by that."""
    gap = host_op("launch", Phase.FORWARD, 1.0)
    backward, reduction = compute(1, phase=Phase.BACKWARD), collective(1.0, Group.DP)
    found = spent((gap, 0, 0, 1), (backward, 1, 1, 3), (reduction, 3, 4, 7))
    assert found == {"host_gap": (1, 0), "backward": (2, 0), "dp": (4, 1)}
