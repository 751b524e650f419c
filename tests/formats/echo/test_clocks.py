"""Hosts, and one clock for all of them: offsets that are known by construction come back."""

import random
from pathlib import Path

import pytest

from traincast.formats.echo.clocks import align, fused_pairs
from traincast.formats.echo.files import RankTrace, Run, read_runs
from traincast.formats.echo.grammar import parse
from traincast.formats.echo.names import parse_name

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
    assert alignment.notes == ()
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
    assert [note.code for note in alignment.notes] == ["clock-one-way"]
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
    ends = {rank: trace.last_end_s - alignment.offset_s[rank] for rank, trace in run.traces.items()}
    assert ends[7] == pytest.approx(3.8555, abs=1e-4)
    assert ends[0] == pytest.approx(3.8008, abs=1e-4)


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
