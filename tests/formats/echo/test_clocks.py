"""Hosts, and one clock for all of them: offsets that are known by construction come back."""

import random
import re
from pathlib import Path

import pytest

from traincast.formats.echo.clocks import align
from traincast.formats.echo.files import RankTrace, Run, parse_name, read_runs
from traincast.formats.echo.grammar import parse
from traincast.formats.echo.lines import fused_pairs

EXAMPLES = Path(__file__).parents[3] / "examples"
SEND_LATE_MS = 0.35


def line_of(rank, op, batch, end_ms, duration_ms=1.0, state="steady"):
    return (
        f"rank:{rank}:{op}(stage_id=0,batch_id={batch},mg_state={state},duration={duration_ms:.2f},description=None,"
        f"group_kind=pp,input__shape=[8, 1, 4],input__dtype=torch.float16,timestamp={end_ms:.2f},sub_operations=[])"
    )


def run_of(lines_by_rank):
    traces = {}
    for rank, lines in lines_by_rank.items():
        path = Path(f"r_rank{rank}.txt")
        traces[rank] = RankTrace(path, rank, parse(str(path), "\n".join(lines)), parse_name(path))
    return Run("r", traces)


def pipeline(clock_ms, world, pp, microbatches=8, directions=("forward", "backward"), seed=3):
    """Write a run in which every stage sends to the next and back; a receiver ends a little later."""
    noise = random.Random(seed)  # noqa: S311 it only spreads the ends
    stride = world // pp
    lines = {rank: [line_of(rank, "forward_step", 0, clock_ms[rank] + 5.0, 5.0)] for rank in clock_ms}
    for batch in range(microbatches):
        for direction in directions:
            for rank in clock_ms:
                to = rank + (stride if direction == "forward" else -stride)
                if to in clock_ms:
                    end = 10.0 + 100 * batch + rank + (50 if direction == "backward" else 0)
                    late = SEND_LATE_MS + noise.uniform(-0.15, 0.15)
                    lines[rank].append(line_of(rank, f"send_{direction}", batch, clock_ms[rank] + end))
                    lines[to].append(line_of(to, f"recv_{direction}", batch, clock_ms[to] + end + late))
    return run_of(lines)


def check(alignment, clock_ms, tolerance_ms):
    base = min(clock_ms)
    found = {rank: (offset - alignment.offset_s[base]) * 1e3 for rank, offset in alignment.offset_s.items()}
    assert found == pytest.approx({rank: clock - clock_ms[base] for rank, clock in clock_ms.items()}, abs=tolerance_ms)


def test_two_hosts_are_aligned_within_two_tenths_of_a_millisecond():
    clock_ms = {rank: 11_488_701_335.83 if rank < 8 else 11_488_701_335.83 - 604_781_214.69 for rank in range(16)}
    alignment = align(pipeline(clock_ms, 16, 2), 16, 2)
    assert alignment.hosts == (tuple(range(8)), tuple(range(8, 16)))
    (note,) = alignment.notes
    assert note.code == "clocks-aligned"
    assert "ranks 8 to 15 is 604781.214" in note.text and "s behind it" in note.text
    check(alignment, clock_ms, 0.2)
    # the first start of any rank is zero
    assert alignment.offset_s[0] * 1e3 == pytest.approx(11_488_701_335.83, abs=0.2)


