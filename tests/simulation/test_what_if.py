"""What-ifs: each change alone and all together, by simulating the step again."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from traincast.errors import ConfigError, TraincastError
from traincast.job.changes import FieldEdit, WorkEdit, parse_change
from traincast.job.draft import Draft
from traincast.report.json import encode, result_to_dict
from traincast.simulation.edits import edited
from traincast.workload.words import Kind

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT = EXAMPLES / "aicb_gpt_405b_1024gpu.txt"
SMALL = {"cluster": "h100", "pp": 4, "microbatches": 4}
SLOW_RANK = EXAMPLES / "megatron_pp4_tp2"
JOB = Draft(
    model="llama3-8b",
    cluster="h100",
    fields={"gpus": 32, "tp": 4, "pp": 2, "seq_length": 4096, "global_batch": 64, "overlap_grad_reduce": False},
)


def steps(result):
    return {each.change: each.iteration_time_s for each in result.what_if}


def test_communication_that_takes_no_time_is_the_ideal_cluster():
    whole = traincast.simulate(GPT, **SMALL, what_if=("comm*0",))
    assert steps(whole)["comm*0"] == traincast.simulate(GPT, **{**SMALL, "cluster": "ideal"}).iteration_time_s
    forecast = traincast.predict(JOB, options=traincast.StepOptions(what_if=("comm*0",)))
    assert steps(forecast)["comm*0"] == pytest.approx(traincast.predict(JOB, "ideal").iteration_time_s, rel=1e-12)


def test_of_a_forecast_a_saving_lies_between_its_ends_and_of_a_file_nobody_knows():
    forecast = traincast.predict(JOB, options=traincast.StepOptions(what_if=("nic_bandwidth=800Gb/s", "tp_comm*1")))
    faster, same = forecast.what_if[:2]
    assert faster.saving_low_s < faster.saving_s < faster.saving_high_s
    assert same.saving_low_s == same.saving_s == same.saving_high_s == 0
    (replayed,) = traincast.simulate(GPT, **SMALL, what_if=("tp_comm*0.5",)).what_if
    assert replayed.saving_low_s is None and replayed.saving_high_s is None


def test_an_empty_what_if_changes_no_byte_and_one_changes_nothing_else():
    plain = traincast.simulate(GPT, **SMALL)
    assert encode(result_to_dict(traincast.simulate(GPT, **SMALL, what_if=()))) == encode(result_to_dict(plain))
    tried = traincast.simulate(GPT, **SMALL, what_if=("tp_comm*0.5",))
    assert replace(tried, what_if=(), run=plain.run) == plain


def test_a_slow_rank_that_computes_as_its_peers():
    found = traincast.simulate(SLOW_RANK, what_if=("rank7.compute=peers",))
    assert 2.75 < steps(found)["rank7.compute=peers"] < 2.90
    healthy = traincast.simulate(GPT, **SMALL, what_if=("rank9.compute=peers",))
    assert steps(healthy)["rank9.compute=peers"] == healthy.iteration_time_s


def test_a_rank_that_is_made_slower_and_then_as_its_peers_is_as_before():
    before = traincast.simulate(GPT, **SMALL).iteration_time_s
    slowed = traincast.simulate(GPT, **SMALL, compute_slowdown={70: 1.5}, what_if=("rank70.own=peers",))
    assert slowed.iteration_time_s > before
    assert steps(slowed)["rank70.own=peers"] == pytest.approx(before, rel=1e-12)


def test_changes_of_fields_are_those_of_the_options_that_say_them():
    changes = ("overlap_grad_reduce=true", "vpp=4", "nic_bandwidth=800Gb/s", "busbw.tp=400GB/s")
    found = traincast.simulate(GPT, **SMALL, what_if=changes)
    assert steps(found)[changes[0]] == traincast.simulate(GPT, **SMALL, overlap_grad_reduce=True).iteration_time_s
    assert steps(found)[changes[1]] == traincast.simulate(GPT, **SMALL, vpp=4).iteration_time_s
    rates = traincast.simulate(GPT, **SMALL, busbw_bytes_per_s={"tp": 400e9}).iteration_time_s
    assert steps(found)[changes[3]] == rates
    assert steps(found)[changes[2]] < found.iteration_time_s
    assert steps(found)["all together"] < min(steps(found)[change] for change in changes)
    for each in found.what_if:
        assert each.saving_s == found.iteration_time_s - each.iteration_time_s


def test_changes_of_a_job():
    changes = ("overlap_grad_reduce=true", "micro_batch=2", "cluster=a100")
    found = steps(traincast.predict(JOB, options=traincast.StepOptions(what_if=changes)))
    other = replace(JOB, fields={**JOB.fields, "overlap_grad_reduce": True})
    assert found[changes[0]] == traincast.predict(other).iteration_time_s
    assert found[changes[2]] == traincast.predict(JOB, "a100").iteration_time_s


def test_a_result_with_what_ifs_runs_again_to_the_same_bytes():
    found = traincast.simulate(GPT, **SMALL, what_if=("tp_comm*0.5", "vpp=2"))
    assert encode(result_to_dict(traincast.run_again(found))) == encode(result_to_dict(found))


def test_work_of_all_stages_together_scales_a_step_without_communication():
    changes = tuple(f"stage{stage}.compute*2" for stage in range(4))
    small = traincast.simulate(GPT, cluster="ideal", pp=4, microbatches=4, what_if=changes)
    assert steps(small)["all together"] == pytest.approx(2 * small.iteration_time_s, rel=1e-9)


def test_a_change_that_changes_nothing_is_said():
    result = traincast.simulate(SLOW_RANK, what_if=("nic_bandwidth=800Gb/s", "host*0"))
    told = [note.text for note in result.warnings if note.code == "what-if-unused"]
    assert len(told) == 1 and told[0].startswith("nic_bandwidth=800Gb/s: ") and "recorded times" in told[0]


@pytest.mark.parametrize("gpus", [8, 64])
def test_links_that_change_nothing_name_what_limits(gpus):
    """Twice the rate of cards that a ring over NVLink does not fill, or that nothing crosses."""
    job = Draft(model="llama3-8b", cluster="h100", fields={"gpus": gpus, "seq_length": 4096, "global_batch": 64})
    result = traincast.predict(job, options=traincast.StepOptions(what_if=("nic_bandwidth=800Gb/s",)))
    told = [note.text for note in result.warnings if note.code == "what-if-unused"]
    limits = {8: "nothing communicates between nodes", 64: "dp is limited by the links of a GPU inside its node (326"}
    assert len(told) == 1
    assert limits[gpus] in told[0]


def test_forms():
    assert parse_change("TP-comm * 0.5") == WorkEdit(work="tp_comm", factor=0.5)
    assert parse_change("stage3.own=Peers") == WorkEdit(work="own", stages=(3,), like="peers")
    assert parse_change("rank7,3.own=peers") == WorkEdit(work="own", ranks=(3, 7), like="peers")
    assert parse_change("compute=even") == WorkEdit(work="compute", like="even")
    assert parse_change("ep_comm=usual") == WorkEdit(work="ep_comm", like="usual")
    assert parse_change("recompute=balanced") == WorkEdit(work="recompute", like="balanced")
    assert parse_change("model=even") == FieldEdit("model", "even")
    assert parse_change("op:attn=fwd*2") == FieldEdit("op:attn", "fwd*2")
    assert parse_change("nic_bandwidth = 800Gb/s") == FieldEdit("nic_bandwidth", "800Gb/s")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("fast", "is not a change"),
        ("compute*-1", "not a factor"),
        ("compute*nan", "not a factor"),
        ("communication*2", "does not name any work"),
        ("compute=peers", "only work of some ranks or stages"),
        ("compute=usual", "communication, such as comm=usual"),
        ("tp_comm=even", "own work, such as compute=even"),
        ("rank0,9999.compute=even", "no rank 9999"),
        ("rank9999.compute=peers", "no rank 9999"),
        ("stage4.compute*2", "no stage 4"),
        ("cp_comm*0.5", "nothing to change"),
        ("op:nothing*2", "no operation is called"),
        ("colour=red", "unknown field"),
        ("vpp=x", "whole number"),
        ("nic_bandwidth=fast", "not a rate"),
        ("cuda_graphs=true", "applies to a job"),
        ("cluster=moon", "unknown cluster"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_reason(change, says):
    with pytest.raises(TraincastError) as caught:
        traincast.simulate(GPT, **SMALL, what_if=(change,))
    assert says in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_the_layout_of_a_workload_of_python_cannot_be_changed():
    workload = traincast.read(GPT)
    with pytest.raises(ConfigError, match="built in Python"):
        traincast.simulate(workload, cluster="h100", what_if=("vpp=2",))


def own_s(result, duration_s_N):
    """Return the seconds of computation of each rank and each stage."""
    program = result.program
    compute_N = program.ops.kind_T[program.row_N] == Kind.COMPUTE
    of = {"rank": program.rank_N, "stage": program.stage_N}
    return {what: np.bincount(number_N[compute_N], duration_s_N[compute_N]) for what, number_N in of.items()}


def test_even_work_keeps_what_ranks_do_and_balanced_work_what_stages_do():
    result = traincast.simulate("examples/megatron_pp4_tp2", cluster="h100")
    before_s_N = result.timeline.duration_s_N
    before = own_s(result, before_s_N)
    for change, kept in (("compute=even", "rank"), ("compute=balanced", "stage")):
        again = own_s(result, edited(result.program, before_s_N, [parse_change(change)]))
        assert again[kept] == pytest.approx(before[kept])
    ranks_of_stage = again["rank"].reshape(4, 2)
    assert ranks_of_stage[:, 0] == pytest.approx(ranks_of_stage[:, 1])
    assert before["rank"][7] > 2 * before["rank"][6]


def test_usual_transfers_are_never_longer_and_leave_own_work_alone():
    result = traincast.simulate("examples/megatron_pp4_tp2", cluster="h100")
    before_s_N = result.timeline.duration_s_N
    after_s_N = edited(result.program, before_s_N, [parse_change("comm=usual")])
    assert (after_s_N <= before_s_N).all()
    assert (after_s_N < before_s_N).any()
    assert own_s(result, after_s_N)["rank"] == pytest.approx(own_s(result, before_s_N)["rank"], rel=1e-12)
