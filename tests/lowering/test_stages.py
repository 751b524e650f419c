"""Which layers and ends of the model a virtual stage holds, and what it recomputes and offloads, counted by hand."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_ALL, TINY_EXPERTS, job_of
from traincast.job.frameworks import load_framework
from traincast.lowering.held import first_alike, held_by_stages, table_stages
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stage_layers, stages_of
from traincast.model.structure import EMBEDDING_COPY, FIRST_BLOCKS, MTP_HEAD, last_blocks, mtp_blocks, mtp_body
from traincast.workload.words import Phase

FURTHER = replace(TINY, mtp_layers=2)
TIED = replace(TINY, tied_embeddings=True)
"""Two MTP layers, which read the embedding's table; a head that is the embedding's table."""


PLAIN = replace(load_framework("megatron-core-2025"), module_launches=1.0)
"""A framework whose modules take a launch for each of their kernels."""


def held(**fields):
    job = job_of(**fields)
    return job, held_by_stages(job, plan_of_job(job))


def test_stages_hold_consecutive_layers_and_the_ends_of_the_model():
    _, found = held(gpus=4, pp=4, stage_layers=(1, 3, 4, 0), vpp=None)
    assert [each.layers for each in found] == [range(1), range(1, 4), range(4, 8), range(8, 8)]
    assert [each.first for each in found] == [True, False, False, False]
    assert [each.last for each in found] == [False, False, False, True]
    assert {(each.mtp_layers, each.copies_table, each.shares_table) for each in found} == {(0, False, False)}
    assert [each.shares_table for each in held(gpus=1)[1]] == [True]


@pytest.mark.parametrize(
    ("fields", "mtp", "copies", "tables"),
    [
        # Alone all read one table; apart the MTP layers have a copy, of which the gradients are summed.
        ({"model": FURTHER}, [2], [False], ()),
        ({"model": FURTHER, "gpus": 4, "pp": 4}, [0, 0, 0, 2], [False, False, False, True], (0, 3)),
        # A tied head reads another copy, which MTP layers of its stage read, too.
        ({"model": replace(FURTHER, tied_embeddings=True), "gpus": 2, "pp": 2}, [0, 2], [False, False], (0, 1)),
        ({"model": TIED, "gpus": 4, "pp": 4}, [0, 0, 0, 0], [False] * 4, (0, 3)),
        ({"model": TIED}, [0], [False], ()),
        ({"gpus": 4, "pp": 4}, [0, 0, 0, 0], [False] * 4, ()),
        # On a stage of their own: a copy there, whether the head is tied or not.
        ({"model": FURTHER, "gpus": 4, "pp": 4, "pipeline_layout": "Et*4|t*4|mm|L", "vpp": None},
         [0, 0, 2, 0], [False, False, True, False], (0, 2)),
        ({"model": replace(FURTHER, tied_embeddings=True), "gpus": 4, "pp": 4, "pipeline_layout": "Et*4|t*4|mm|L",
          "vpp": None}, [0, 0, 2, 0], [False, False, True, False], (0, 2, 3)),
        # First and last layers on one rank: everyone reads one table.
        ({"model": FURTHER, "gpus": 2, "pp": 2, "schedule": "zb_v", "vpp": 2}, [0, 0, 0, 2], [False] * 4, ()),
    ],
)  # fmt: skip
def test_tables_of_the_embedding_are_where_someone_reads_them(fields, mtp, copies, tables):
    job, found = held(**fields)
    assert [each.mtp_layers for each in found] == mtp
    assert [each.copies_table for each in found] == copies
    assert table_stages(job, plan_of_job(job)) == tables


def test_a_stage_is_made_of_its_layers_mtp_layers_and_ends():
    job, (first, last) = held(model=FURTHER, gpus=2, pp=2)
    layer = job.blocks_L[0]
    assert first.ends(job) == {FIRST_BLOCKS: 1}
    assert last.ends(job) == {EMBEDDING_COPY: 1, last_blocks(job.model, with_embedding=False): 1}
    assert list(first.kinds(job)) == [(layer, 4)]
    assert list(last.kinds(job)) == [(layer, 4), (mtp_body(job.model), 2), (MTP_HEAD, 2)]
    apart, (_, _, further, head) = held(model=FURTHER, gpus=4, pp=4, pipeline_layout="Et*4|t*4|mm|L", vpp=None)
    # Heads of MTP layers are with that of the model.
    assert list(further.kinds(apart)) == [(mtp_body(apart.model), 2)]
    assert list(head.kinds(apart)) == [(MTP_HEAD, 2)]
    assert further.ends(apart) == {EMBEDDING_COPY: 1}
    tied, (only,) = held(model=TIED)
    assert only.ends(tied) == {FIRST_BLOCKS: 1, last_blocks(tied.model, with_embedding=True): 1}


def test_stages_that_do_the_same_are_alike_wherever_their_layers_are():
    assert first_alike(*held(gpus=8, pp=8)) == [0, 1, 1, 1, 1, 1, 1, 7]
    assert first_alike(*held(gpus=4, pp=4, stage_layers=(1, 3, 3, 1), vpp=None)) == [0, 1, 1, 3]
    assert first_alike(*held(gpus=4, pp=4, stage_layers=(2, 3, 1, 2), vpp=None)) == [0, 1, 2, 3]
    # Behind the MTP layers three hidden states are handed on, before them one.
    job, found = held(model=FURTHER, gpus=6, pp=6, pipeline_layout="Et*4||t*4|mm||L", vpp=None, global_batch=6)
    assert [job.hidden_states_after(index) for index in range(6)] == [1, 1, 1, 3, 3, 1]
    assert first_alike(job, found) == [0, 1, 2, 3, 4, 5]


def test_layers_of_a_stage_are_those_of_its_virtual_stages():
    """Dense layers 0 and 1; of four virtual stages of two layers each stage has every other one."""
    job = job_of(TINY_ALL, gpus=2, pp=2, vpp=2, schedule="interleaved")
    every = job.blocks_L
    assert stage_layers(job) == [every[:2] + every[4:6], every[2:4] + every[6:8]]


def test_a_stage_counts_its_layers_by_kind_with_mtp_layers_as_the_last():
    job = job_of(replace(TINY_ALL, mtp_layers=3), gpus=2, pp=2)
    first, last = stages_of(job, 8)
    dense, experts = job.blocks_L[0], job.blocks_L[7]
    assert first.kinds == {dense: 2, experts: 2}
    assert last.kinds == {experts: 4 + 3}
    assert mtp_blocks(job.model) == experts
    assert (first.layers, last.layers, first.first, last.first) == (4, 7, True, False)
    assert first.ends == {}
    # The heads of three MTP layers in addition to that of the model, each the same work.
    assert sum(last.ends.values()) == 4
    assert last.ends[MTP_HEAD] >= 3


def test_whole_layers_are_recomputed_as_so_many_of_a_stage():
    """Three of eight layers run again, with three eighths of what the host launches for all."""
    for layers, share in ((3, 3 / 8), (None, 1.0)):
        (stage,) = stages_of(job_of(framework=PLAIN, recompute="full", recompute_layers=layers), 8)
        name, again, launched = stage.recomputed()
        forward = stage.in_pass(Phase.FORWARD)
        assert name == "layers recompute"
        assert again.calls == {call: pytest.approx(often * share) for call, often in forward.calls.items()}
        assert launched.launches == pytest.approx(stage.host(Phase.FORWARD).launches * share)
        assert launched.launches == pytest.approx(11 * 8 * share)


def test_outputs_that_are_kept_are_not_made_again():
    """Three of eight layers without their attention, which all others of their calls precede or follow."""
    fields = {"recompute": "full", "recompute_layers": 3}
    (whole,), (kept,) = (stages_of(job_of(**fields, recompute_keeps=keeps), 8) for keeps in (None, ("core_attn",)))
    every, left = whole.recomputed()[1].calls, kept.recomputed()[1].calls
    assert {call.family for call in every.keys() - left.keys()} == {"attention"}
    assert left == {call: pytest.approx(every[call]) for call in left}


def test_a_stage_has_tensors_of_layers_and_ends():
    """Four weights and two norms of a layer; a table, and a norm with the LM head."""
    whole, halves = (stages_of(job_of(gpus=pp, pp=pp), 8) for pp in (1, 2))
    assert [each.tensors() for each in whole] == [8 * 6 + 1 + 2]
    assert [each.tensors() for each in halves] == [4 * 6 + 1, 4 * 6 + 2]


def test_stages_of_one_layer_or_none_recompute_what_they_have():
    first, last = stages_of(job_of(gpus=2, pp=2, stage_layers=(1, 7), vpp=None, recompute="full"), 8)
    assert first.recomputed()[1].calls == first.in_pass(Phase.FORWARD).calls
    *_, none = stages_of(job_of(gpus=2, pp=2, stage_layers=(8, 0), vpp=None, recompute="full"), 8)
    assert none.recomputed()[1].calls == {}
    assert last.recomputed()[1].calls == last.in_pass(Phase.FORWARD).calls


def test_modules_are_recomputed_in_every_layer_that_has_them():
    """Two dense layers and six with experts; the activation function of each kind is a kernel of its own."""
    job = job_of(TINY_ALL, framework=PLAIN, recompute="selective", recompute_modules=("core_attn", "mlp"))
    (stage,) = stages_of(job, 8)
    name, again, launched = stage.recomputed()
    assert name == "modules recompute"
    often = {call.family: count for call, count in again.calls.items() if call.family in ("attention", "activation")}
    # One attention core a layer, one MLP in each dense one.
    assert often == {"attention": 8, "activation": 2}
    # A core is one launch; an MLP its norm, two GEMMs and an activation function.
    assert launched.launches == 8 * 1 + 2 * 4
    (none,) = stages_of(job_of(TINY_ALL, recompute="none"), 8)
    _, again, launched = none.recomputed()
    assert (again.calls, launched.launches) == ({}, 0)


def test_what_runs_between_exchanges_with_experts_is_that_of_all_layers():
    job = job_of(TINY_EXPERTS, gpus=8, ep=8)
    (stage,) = stages_of(job, 8)
    experts = stage.at("experts", Phase.FORWARD)
    grouped = {call: often for call, often in experts.calls.items() if "gemm" in call.family}
    # Two GEMMs of each of eight layers.
    assert sum(grouped.values()) == 2 * 8
    assert stage.at("experts", Phase.FORWARD) is experts
    assert (
        sum(often for call, often in stage.at("experts", Phase.BACKWARD).calls.items() if "gemm" in call.family) == 16
    )
    assert stage.at("no such place", Phase.FORWARD).calls == {}


def test_the_host_launches_for_every_layer_and_less_for_a_share():
    job = job_of(framework=PLAIN)
    (stage,) = stages_of(job, 8)
    assert stage.host(Phase.FORWARD).launches == 11 * 8
    # Four GEMMs more, and a hook of each of four weights and two norms.
    assert stage.host(Phase.BACKWARD).launches == (15 + 6) * 8
    assert stage.host(Phase.FORWARD).seconds(PLAIN) == pytest.approx(8 * PLAIN.host_layer_s)
    first, _ = stages_of(job_of(framework=PLAIN, gpus=2, pp=2), 8)
    # And a message between stages.
    assert first.host(Phase.FORWARD).launches == 11 * 4 + 10
    whole, half = (stage.total(stage.kinds, Phase.FORWARD, share=share) for share in (1.0, 0.5))
    assert half.calls == {call: often / 2 for call, often in whole.calls.items()}
    both = stage.total(stage.kinds, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
    assert both.launches == sum(stage.in_pass(each).launches for each in (Phase.BACKWARD, Phase.WEIGHT_GRADIENT))


def test_offloaded_activations_are_those_of_the_first_layers():
    two, one, none = (stages_of(job_of(offload_activations=count), 8)[0].offloaded for count in (2, 1, 0))
    assert none == (0, 0)
    assert two[1] == 2
    assert two[0] == 2 * one[0] > 0
    assert isinstance(two[0], int)
