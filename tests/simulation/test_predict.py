"""A job's step: closed forms, bounds and symmetries of the whole chain from a description to a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from support import ALONE, run_job
from traincast.errors import InfeasibleError
from traincast.estimate.factors import CostFactors
from traincast.hardware.clusters import load_cluster
from traincast.job.options import SimulateOptions
from traincast.lowering.launches import step_fixed_s
from traincast.lowering.plans import plan_of_job
from traincast.model.counts import model_flops_per_token
from traincast.simulation.job_step import estimated_work
from traincast.simulation.step import Setting, run_step
from traincast.workload.words import Kind

IDEAL, H100 = load_cluster("ideal"), load_cluster("h100")
PLAIN = SimulateOptions(**ALONE)
NOTHING_LEARNT = CostFactors()
BIG = replace(TINY, name="big", layers=16, hidden=4096, ffn_hidden=14336, vocab=32000,
              attention=replace(TINY.attention, heads=32, kv_heads=8, head_dim=128))  # fmt: skip


def step_s(job, cluster=H100, options=PLAIN, **more):
    return run_job(job, cluster, options, NOTHING_LEARNT, **more).step_s


def without_host(job, step_fixed_s=0.0):
    """Return a job whose host launches in no time."""
    framework = replace(job.framework, host_layer_s=0.0, p2p_handover_s=0.0, step_fixed_s=step_fixed_s)
    return replace(job, framework=framework)


def turn_s(done):
    """Return the time of a forward and a backward pass on each stage, and that of what ends a step there, [P]."""
    ops, template = done.step.workload.ops, done.step.workload.templates[0]

    def busy(segment):
        rows = done.step.workload.segments[segment]
        return float(ops.duration_s_T[rows][ops.kind_T[rows] == Kind.COMPUTE].sum())

    stages = done.job.parallel.pp
    turns = [busy(template.forward_QM[q, 0]) + busy(template.backward_QM[q, 0]) for q in range(stages)]
    return np.array(turns), np.array([busy(template.end_P[q]) for q in range(stages)])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 4), (2, 1), (4, 4), (4, 12), (8, 16)])
def test_pipeline_takes_one_turn_of_each_stage_and_the_others_of_the_slowest(schedule, pp, microbatches):
    """Equal stages but for the head on the last, which is the slowest: sum + (M - 1) max."""
    job = job_of(BIG, cluster="ideal", gpus=pp, pp=pp, global_batch=microbatches, schedule=schedule)
    done = run_job(without_host(job, step_fixed_s=0.25), IDEAL, PLAIN, NOTHING_LEARNT)
    turns_P, end_P = turn_s(done)
    assert np.ptp(turns_P[1:-1]) <= 1e-12 if pp > 2 else True
    assert turns_P.argmax() == pp - 1
    expected = step_fixed_s(done.job) + turns_P.sum() + (microbatches - 1) * turns_P.max()
    # The first stage is the last to finish its passes; the norm of the gradients joins all before the update.
    assert done.step_s == pytest.approx(expected + end_P.max(), rel=1e-6)


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(2, 2, 4), (4, 4, 8), (4, 2, 16)])
def test_interleaving_divides_the_bubble(pp, vpp, microbatches):
    job = job_of(BIG, cluster="ideal", gpus=pp, pp=pp, vpp=vpp, global_batch=microbatches)
    plain = job_of(BIG, cluster="ideal", gpus=pp, pp=pp, global_batch=microbatches)
    step, busy = [], []
    for each in (job, plain):
        done = run_job(without_host(each), IDEAL, PLAIN, NOTHING_LEARNT)
        step.append(done.step_s)
        ops, template = done.step.workload.ops, done.step.workload.templates[0]
        held = [q for q in range(pp * each.parallel.vpp) if plan_of_job(each).placement[0][q] == 0]
        rows = np.concatenate([done.step.workload.segments[int(of_QM[q, 0])] for q in held
                               for of_QM in (template.forward_QM, template.backward_QM)])  # fmt: skip
        busy.append(float(ops.duration_s_T[rows][ops.kind_T[rows] == Kind.COMPUTE].sum()))
    assert busy[0] == pytest.approx(busy[1], rel=1e-9)
    # The head's work on the last stage is paid for by both; what is saved is bubble alone.
    saved = (pp - 1) * busy[0] * (1 - 1 / vpp)
    assert step[1] - step[0] == pytest.approx(saved, rel=0.05)


def test_more_microbatches_add_a_turn_of_the_slowest_stage_each():
    few, many = (
        run_job(without_host(job_of(BIG, cluster="ideal", gpus=4, pp=4, global_batch=batch)), IDEAL, PLAIN,
                NOTHING_LEARNT) for batch in (8, 24)
    )  # fmt: skip
    assert many.step_s - few.step_s == pytest.approx(16 * turn_s(few)[0].max(), rel=1e-6)


def test_smaller_microbatches_fill_the_pipeline():
    """Of one global batch: the bubble is (P - 1) / (M + P - 1), and 4096 tokens fill a GPU as well as 8192."""
    times = [step_s(without_host(job_of(BIG, gpus=4, pp=4, global_batch=16, seq_length=4096, micro_batch=micro)),
                    IDEAL) for micro in (1, 2, 4, 8)]  # fmt: skip
    assert times == sorted(times)
    assert times[2] / times[0] == pytest.approx((4 + 3) / 4 / ((16 + 3) / 16), rel=0.1)


@pytest.mark.parametrize("layout", [{}, {"gpus": 8, "tp": 2, "pp": 4}, {"gpus": 4, "zero": 3}])
def test_a_faster_gpu_is_never_slower(layout):
    job, gpu = job_of(BIG, **layout), H100.gpu
    rates = ("hbm_bytes_per_s", "bf16_dense_flops_per_s", "fp16_dense_flops_per_s", "fp32_dense_flops_per_s")
    faster = replace(gpu, **{name: 1.5 * getattr(gpu, name) for name in rates})
    found = []
    for each in (gpu, faster):
        workload, _ = estimated_work(job, each, NOTHING_LEARNT)
        found.append(run_step(workload, Setting.from_options(PLAIN, H100)).timeline.step_s)
    assert found[0] / 1.5 <= found[1] < found[0]


@pytest.mark.parametrize("cluster", ["h100", "ideal"])
@pytest.mark.parametrize("layout", [{}, {"gpus": 8, "tp": 4, "pp": 2}, {"gpus": 16, "tp": 2, "cp": 2, "zero": 3}])
def test_no_step_is_shorter_than_its_flops_at_the_peak(layout, cluster):
    job = job_of(BIG, **layout, seq_length=4096)
    peak = H100.gpu.peak_flops_per_s("bf16") * job.parallel.world_size
    bound = model_flops_per_token(job.model, job.batch.seq_length) * job.batch.tokens_per_step / peak
    assert step_s(job, load_cluster(cluster)) > bound


@pytest.mark.parametrize("switch", ["overlap_grad_reduce", "overlap_param_gather", "overlap_tp"])
@pytest.mark.parametrize("layout", [{"gpus": 16, "tp": 8}, {"gpus": 16, "tp": 2, "pp": 2, "vpp": 2}])
def test_overlap_does_not_cost_where_it_slows_nothing_down(switch, layout):
    on, off = (job_of(BIG, **layout, zero=1, **{switch: value}, global_batch=32) for value in (True, False))
    assert step_s(on) <= step_s(off) * (1 + 1e-9)


def test_overlap_hides_the_gradients():
    on, off = (job_of(BIG, gpus=16, zero=1, overlap_grad_reduce=value, global_batch=16) for value in (True, False))
    assert step_s(on) < 0.99 * step_s(off)


@pytest.mark.parametrize(("gpus", "doublings"), [(8, 0), (16, 1), (64, 3)])
def test_nodes_that_wait_for_one_another_make_all_computation_longer_and_nothing_else(gpus, doublings):
    job = job_of(BIG, gpus=gpus, zero=3, global_batch=gpus)
    plain, waiting = (
        run_job(job, replace(H100, inter=replace(H100.inter, skew=skew)), PLAIN).step.workload.ops
        for skew in (1e-9, 0.05)
    )
    compute_T = plain.kind_T == Kind.COMPUTE
    longer_T = waiting.duration_s_T / np.where(plain.duration_s_T, plain.duration_s_T, 1)
    assert longer_T[compute_T] == pytest.approx(1 + 0.05 * doublings)
    assert waiting.duration_s_T[~compute_T] == pytest.approx(plain.duration_s_T[~compute_T], nan_ok=True)


def test_free_communication_is_never_slower():
    for layout in ({"gpus": 16, "tp": 8}, {"gpus": 16, "zero": 3}, {"gpus": 8, "pp": 8}):
        job = job_of(BIG, **layout, global_batch=16)
        assert step_s(job, IDEAL) < step_s(job)


@st.composite
def layouts(draw):
    tp, cp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    schedule, vpp = draw(st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved", 1), ("interleaved", 2)]))
    vpp = vpp if pp > 1 else 1
    dp, experts = draw(st.sampled_from([1, 2, 3])), draw(st.booleans())
    count = pp * vpp
    cuts = sorted(draw(st.lists(st.integers(0, TINY.layers), min_size=count - 1, max_size=count - 1)))
    zero = draw(st.integers(0, 3))
    given = {
        "gpus": tp * cp * pp * dp, "tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "schedule": schedule, "zero": zero,
        "global_batch": dp * draw(st.integers(1, 5)), "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "stage_layers": tuple(np.diff([0, *cuts, TINY.layers]).tolist()),
        "sequence_parallel": draw(st.booleans()),
        **{name: draw(st.booleans()) for name in ("overlap_grad_reduce", "overlap_param_gather", "overlap_tp")},
    }  # fmt: skip
    if zero and dp * cp % 2 == 0 and draw(st.booleans()):
        given["shard"] = 2
    if experts:
        given |= {"ep": draw(st.sampled_from([each for each in (1, 2, 4) if tp * cp * dp % each == 0])), "etp": 1}
    return (TINY_EXPERTS if experts else TINY), given


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts())
def test_every_layout_runs_and_folding_and_engines_change_no_bit(layout):
    """Stages of any number of layers, none among them; every rank alone and one for all like it."""
    model, given = layout
    try:
        job = job_of(model, **given)
    except InfeasibleError:
        return
    options = SimulateOptions()
    folded = run_job(job, H100, options, NOTHING_LEARNT, engine="reference")
    unfolded = run_job(job, H100, SimulateOptions(unfold=True), NOTHING_LEARNT, engine="kernel")
    assert folded.step_s == unfolded.step_s > 0
    held = np.isin(unfolded.step.program.rank_N, folded.step.program.rank_R)
    np.testing.assert_array_equal(np.sort(folded.step.timeline.end_s_N), np.sort(unfolded.step.timeline.end_s_N[held]))


def test_every_slot_of_a_stage_without_layers_is_there():
    """A stage with the head alone still passes messages on."""
    job = job_of(gpus=4, pp=4, stage_layers=(3, 3, 2, 0), vpp=None)
    done = run_job(job, H100, PLAIN, NOTHING_LEARNT)
    assert (done.step.workload.templates[0].forward_QM >= 0).any(axis=1).tolist() == [True, True, True, True]
    middle = run_job(job_of(gpus=4, pp=4, stage_layers=(4, 0, 0, 4), vpp=None), H100, PLAIN, NOTHING_LEARNT)
    # No work, but a message each way over all three boundaries for each of the 8 microbatches.
    assert (middle.step.workload.templates[0].forward_QM >= 0).any(axis=1).tolist() == [True, False, False, True]
    sent = middle.step.program.ops.kind_T[middle.step.program.row_N] == Kind.SEND
    assert sent.sum() == 2 * 3 * 8


def test_host_time_binds_small_work_and_hides_behind_large():
    def of(model, host_s):
        job = job_of(model)
        return step_s(replace(job, framework=replace(job.framework, host_layer_s=host_s)))

    assert of(BIG, 1e-4) == pytest.approx(of(BIG, 0.0), rel=1e-9)
    slow = of(TINY, 0.01)
    # 8 layers, 8 microbatches; 11 launches forward, and 4 more backward, where each GEMM is two.
    assert slow >= 8 * 8 * 0.01 * (1 + 15 / 11)
    assert slow == pytest.approx(8 * 8 * 0.01 * (1 + 15 / 11) + of(TINY, 0.0), rel=0.2)
