"""Exchanges with experts that another microbatch's work hides: by dependencies, never by a share that is given."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from job_parts import TINY_ALL, TINY_EXPERTS, job_of
from support import ALONE, run_job
from traincast.estimate.contention import held_multiprocessors
from traincast.estimate.factors import CostFactors
from traincast.hardware.clusters import load_cluster
from traincast.job.options import SimulateOptions
from traincast.model.dispatch import DISPATCHERS
from traincast.workload.words import Group, Kind, Phase, Stream

H100 = load_cluster("h100")
NOTHING_LEARNT = CostFactors()
WIDE = replace(
    TINY_EXPERTS, hidden=4096, attention=replace(TINY_EXPERTS.attention, heads=32, kv_heads=8, head_dim=128),
    experts=replace(TINY_EXPERTS.experts, ffn_hidden=8192, shared_ffn_hidden=0, capacity_factor=1.0),
)  # fmt: skip
"""Experts that compute far longer than their tokens travel at the rates below; how many come is fixed."""


def run(job, cluster=H100, *, rate=None, engine="auto", **more):
    busbw = {} if rate is None else {"busbw_bytes_per_s": {"ep": rate}}
    return run_job(job, cluster, SimulateOptions(**ALONE, **busbw, **more), NOTHING_LEARNT, engine=engine)


def without_host(job):
    """Return a job whose host launches in no time, and whose exchanges take no multiprocessors from its GEMMs."""
    bare = {"host_layer_s": 0.0, "p2p_handover_s": 0.0, "step_fixed_s": 0.0}
    return replace(job, framework=replace(job.framework, **bare))


def spans(done, rows_N):
    timeline = done.step.timeline
    return timeline.end_s_N[rows_N] - timeline.start_s_N[rows_N]


def rows(done, *, kind=None, group=None):
    program = done.step.program
    found_N = np.ones(len(program.row_N), dtype=bool)
    if kind is not None:
        found_N &= program.ops.kind_T[program.row_N] == kind
    if group is not None:
        found_N &= program.ops.group_T[program.row_N] == group
    return found_N


def exposed_s(done):
    """Return how long the first rank neither computes nor is done, but exchanges tokens with experts."""
    program, timeline = done.step.program, done.step.timeline
    mine = program.rank_slice(0)
    computing = sorted(
        (start, end)
        for start, end, is_compute in zip(
            timeline.start_s_N[mine], timeline.end_s_N[mine], rows(done, kind=Kind.COMPUTE)[mine], strict=True
        )
        if is_compute and end > start
    )
    total = 0.0
    for start, end in zip(
        timeline.start_s_N[mine][rows(done, group=Group.EP)[mine]],
        timeline.end_s_N[mine][rows(done, group=Group.EP)[mine]],
        strict=True,
    ):
        hidden = sum(max(0.0, min(end, until) - max(start, since)) for since, until in computing)
        total += end - start - hidden
    return total


@st.composite
def layouts(draw):
    pp, microbatches = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 6))
    schedule, vpp = draw(st.sampled_from([("1f1b", 1), ("interleaved", 1), ("interleaved", 2), ("dualpipe_v", 2)]))
    if pp == 1:
        schedule, vpp = "1f1b", 1
    if schedule == "dualpipe_v":
        microbatches = 2 * pp + microbatches
    ep = draw(st.sampled_from([2, 4]))
    return {
        "gpus": ep * pp, "pp": pp, "vpp": vpp, "schedule": schedule, "ep": ep,
        "global_batch": ep * microbatches, "delay_wgrad": draw(st.booleans()),
        "moe_dispatcher": draw(st.sampled_from(sorted(DISPATCHERS))), "zero": draw(st.sampled_from([0, 1])),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }  # fmt: skip


def both(model, layout):
    """Return a job with its exchanges overlapped, and without."""
    plain = {name: value for name, value in layout.items() if name != "delay_wgrad"}
    return job_of(model, **layout, moe_a2a_overlap=True), job_of(model, **plain, moe_a2a_overlap=False)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(), dense=st.booleans())
def test_the_step_is_bounded_and_folding_and_engines_change_no_bit(layout, dense):
    """Never shorter than what one stream has to do, never longer than all ranks' work one after the other."""
    job, _ = both(TINY_ALL if dense else TINY_EXPERTS, layout)
    options = SimulateOptions()
    done = run_job(job, H100, options, NOTHING_LEARNT, engine="reference")
    flat = run_job(job, H100, SimulateOptions(unfold=True), NOTHING_LEARNT, engine="kernel")
    assert done.step_s == flat.step_s
    busy = np.bincount(flat.step.program.stream_N, spans(flat, slice(None)))
    met_N = flat.step.program.rendezvous_N
    _, first = np.unique(met_N[met_N >= 0], return_index=True)
    lengths_N = spans(flat, slice(None))
    serialised_s = lengths_N[met_N < 0].sum() + lengths_N[met_N >= 0][first].sum()
    assert busy.max() * (1 - 1e-9) <= flat.step_s <= serialised_s * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(layout=layouts())
