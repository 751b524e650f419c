"""The one way to make a workload: what an operation says of itself, what waits for what, what is refused."""

import numpy as np
import pytest

from support import expanded, timed
from traincast.errors import ProgramError
from traincast.job.parallel import Parallel
from traincast.workload.builder import Place, WorkloadBuilder, collective_op, compute_op, host_op, wait_op
from traincast.workload.ops import OperatorCall
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Phase, Provenance, Stream

HERE = Place(0, 7)
CALLS = ((OperatorCall(family="gemm", shape=(8, 8, 8), dtype="bf16"), 1.0),)


def made(**layout):
    return WorkloadBuilder("w", Parallel(**layout), "1f1b")


def gradient(seconds, group=Group.DP, **more):
    return collective_op("grad", Phase.WEIGHT_GRADIENT, group, Operation.ALL_REDUCE, 8, seconds, blocking=False, **more)


@pytest.mark.parametrize(
    ("op", "provenance"),
    [
        (compute_op("a", Phase.FORWARD, 1.0, place=HERE), Provenance.FILE),
        (compute_op("a", Phase.FORWARD, 1.0, place=Place(0)), Provenance.FILE),  # an entry of JSON has no line
        (compute_op("a", Phase.FORWARD, 1.0, place=HERE, assumed=True), Provenance.ASSUMED),
        (compute_op("a", Phase.FORWARD, 1.0), Provenance.UNKNOWN),
        (compute_op("a", Phase.FORWARD, calls=CALLS, place=HERE), Provenance.UNKNOWN),
        (gradient(None, place=HERE), Provenance.UNKNOWN),
        (gradient(0.0, place=HERE), Provenance.FILE),
        (host_op("h", Phase.STEP, 1.0), Provenance.UNKNOWN),
        (wait_op(Stream.DP, place=HERE), Provenance.FILE),
    ],
)
def test_where_a_duration_comes_from_follows_from_what_is_given(op, provenance):
    assert op.provenance is provenance
    assert (op.file, op.line) == (-1, 0) or op.file == 0


def test_what_is_not_said_of_an_operation_is_nothing():
    """No layer, no place, one of it, no work after it; a wait takes no time and is called after its stream."""
    made_ops = (compute_op("a", Phase.FORWARD, 1.0), gradient(1.0), host_op("h", Phase.STEP, 1.0), wait_op(Stream.DP))
    for op in made_ops:
        assert (op.file, op.line, op.layer, op.part) == (-1, 0, -1, None), op.name
        assert (op.repeats, op.process_s, op.loads, op.received_bytes) == (1.0, 0.0, None, None), op.name
        assert not op.unequal, op.name
    assert [op.blocking for op in made_ops] == [True, False, True, True]
    assert (made_ops[3].name, made_ops[3].duration_s, made_ops[3].waits_for) == ("wait_dp", 0.0, Stream.DP)
    assert wait_op(Stream.DP, name="wait_bucket").name == "wait_bucket"
    said = collective_op(
        *("sum", Phase.STEP, Group.EP, Operation.ALL_TO_ALL, 8),
        repeats=3.0,
        dtype="bf16",
        process_s=0.5,
        loads=(0.5, 1.5),
        received_bytes=9,
        unequal=True,
        place=HERE,
        layer=4,
        part="forward_step",
    )
    assert (said.repeats, said.dtype, said.process_s, said.loads) == (3.0, "bf16", 0.5, (0.5, 1.5))
    assert (said.received_bytes, said.unequal, said.size_bytes) == (9, True, 8)
    assert (said.file, said.line, said.layer, said.part, said.blocking) == (0, 7, 4, "forward_step", True)


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.NONE])
def test_a_collective_runs_on_the_stream_of_its_group(group):
    op = gradient(1.0, group)
    assert (op.kind, op.stream, op.group) == (Kind.COLLECTIVE, STREAM_OF_GROUP[group], group)


def test_rows_are_counted_in_the_order_of_writing():
    builder = made()
    first = builder.add(compute_op("a", Phase.FORWARD, 1.0), compute_op("b", Phase.FORWARD, 1.0))
    assert (first, builder.add(), builder.add(compute_op("c", Phase.FORWARD, 1.0))) == ([0, 1], [], [2])
    assert [op.name for op in builder.ops] == ["a", "b", "c"]


