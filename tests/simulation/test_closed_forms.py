"""Steps that can be worked out with a pencil: equal stages, free or constant messages."""

import pytest

import traincast
from support import pipeline_rows, row, write_aicb, write_pipeline

F_NS, B_NS = 1200, 2520
WORK_S = (F_NS + B_NS) * 1e-9
X_NS = 70
BUSBW = {"busbw_bytes_per_s": {"pp": 1000 / (X_NS * 1e-9)}}
"""Makes a message of 1000 bytes take X_NS on the ideal cluster."""


def step_s(path, **options):
    return traincast.simulate(path, cluster="ideal", **options).iteration_time_s


def near(seconds):
    return pytest.approx(seconds, rel=1e-9)


@pytest.fixture
def pipeline(tmp_path):
    def write(p, v, m, *, f_ns=F_NS, b_ns=B_NS, message_bytes=1000, layers=None):
        path = tmp_path / "workload.txt"
        return write_pipeline(path, f_ns=f_ns, b_ns=b_ns, p=p, v=v, m=m, message_bytes=message_bytes, layers=layers)

    return write


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 2), (2, 7), (3, 2), (4, 4), (4, 9), (8, 3), (8, 16), (16, 16)])
def test_equal_stages_take_m_plus_p_minus_1_turns(pipeline, schedule, p, m):
    assert step_s(pipeline(p, 1, m), schedule=schedule) == near((m + p - 1) * WORK_S)


@pytest.mark.parametrize(
    ("p", "v", "m"),
    [(2, 2, 2), (2, 2, 8), (2, 5, 4), (3, 2, 3), (3, 3, 9), (4, 2, 4), (4, 2, 16), (4, 4, 8), (8, 2, 16), (8, 3, 8)],
)
def test_interleaving_divides_the_bubble_by_v(pipeline, p, v, m):
    assert step_s(pipeline(p, v, m)) == near((m + (p - 1) / v) * WORK_S)


def test_interleaved_with_one_virtual_stage_is_as_long_as_1f1b(pipeline):
    assert step_s(pipeline(4, 1, 6), schedule="interleaved") == near(9 * WORK_S)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 5), (4, 2, 6), (4, 3, 2), (3, 2, 7)])
def test_microbatches_that_are_no_multiple_of_p(pipeline, p, v, m):
    """No shorter than what the last stage does and waits for, no longer than the next multiple."""
    found = step_s(pipeline(p, v, m))
    above = m + -m % p
    assert (m + (p - 1) / v) * WORK_S * (1 - 1e-9) <= found <= (above + (p - 1) / v) * WORK_S * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_a_single_stage_takes_m_turns(pipeline, schedule):
    assert step_s(pipeline(1, 1, 7), schedule=schedule) == near(7 * WORK_S)


def test_a_single_stage_with_virtual_stages_takes_m_turns(pipeline):
    assert step_s(pipeline(1, 1, 6, layers=3), vpp=3) == near(6 * WORK_S)


@pytest.mark.parametrize(("p", "v"), [(2, 1), (2, 3), (4, 2), (5, 4), (8, 8)])
def test_one_microbatch_walks_all_virtual_stages(pipeline, p, v):
    """P*V virtual stages of (f + b) / V each; nothing overlaps, and the result says so."""
    result = traincast.simulate(pipeline(p, v, 1), cluster="ideal")
    assert result.iteration_time_s == near(p * WORK_S)
    assert "single-microbatch" in {note.code for note in result.warnings}
    # Every stage works a P-th of the time.
    assert [rank.compute_s for rank in result.ranks] == [near(WORK_S)] * p


@pytest.mark.parametrize(("p", "v"), [(2, 1), (2, 3), (4, 2), (5, 4)])
def test_one_microbatch_pays_for_every_message(pipeline, p, v):
    messages = 2 * (p * v - 1)
    assert step_s(pipeline(p, v, 1), **BUSBW) == near(p * WORK_S + messages * X_NS * 1e-9)


@pytest.mark.parametrize("m", [1, 2, 3, 8])
def test_two_stages_with_messages_by_hand(pipeline, m):
    """F0, x, then m turns of f + b on stage 1 with an exchange after each, then the last backward of stage 0."""
    assert step_s(pipeline(2, 1, m), schedule="1f1b", **BUSBW) == near((m + 1) * (WORK_S + X_NS * 1e-9))


def megatron_1f1b(p, m, f, b, x):
    """Run Megatron-LM's forward_backward_pipelining_without_interleaving, call by call, and return the step.

    A program is a list of calls: ("work", time), or ("exchange", messages), which are posted together
    and end when all of them have; a message starts when it is posted on both sides and takes x.
    A message is (stage it leaves in forward direction, microbatch, whether it goes forward).
    """
    programs = []
    for s in range(p):
        warmup = min(p - s - 1, m)
        calls = []

        def exchange(*messages, calls=calls):
            kept = [each for each in messages if 0 <= each[0] < p - 1]
            if kept:
                calls.append(("exchange", kept))

        for i in range(warmup):
            exchange((s - 1, i, True))
            calls.append(("work", f))
            exchange((s, i, True))
        if m > warmup:
            exchange((s - 1, warmup, True))
        for i in range(m - warmup):
            calls.append(("work", f))
            exchange((s, warmup + i, True), (s, i, False))
            calls.append(("work", b))
            if i == m - warmup - 1:
                exchange((s - 1, i, False))
            else:
                exchange((s - 1, i, False), (s - 1, warmup + i + 1, True))
        for i in range(m - warmup, m):
            exchange((s, i, False))
            calls.append(("work", b))
            exchange((s - 1, i, False))
        programs.append(calls)
    return _run_calls(programs, x)