def test_overlap_moves_the_same_bytes_and_runs_the_same_work(layout):
    """What is hidden is done all the same: bytes over each group, seconds of GEMMs on each rank."""

    def volumes(done):
        program = done.step.program
        sent_N = (program.ops.size_bytes_T * program.ops.repeats_T)[program.row_N]
        computed = spans(done, rows(done, kind=Kind.COMPUTE)).sum()
        return [sent_N[rows(done, group=group)].sum() for group in (Group.EP, Group.DP, Group.EDP)], computed

    # No exchange may hold multiprocessors, so that a computation takes the same time.
    found = []
    for job in both(TINY_EXPERTS, layout):
        done = run(job)
        found.append((*volumes(done), done.step.workload.exchange_sms))
    (on, on_s, held), (off, off_s, nothing_held) = found
    assert on == pytest.approx(off, rel=1e-12)
    assert held == DISPATCHERS[layout["moe_dispatcher"]].sms
    assert nothing_held == 0
    assert off_s <= on_s * (1 + 1e-12) <= off_s * 132 / (132 - held) * (1 + 1e-9)


@pytest.mark.parametrize("microbatches", [1, 2, 5])
@pytest.mark.parametrize("delay", [False, True])
def test_only_the_first_forward_and_the_last_backward_pass_show_where_work_is_long(microbatches, delay):
    """One stage: the first forward pass is alone, as is the last backward pass; their four exchanges stay in sight.

    Weight gradients of experts, where delayed, hide the last of them.
    """
    # Of 2024: tokens take no weights of the router with them.
    layout = {"gpus": 4, "ep": 4, "global_batch": 4 * microbatches, "framework": "megatron-core-2024"}
    job = without_host(job_of(WIDE, **layout, moe_a2a_overlap=True, delay_wgrad=delay))
    done = run(job, rate=2e11)
    each_s = spans(done, rows(done, group=Group.EP))
    assert len(each_s) == 4 * microbatches
    assert each_s == pytest.approx(each_s[0])
    assert exposed_s(done) == pytest.approx((3 if delay else 4) * each_s[0], rel=1e-6)


def test_what_nothing_hides_is_serial():
    """One microbatch has no other to be hidden by: the step is that without overlap, to the last bit of its sum."""
    layout = {"gpus": 4, "ep": 4, "global_batch": 4, "moe_dispatcher": "alltoall"}
    on, off = (without_host(job_of(WIDE, **layout, moe_a2a_overlap=value)) for value in (True, False))
    assert run(on).step_s == pytest.approx(run(off).step_s, rel=1e-9)


@pytest.mark.parametrize("layout", [{"gpus": 4, "ep": 4}, {"gpus": 8, "pp": 2, "vpp": 2, "ep": 4}])
def test_a_slower_network_is_never_faster_and_overlap_never_shows_more_of_it(layout):
    shown, steps = [], []
    for rate in (4e11, 1e11, 2.5e10, 6e9):
        on, off = (
            run(without_host(job_of(WIDE, **layout, global_batch=32, moe_a2a_overlap=value)), rate=rate)
            for value in (True, False)
        )
        assert exposed_s(on) <= exposed_s(off) * (1 + 1e-9)
        shown.append(exposed_s(on))
        steps.append(on.step_s)
    assert all(one < two for one, two in pairwise(steps))
    assert all(one < two for one, two in pairwise(shown))
    # Where tokens travel far longer than anything computes, one rank's exchanges are the step, or nearly so.
    moved_s = spans(on, rows(on, group=Group.EP)).sum() / len(on.step.program.rank_R)
    assert on.step_s < 1.35 * moved_s


