"""Uneven pipelines and stages of MTP layers alone: what stages hold, send and sum, and that alike ranks are alike."""

import pytest
from msgspec.structs import replace

import traincast
from job_parts import TINY, TINY_EXPERTS, job_of, workload_of
from traincast.estimate.memory import stage_memory
from traincast.job.draft import Draft
from traincast.job.pipeline_layout import parse_layout
from traincast.lowering.held import held_by_stages
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stages_of
from traincast.model.counts import parameters
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group

MTP = replace(TINY_EXPERTS, name="tiny with MTP", mtp_layers=2)
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb_h1": 1, "zb_v": 2, "dualpipe": 1, "dualpipe_v": 2}
"""Schedule, and the virtual stages of each stage that it is tested with."""
LAYOUTS = {
    1: ("Et*3|t*3|ttmm|L", "E|t*4|t*4|mmL", "Et*6|t|t|mmL"),
    2: ("Et|t|tt|t||tt|tmm|L", "E|t|t|t|t|tt|t|tmmL", "Et|t*3||t|t|t|tmm|L"),
}
"""By virtual stages of each of 4 stages: MTP layers and loss apart, ends alone, and uneven ones."""


def draft(model=MTP, **fields):
    given = {"gpus": 8, "pp": 4, "global_batch": 12, "seq_length": 1024, "framework": "megatron-core-2025"}
    return Draft(model=model, cluster="h100", fields=given | fields)


def predicted(**fields):
    return traincast.predict(draft(**fields), allow_oom=True)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES.items())
def test_uneven_stages_folded_are_all_ranks(schedule, virtual):
    for layout in LAYOUTS[virtual]:
        one = draft(schedule=schedule, pipeline_layout=layout, ep=2)
        folded = traincast.predict(one, allow_oom=True)
        every = traincast.predict(one, allow_oom=True, options=traincast.StepOptions(unfold=True))
        assert folded.iteration_time_s == every.iteration_time_s
        assert folded.breakdown_s == every.breakdown_s
        assert folded.memory_bytes == every.memory_bytes
        assert len(folded.ranks) < len(every.ranks) == 8


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES.items())
def test_a_layout_of_the_even_split_is_the_even_split(schedule, virtual):
    even = {1: "Ett|tt|tt|ttmmL", 2: "Et|t|t|t|t|t|t|tmmL"}[virtual]
    plain = predicted(schedule=schedule, vpp=virtual)
    written = predicted(schedule=schedule, pipeline_layout=even)
    assert written.job.pipeline_layout == plain.job.pipeline_layout == str(parse_layout(even))
    assert replace(written, run=None, assumptions=()) == replace(plain, run=None, assumptions=())
    assert predicted(schedule=schedule, stage_layers=plain.job.stage_layers).iteration_time_s == plain.iteration_time_s


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES.items())
def test_what_stages_hold_is_the_model_and_its_copies_of_the_table(schedule, virtual, tied):
    """Every layer, both ends and every MTP layer once; a table for each rank that reads it, in every copy."""
    model = replace(MTP, tied_embeddings=tied)
    for layout in LAYOUTS[virtual]:
        job = job_of(model, gpus=4, pp=4, vpp=None, schedule=schedule, pipeline_layout=layout)
        plan, table = plan_of_job(job), job.kernels.padded_vocab * model.hidden
        held = held_by_stages(job, plan)
        assert [index for each in held for index in each.layers] == list(range(model.layers))
        assert sum(each.mtp_layers for each in held) == model.mtp_layers
        assert [each.first for each in held].count(True) == [each.last for each in held].count(True) == 1
        readers = [0, job.pipeline.mtp_stage_index] + ([len(held) - 1] if tied else [])
        ranks = [frozenset(placement[reader] for placement in plan.placement) for reader in readers]
        whole = parameters(model, job.kernels.padded_vocab).trained + (len(set(ranks)) - 1) * table
        assert sum(stage.weights().total for stage in stages_of(job, 8)) == whole
        peaks = stage_memory(job, plan)
        assert sum(stage.parameters for stage in peaks) == 2 * whole * len(plan.placement)


def test_mtp_layers_alone_send_their_states_on_and_sum_the_table():
    """The head's stage gets three hidden states of a token: the model's, and one of each MTP layer."""
    job = job_of(MTP, gpus=8, pp=4, pipeline_layout="Et*4|t*4|mm|L")
    work, one = workload_of(job), 1024 * TINY.hidden * 2
    assert work.message_bytes_Q.tolist()[:3] == [one, one, 3 * one]
    tied = job_of(replace(MTP, tied_embeddings=True), gpus=8, pp=4, pipeline_layout="Et*4|t*4|mm|L")
    for found, expected in ((work, [[0, 4], [1, 5]]), (workload_of(tied), [[0, 4, 6], [1, 5, 7]])):
        groups = rank_groups(found.parallel, [Group.EMB], found.table_stages)
        assert groups[Group.EMB].members_GK.tolist() == expected


def test_a_stage_of_the_loss_alone_takes_its_time_from_the_others():
    """With the loss and the MTP layers apart their stages compute what the last one did before, but for the layers."""
    together, apart = (predicted(pipeline_layout=each) for each in ("E|t*4|t*4|mmL", "E|t*4|t*4mm|L"))
    works = [{rank.stage: rank.compute_s for rank in result.ranks} for result in (together, apart)]
    assert works[0][0] == pytest.approx(works[1][0], rel=1e-9)
    assert works[0][1] == pytest.approx(works[1][1], rel=1e-9)
    moved = works[1][2] - works[0][2]
    assert moved > 0
    assert works[0][3] - works[1][3] == pytest.approx(moved, rel=0.05)


def test_a_result_names_what_stages_hold():
    result = predicted(pipeline_layout="Et*3|t*3|ttmm|L")
    assert result.job.stages == ("Ettt", "ttt", "ttmm", "L")
    assert result.job.pipeline_layout == "Ettt|ttt|ttmm|L"
    two_ways = predicted(schedule="dualpipe", pipeline_layout="Et*3|t*3|ttmm|L")
    assert two_ways.job.stages == ("Ettt|L", "ttt|ttmm", "ttmm|ttt", "L|Ettt")
    again = traincast.run_again(result)
    assert again.iteration_time_s == result.iteration_time_s


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_memory_of_mtp_layers_goes_where_they_are(recompute):
    """Their activations and the embedding's table are on their own stage; in flight are as many as it holds."""
    apart = job_of(MTP, gpus=4, pp=4, pipeline_layout="Et*4|t*4|mm|L", recompute=recompute)
    stages = stage_memory(apart, plan_of_job(apart))
    named = [{name.partition(" x ")[0] for name, _ in stage.terms} for stage in stages]
    assert [("MTP layers" in names, "MTP inputs" in names, "logits" in names) for names in named] == [
        (False, False, False),
        (False, False, False),
        (True, True, False),
        (False, False, True),
    ]
    shown = dict(stages[2].terms)
    assert next(name for name in shown if name.startswith("MTP layers")).endswith("x 2 in flight")
    assert all(stage.activations > 0 for stage in stages)