def _run_calls(programs, x):
    clock, at, posted = [0.0] * len(programs), [0] * len(programs), {}
    moved = True
    while moved:
        moved = False
        for s, calls in enumerate(programs):
            while at[s] < len(calls):
                what, value = calls[at[s]]
                if what == "work":
                    clock[s] += value
                else:
                    for each in value:
                        posted.setdefault(each, {})[s] = clock[s]
                    if any(len(posted[each]) < 2 for each in value):
                        break
                    clock[s] = max(max(posted[each].values()) + x for each in value)
                at[s] += 1
                moved = True
    assert at == [len(calls) for calls in programs]
    return max(clock)


@pytest.mark.parametrize("x_ns", [0, 70, 1000, 40_000])
@pytest.mark.parametrize(("p", "m"), [(2, 5), (3, 1), (3, 8), (4, 3), (4, 4), (4, 12), (8, 16)])
def test_1f1b_with_messages_is_megatrons_program(pipeline, p, m, x_ns):
    """The step with blocking messages, short or long, and two bounds that are worked out by hand."""
    options = {"busbw_bytes_per_s": {"pp": 1000 / (x_ns * 1e-9)}} if x_ns else {}
    found = step_s(pipeline(p, 1, m), schedule="1f1b", **options)
    x_s = x_ns * 1e-9
    assert found == near(megatron_1f1b(p, m, F_NS * 1e-9, B_NS * 1e-9, x_s))
    # The last stage waits for P - 1 forwards, has an exchange between its turns, and P - 1 backwards follow.
    assert found >= ((m + p - 1) * WORK_S + (2 * (p - 1) + m - 1) * x_s) * (1 - 1e-9)
    # At most a receive before and a send after each piece of work.
    assert found <= (m + p - 1) * (WORK_S + 4 * x_s) * (1 + 1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (2, 2, 16), (4, 2, 8), (4, 2, 16), (2, 3, 8), (3, 3, 9)])
def test_interleaved_hides_messages_behind_work(pipeline, p, v, m):
    """Only the ramps pay: the first microbatch's walk in and the last one's walk out, however many lie between."""
    ramps_s = 2 * (p * v - 1) * X_NS * 1e-9
    assert step_s(pipeline(p, v, m), **BUSBW) == near((m + (p - 1) / v) * WORK_S + ramps_s)


def test_an_unequal_stage_sets_the_pace(tmp_path):
    """The first of two stages has an embedding of e: (m + 1) f and b turns, and e once for each microbatch."""
    m, e_ns = 5, 300
    rows = [row("embedding_layer", e_ns), row("attention_layer", F_NS, B_NS)] * m
    path = write_aicb(tmp_path / "w.txt", rows, pp=2, ga=m, pp_comm=1000)
    # Stage 0 is never idle but for the turn of its first backward on stage 1.
    found = traincast.simulate(path, cluster="ideal", schedule="gpipe")
    forwards = m * (F_NS + e_ns) + F_NS
    assert found.iteration_time_s == near((forwards + (m + 1) * B_NS) * 1e-9)


def test_microbatches_may_differ(tmp_path):
    rows = [line for f_ns in (100, 900, 100) for line in pipeline_rows(f_ns, 0, 1)]
    path = write_aicb(tmp_path / "w.txt", rows, pp=2, ga=3, pp_comm=1000)
    # gpipe, forwards: 100 + 900 on stage 0, then 900 + 100 on stage 1.
    assert step_s(path, schedule="gpipe") == near(2000e-9)
    # A fourth microbatch repeats the last block.
    assert step_s(path, schedule="gpipe", microbatches=4) == near(2100e-9)


def test_gpus_change_dp_and_never_the_microbatches(pipeline):
    path = pipeline(2, 1, 4)
    results = [traincast.simulate(path, cluster="ideal", gpus=gpus) for gpus in (2, 4, 12)]
    assert [result.parallel.dp for result in results] == [1, 2, 6]
    assert {result.parallel.microbatches for result in results} == {4}
    assert [result.iteration_time_s for result in results] == [near(5 * WORK_S)] * 3


def test_once_per_step_rows_run_once(tmp_path):
    rows = [
        row("norm", 10),
        row("grad_param_compute", 0, 20, 0),
        *pipeline_rows(F_NS, B_NS, 3),
        row("cross_entropy1", 40),
        row("optimizer1", 80),
    ]
    path = write_aicb(tmp_path / "w.txt", rows, ga=3)
    assert step_s(path) == near(3 * WORK_S + 150e-9)


def test_the_loss_is_on_the_last_stage_only(tmp_path):
    rows = [*pipeline_rows(F_NS, B_NS, 2), row("cross_entropy1", 40)]
    path = write_aicb(tmp_path / "w.txt", rows, pp=2, ga=2, pp_comm=1000)
    busy = {rank.stage: rank.compute_s for rank in traincast.simulate(path, cluster="ideal").ranks}
    assert busy == {0: near(2 * WORK_S), 1: near(2 * WORK_S + 40e-9)}