def test_what_was_launched_is_waited_for_once_and_in_order():
    builder = made(dp=2, tp=2)
    launched = builder.add(gradient(1.0), gradient(1.0, Group.TP), gradient(2.0), compute_op("a", Phase.STEP, 1.0))
    assert [builder.ops[row].waits_for for row in builder.drained(launched)] == [Stream.DP, Stream.TP]
    # What is waited for among the rows no longer runs; what is launched after that does.
    rows = [*launched, *builder.wait(Stream.DP)]
    assert [builder.ops[row].waits_for for row in builder.drained(rows)] == [Stream.TP]
    rows += builder.add(gradient(1.0))
    assert [builder.ops[row].waits_for for row in builder.drained(rows)] == [Stream.TP, Stream.DP]
    assert builder.drained(builder.add(compute_op("a", Phase.STEP, 1.0))) == []


@pytest.mark.parametrize(("transfer_s", "step_s"), [(0.25, 1.5), (1.0, 1.5), (3.0, 3.5)])
def test_a_transfer_is_hidden_by_what_it_overlaps_with_and_by_nothing_after_it(transfer_s, step_s):
    builder = made(dp=2)
    hiding = builder.add(compute_op("a", Phase.BACKWARD, 1.0))
    rows = builder.overlapped(builder.add(gradient(transfer_s)), hiding)
    rows += builder.add(compute_op("b", Phase.STEP, 0.5))
    template = builder.template()
    template.forward_QM[:] = builder.segment(rows)
    workload = builder.workload(0, forward_only=True)
    assert timed(expanded(workload)).step_s == pytest.approx(step_s)


def test_the_host_overlaps_with_what_it_launches():
    builder = made()
    rows = builder.overlapped(
        builder.add(host_op("h", Phase.FORWARD, 2.0, launches=True)), builder.add(compute_op("a", Phase.FORWARD, 1.0))
    )
    builder.template().forward_QM[:] = builder.segment([*rows, *builder.add(host_op("gap", Phase.STEP, 1.0))])
    assert timed(expanded(builder.workload(0, forward_only=True))).step_s == pytest.approx(3.0)


def test_nothing_runs_where_nothing_was_written():
    builder = made(pp=2, vpp=3, microbatches=4)
    template = builder.template()
    assert template.forward_QM.shape == template.backward_QM.shape == (6, 4)
    assert template.start_P.shape == template.after_forward_P.shape == template.end_P.shape == (2,)
    for numbers in (template.forward_QM, template.backward_QM, template.start_P, template.end_P):
        assert (numbers == -1).all()
    assert builder.segment([]) == -1


def test_message_sizes_are_one_for_all_virtual_stages_or_one_for_each():
    builder = made(pp=2, vpp=2, microbatches=2)
    builder.template()
    assert builder.workload(5).message_bytes_Q.tolist() == [5] * 4
    assert builder.workload([1, 2, 3, 4]).message_bytes_Q.tolist() == [1, 2, 3, 4]


def test_what_was_noted_is_in_the_workload():
    builder = made()
    builder.template()
    builder.notes.assume("a", "text", 3)
    builder.notes.path = "f.txt"
    builder.notes.warn("b", "other", 4)
    workload = builder.workload(0)
    assert [(note.code, note.place) for note in (*workload.assumptions, *workload.warnings)] == [
        ("a", None),
        ("b", "f.txt:4"),
    ]


def test_what_points_at_nothing_is_refused():
    builder = made(tp=2)
    template = builder.template()
    with pytest.raises(ProgramError, match="a rank has template 1 of 1"):
        builder.workload(0, template_W=np.array([0, 1]))
    template.end_P[:] = 0
    with pytest.raises(ProgramError, match="a template has segment 0 of 0"):
        builder.workload(0)
    builder.segment([0])
    with pytest.raises(ProgramError, match="a segment has row 0, but there are 0 operations"):
        builder.workload(0)
    builder.add(compute_op("a", Phase.STEP, 1.0))
    assert len(builder.workload(0).segments) == 1
    builder.segment([0, 3])
    builder.segment([0])
    with pytest.raises(ProgramError, match="a segment has row 3, but there are 1 operations"):
        builder.workload(0)