@pytest.mark.parametrize("pp", [2, 4])
def test_pairs_of_stages_keep_the_pipeline_full(pp):
    """A further microbatch costs one pair of passes, as without overlap: no stage waits for its own pair to return."""
    steps, turns = [], []
    for microbatches in (16, 17):
        layout = {"gpus": 2 * pp, "pp": pp, "ep": 2, "global_batch": 2 * microbatches}
        job = without_host(job_of(WIDE, **layout, moe_a2a_overlap=True, moe_dispatcher="alltoall"))
        done = run(job, rate=1e12)
        steps.append(done.step_s)
        computing_N = rows(done, kind=Kind.COMPUTE)
        turns.append(np.bincount(done.step.program.rank_N[computing_N], spans(done, computing_N)))
    assert steps[1] - steps[0] == pytest.approx((turns[1] - turns[0]).max(), rel=0.02)


@pytest.mark.parametrize(
    "layout", [{"gpus": 8, "ep": 8}, {"gpus": 16, "pp": 2, "ep": 8}, {"gpus": 8, "tp": 2, "ep": 8}]
)
def test_shared_experts_hide_exchanges_of_their_layer(layout):
    """The same bytes and work; what shows is less, by no more than the shared experts take, which hide it."""
    shared = replace(WIDE, experts=replace(WIDE.experts, shared_ffn_hidden=8192))
    found = {}
    for on in (True, False):
        job = without_host(job_of(shared, **layout, global_batch=32, moe_shared_expert_overlap=on))
        found[on] = run(job, rate=1e11)
    for group in (Group.EP, Group.TP):
        moved = [
            (done.step.program.ops.size_bytes_T * done.step.program.ops.repeats_T)[
                done.step.program.row_N[rows(done, group=group)]
            ].sum()
            for done in found.values()
        ]
        assert moved[0] == pytest.approx(moved[1], rel=1e-12)
    assert exposed_s(found[True]) < exposed_s(found[False])
    program = found[True].step.program
    shared_N = np.array(["shared experts" in name for name in program.ops.name_T])[program.row_N]
    hides_s = spans(found[True], shared_N & (program.rank_N == 0)).sum()
    assert exposed_s(found[False]) - exposed_s(found[True]) <= hides_s * (1 + 1e-9)
    assert found[True].step_s < found[False].step_s


def test_multiprocessors_that_exchanges_hold_slow_gemms_down_and_nothing_else():
    done = run(job_of(WIDE, gpus=4, ep=4, global_batch=16, moe_a2a_overlap=True))
    program = done.step.program
    slowed_T = held_multiprocessors(program, 20, 132)
    assert slowed_T.max() <= 20 / 112
    assert slowed_T[program.ops.kind_T != Kind.COMPUTE].max() == 0
    assert (slowed_T[program.ops.kind_T == Kind.COMPUTE] > 0).any()
    for nothing in (held_multiprocessors(program, 0, 132), held_multiprocessors(program, 20, None)):
        assert not nothing.any()


def test_each_exchange_is_waited_for_by_what_needs_it():
    """Tokens out before the experts, experts before the way back, and that before the pass ends."""
    job = job_of(WIDE, gpus=4, ep=4, global_batch=16, moe_a2a_overlap=True, delay_wgrad=True)
    workload = run(job).step.workload
    template, ops = workload.templates[0], workload.ops
    forward = workload.segments[int(template.forward_QM[0, 0])]
    backward = workload.segments[int(template.backward_QM[0, 0])]
    for segment, experts in ((forward, "experts forward"), (backward, "experts backward")):
        names = [ops.name_T[row] for row in segment]
        launches = [at for at, row in enumerate(segment) if ops.stream_T[row] == Stream.EP]
        waits = [at for at, row in enumerate(segment) if ops.waits_for_T[row] == Stream.EP]
        assert len(launches) == len(waits) == 2
        assert launches[0] < waits[0] < names.index(experts) < launches[1] < waits[1]
    delayed = [ops.name_T[row] for row in backward].index("experts weight gradient")
    assert launches[1] < delayed < waits[1]
    weights = [row for row in backward if ops.phase_T[row] == Phase.WEIGHT_GRADIENT]
    assert len(weights) >= 2