def test_a_chain_of_hosts_is_aligned_message_by_message():
    clock_ms = {rank: 1e9 * (1 + rank // 8 % 3) + 1e6 * (rank // 8) for rank in range(32)}
    check(align(pipeline(clock_ms, 32, 4), 32, 4), clock_ms, 0.3)


def test_hosts_booted_within_an_hour_are_told_by_their_messages():
    clock_ms = {rank: 5e8 + 90_000 * (rank // 8) for rank in range(16)}
    alignment = align(pipeline(clock_ms, 16, 2), 16, 2)
    assert len(alignment.hosts) == 2
    check(alignment, clock_ms, 0.2)


def test_messages_in_one_direction_leave_their_delay():
    clock_ms = {rank: 1e9 * (1 + rank // 2) for rank in range(4)}
    alignment = align(pipeline(clock_ms, 4, 2, directions=("forward",)), 4, 2)
    assert [note.code for note in alignment.notes] == ["clocks-aligned", "clock-one-way"]
    check(alignment, clock_ms, SEND_LATE_MS + 0.2)


def test_hosts_without_messages_are_aligned_by_their_first_start():
    clock_ms = {0: 1e9, 1: 1e9, 2: 3e9, 3: 3e9}
    alignment = align(pipeline(clock_ms, 4, 1), 4, 1)
    assert alignment.hosts == ((0, 1), (2, 3))
    assert [note.code for note in alignment.notes] == ["clock-by-first-start"]
    assert "ranks 2 to 3" in alignment.notes[0].text
    check(alignment, clock_ms, 1e-3)


def test_clocks_that_read_alike_without_messages_are_taken_as_the_same():
    clock_ms = {rank: 1e9 + rank for rank in range(16)}
    alignment = align(pipeline(clock_ms, 16, 1), 16, 1)
    assert [note.code for note in alignment.notes] == ["clock-taken-as-same"]
    assert len(set(alignment.offset_s.values())) == 1


def test_ranks_of_one_host_keep_their_clock():
    (run,) = read_runs([EXAMPLES / "megatron_pp4_tp2"])
    alignment = align(run, 8, 4)
    assert alignment.hosts == (tuple(range(8)),)
    assert set(alignment.offset_s.values()) == {min(trace.first_start_s for trace in run.traces.values())}
    ends = {rank: max(op.end_s for op in trace.ops) - alignment.offset_s[rank] for rank, trace in run.traces.items()}
    assert ends[7] == pytest.approx(3.8555, abs=1e-4)
    assert ends[0] == pytest.approx(3.8008, abs=1e-4)


def shifted(shift_s, ranks):
    """Return the example run with some ranks on another clock, and what its own clocks gave."""
    (run,) = read_runs([EXAMPLES / "megatron_pp4_tp2"])
    traces = dict(run.traces)
    for rank in ranks:
        text = re.sub(
            r"\btimestamp=([0-9.]+)", lambda ms: f"timestamp={float(ms[1]) + 1e3 * shift_s:.2f}",
            traces[rank].path.read_text(),
        )  # fmt: skip
        path = traces[rank].path
        traces[rank] = RankTrace(path, rank, parse(str(path), text), traces[rank].name)
    return Run(run.key, traces)


@pytest.mark.parametrize("shift_s", [0.05, 5.0, -5.0, 1800.0, 7200.0])
@pytest.mark.parametrize("ranks", [(4, 5, 6, 7), (2, 3), (4, 5), (2, 3, 6, 7), (7,)])
def test_nodes_of_fewer_than_eight_are_told_by_what_they_ended_together(shift_s, ranks):
    alignment = align(shifted(shift_s, ranks), 8, 4)
    assert alignment.hosts == tuple(sorted([tuple(sorted({*range(8)} - {*ranks})), ranks]))
    check(alignment, {rank: 1e3 * shift_s * (rank in ranks) for rank in range(8)}, 0.2)
    (note,) = alignment.notes
    assert note.code == "clocks-aligned"
    assert ("ahead of" if shift_s > 0 else "behind") in note.text


def test_three_hosts_among_eight_ranks_are_not_confused():
    run, later = shifted(5.0, (2, 3)), shifted(9.0, (4, 5, 6, 7))
    alignment = align(Run(run.key, {**run.traces, **{rank: later.traces[rank] for rank in range(4, 8)}}), 8, 4)
    # ranks 0 and 4 exchange nothing: their clocks differ by what stands between them
    assert alignment.hosts == ((0, 1), (2, 3), (4, 5, 6, 7))
    check(alignment, {0: 0, 1: 0, 2: 5e3, 3: 5e3, 4: 9e3, 5: 9e3, 6: 9e3, 7: 9e3}, 0.5)
    assert "ranks 2 to 3 is 4.9997 s ahead" in alignment.notes[0].text


@pytest.mark.parametrize("other", [(4, 5, 6, 7), (2, 3), (5,)])
def test_pipelines_that_share_no_collective_are_joined_by_their_starts(other):
    clock_ms = {rank: 1e8 + 5_000 * (rank in other) for rank in range(8)}
    alignment = align(pipeline(clock_ms, 8, 2), 8, 2)
    assert len(alignment.hosts) == 2
    check(alignment, clock_ms, 0.2)


def collectives(clock_ms, tp, noise_ms=0.02):
    """Write ranks that only come together in synchronous collectives; an asynchronous one ends anywhere."""
    noise = random.Random(5)  # noqa: S311 it only spreads the ends
    traces = {}
    for rank, clock in clock_ms.items():
        subs = [
            f"trace_src_func={source},duration=0.50,timestamp={clock + end + noise.uniform(-noise_ms, noise_ms):.2f},"
            f"input__shape=[8],input__dtype=torch.float16,func_name={source},group=tp,comm_func=allreduce"
            for source, end in [("normlinear_bwd_async", 2.0 + 90 * (rank % 2))] * 5 + [("allreduce", 50.0)] * 4
        ]
        line = line_of(rank, "forward_step", 0, clock + 100.0, 100.0).replace("sub_operations=[]", "")
        path = Path(f"wd{len(clock_ms)}_tp{tp}_pp1_rank{rank}.txt")
        text = f"{line.removesuffix(')')}sub_operations={subs!r})"
        traces[rank] = RankTrace(path, rank, parse(str(path), text), parse_name(path))
    return Run("r", traces)


def test_a_tensor_group_over_two_hosts_is_aligned_by_its_collectives():
    clock_ms = {rank: 1e8 + 30_000 * (rank // 4) for rank in range(8)}
    alignment = align(collectives(clock_ms, 8), 8, 1)
    assert alignment.hosts == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [note.code for note in alignment.notes] == ["clocks-aligned"]
    check(alignment, clock_ms, 0.1)


@pytest.mark.parametrize(("tp", "noise_ms"), [(2, 0.02), (4, 200.0)])
def test_collectives_that_were_not_one_rendezvous_tell_nothing(tp, noise_ms):
    # neighbours of different groups, or a wrong degree in the name: the ends are not alike
    clock_ms = {rank: 1e8 + 40 * (rank // 2) for rank in range(4)}
    alignment = align(collectives(clock_ms, tp, noise_ms), 4, 1)
    assert alignment.hosts == ((0, 1, 2, 3),)
    assert len(set(alignment.offset_s.values())) == 1


def test_a_receiver_that_comes_late_is_no_other_clock():
    """Small messages are sent before they are received, so the ends differ by how late the receiver is."""
    lines = {
        0: [line_of(0, "send_forward", 0, 10.0), line_of(0, "recv_backward", 0, 800.0)],
        1: [line_of(1, "recv_forward", 0, 300.0, 299.0), line_of(1, "send_backward", 0, 700.0)],
    }
    for kept in (2, 1):
        alignment = align(run_of({rank: each[:kept] for rank, each in lines.items()}), 2, 2)
        assert alignment.hosts == ((0, 1),)
        assert alignment.notes == ()


def test_messages_in_one_direction_count_if_the_starts_agree_with_them():
    clock_ms = {rank: 1e8 + 5_000 * (rank // 2) for rank in range(4)}
    alignment = align(pipeline(clock_ms, 4, 2, directions=("forward",)), 4, 2)
    assert alignment.hosts == ((0, 1), (2, 3))
    assert [note.code for note in alignment.notes] == ["clocks-aligned", "clock-one-way"]
    check(alignment, clock_ms, SEND_LATE_MS + 0.2)


def test_few_ranks_of_a_run_are_aligned_as_far_as_they_met():
    run = shifted(5.0, (4, 5, 6, 7))
    assert align(Run("r", {rank: run.traces[rank] for rank in (3, 5)}), 8, 4).hosts == ((3,), (5,))
    apart = align(Run("r", {rank: run.traces[rank] for rank in (5, 7)}), 8, 4)
    assert (apart.hosts, apart.notes) == (((5, 7),), ())
    assert align(Run("r", {0: run.traces[0]}), 8, 4).hosts == ((0,),)


def test_a_rank_without_times_does_not_disturb():
    lines = {0: [line_of(0, "forward_step", 0, 0, 0)], 1: [line_of(1, "forward_step", 0, 7.0, 2.0)]}
    alignment = align(run_of(lines), 2, 1)
    assert alignment.offset_s == {0: pytest.approx(0.005), 1: pytest.approx(0.005)}
    assert alignment.hosts == ((1,),)
    assert align(run_of({0: lines[0]}), 1, 1).offset_s == {0: 0.0}


def test_a_fused_exchange_is_two_lines_of_one_span():
    lines = [
        line_of(0, "send_forward", 0, 10.0, 1.0),
        line_of(0, "recv_backward", 0, 20.0, 5.0),
        line_of(0, "send_forward", 1, 30.0, 5.0),
        line_of(0, "recv_backward", 1, 30.0, 5.0),
        line_of(0, "send_forward", 2, 30.0, 5.0),
        line_of(0, "send_backward", 2, 40.0, 5.0),
        line_of(0, "recv_forward", 2, 40.0, 5.0),
        line_of(0, "forward_step", 2, 40.0, 5.0),
        line_of(0, "send_forward", 3, 0, 0),
        line_of(0, "recv_backward", 3, 0, 0),
    ]
    assert fused_pairs(parse("t.txt", "\n".join(lines))) == [(2, 3), (5, 6)]
