"""Layers of virtual stages, layouts and degrees in numbers worked out by hand, on both sides of each limit."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.degrees import divisors
from traincast.job.frameworks import load_framework
from traincast.job.layers import Split, even_split, split_layers
from traincast.job.parallel import MAX_SLOTS, MAX_WORLD_SIZE, Parallel
from traincast.job.pipeline import Pipeline
from traincast.job.pipeline_layout import check_layout, layout_of, parse_layout


def split(layers, pp, vpp=1, **fields):
    return split_layers(Split(layers=layers, pp=pp, vpp=vpp, **fields))


@pytest.mark.parametrize(
    ("given", "layers_Q", "rule"),
    [
        ((8, 4), (2, 2, 2, 2), "8 layers / 4 virtual stages = 2 each"),
        ((8, 2, 2), (2, 2, 2, 2), "8 layers / 4 virtual stages = 2 each"),
        ((8, 1), (8,), "8 layers / 1 virtual stages = 8 each"),
        # Rounded up, with what is left on the last; two stages short are spread instead.
        ((11, 4), (3, 3, 3, 2), "11 layers / 4 virtual stages, rounded up: 3 each and 2 on the last"),
        ((9, 4), (3, 3, 3, 0), "9 layers / 4 virtual stages, rounded up: 3 each and 0 on the last"),
        ((5, 4), (2, 1, 1, 1), "5 layers / 4 virtual stages: 2 on the first 1, 1 on the others"),
        ((6, 4), (2, 2, 2, 0), "6 layers / 4 virtual stages, rounded up: 2 each and 0 on the last"),
        ((7, 2, 2), (2, 2, 2, 1), "7 layers / 4 virtual stages, rounded up: 2 each and 1 on the last"),
    ],
)
def test_layers_that_do_not_divide_leave_a_short_last_stage_or_are_spread(given, layers_Q, rule):
    assert split(*given) == (layers_Q, rule)


def test_layers_are_spread_where_the_framework_balances_them():
    found, rule = split(11, 4, uneven="balanced")
    assert found == (3, 3, 3, 2)
    assert rule == "11 layers / 4 virtual stages: 3 on the first 3, 2 on the others"
    assert split(9, 4, uneven="balanced")[0] == (3, 2, 2, 2)
    with pytest.raises(InfeasibleError, match="3 layers cannot fill pp 2 x vpp 2 = 4 virtual stages"):
        split(3, 2, 2)
    assert split(4, 2, 2)[0] == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("given", "ends", "layers_Q"),
    [
        ((7, 4), {"embedding": True}, (1, 2, 2, 2)),
        ((7, 4), {"head": True}, (2, 2, 2, 1)),
        ((6, 4), {"embedding": True, "head": True}, (1, 2, 2, 1)),
        ((6, 4), {"counts_embedding": True}, (1, 2, 2, 1)),
        ((2, 4), {"counts_embedding": True}, (0, 1, 1, 0)),
        # They divide as they are, so that nothing else counts.
        ((8, 4), {"counts_embedding": True}, (2, 2, 2, 2)),
        ((7, 4), {"counts_embedding": True}, (2, 2, 2, 1)),
        ((14, 2, 2), {"counts_embedding": True}, (3, 4, 4, 3)),
    ],
)
def test_ends_that_count_as_a_layer_take_one_from_their_stage(given, ends, layers_Q):
    assert split(*given, **ends)[0] == layers_Q


def test_ends_count_where_there_is_a_stage_for_them():
    assert split(7, 4, embedding=True)[1] == "7 layers + the embedding = 8, / 4 virtual stages = 2 each"
    both = split(6, 4, embedding=True, head=True)[1]
    assert both == "6 layers + the embedding + the head = 8, / 4 virtual stages = 2 each"
    # On one stage both ends leave at least one layer.
    assert split(2, 1, embedding=True, head=True)[0] == (2,)
    assert split(1, 1, head=True)[0] == (1,)
    for layers, ends in ((0, {"embedding": True}), (0, {"embedding": True, "head": True})):
        with pytest.raises(InfeasibleError, match="do not divide"):
            split(layers, 1, **ends)
    with pytest.raises(
        InfeasibleError, match="8 layers with the embedding counted as one each do not divide into pp 2"
    ):
        split(8, 2, embedding=True)
    assert even_split(Split(layers=7, pp=4, vpp=1)) is None
    assert even_split(Split(layers=7, pp=4, vpp=1, head=True))[0] == (2, 2, 2, 1)
    assert even_split(Split(layers=6, pp=4, vpp=1, counts_embedding=True))[0] == (1, 2, 2, 1)
    assert even_split(Split(layers=5, pp=4, vpp=1, counts_embedding=True)) is None


@pytest.mark.parametrize(
    ("given", "ends", "layers_Q"),
    [
        ((10, 4), {"first": 2, "last": 2}, (2, 3, 3, 2)),
        ((10, 4), {"first": 1}, (1, 3, 3, 3)),
        ((10, 4), {"last": 4}, (2, 2, 2, 4)),
        ((10, 2), {"first": 4, "last": 6}, (4, 6)),
        ((10, 2), {"first": 4}, (4, 6)),
        ((16, 4, 2), {"first": 2, "last": 6}, (1, 2, 2, 3, 1, 2, 2, 3)),
    ],
)
def test_given_ends_leave_the_other_layers_to_those_between(given, ends, layers_Q):
    found, rule = split(*given, **ends)
    assert found == layers_Q
    assert rule.startswith("first and last stage as given, ")


def test_the_rule_of_given_ends_says_what_stages_between_have():
    assert split(10, 4, first=2, last=2)[1] == "first and last stage as given, 3 layers on those between"


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ((10, 4), {"first": 0}),
        ((10, 4), {"first": 0, "last": 2}),
        ((10, 4), {"first": 11}),
        ((10, 2), {"first": 4, "last": 5}),
        ((10, 4), {"first": 2, "last": 3}),
        # The stages between are not left without layers.
        ((10, 4), {"first": 5, "last": 5}),
        ((10, 2), {"first": 10}),
    ],
)
def test_given_ends_that_leave_what_does_not_divide_are_refused(given, ends):
    with pytest.raises(InfeasibleError, match="do not divide over the other"):
        split(*given, **ends)


@pytest.mark.parametrize(("ends", "named"), [({"first": 4}, "first_stage_layers"), ({"last": 4}, "last_stage_layers")])
def test_ends_of_a_pipeline_need_one(ends, named):
    with pytest.raises(ConfigError, match=f"{named}: has a meaning only with pp above 1"):
        split(8, 1, **ends)


def test_a_pipeline_is_as_long_as_its_longest_stage():
    pipeline = Pipeline(schedule="1f1b", layers_Q=(1, 4, 3), overlap_p2p=False)
    assert (pipeline.most_layers, pipeline.mtp_stage_index) == (4, 2)
    assert replace(pipeline, mtp_stage=0).mtp_stage_index == 0


@pytest.mark.parametrize(
    ("fields", "vpp"),
    [
        # Two layers of a chunk or more, in as many microbatches as stages or a multiple.
        ({"gpus": 2, "pp": 2}, 2),
        ({"gpus": 4, "pp": 4}, 1),
        ({"gpus": 2, "pp": 2, "global_batch": 7}, 1),
        ({"gpus": 2, "pp": 2, "global_batch": 2}, 2),
        ({"gpus": 2, "pp": 2, "first_stage_layers": 4}, 1),
        ({"gpus": 2, "pp": 2, "last_stage_layers": 4}, 1),
        ({"gpus": 2, "pp": 2, "schedule": "interleaved"}, 2),
        ({"gpus": 2, "pp": 2, "schedule": "gpipe"}, 1),
        ({"gpus": 2, "pp": 2, "schedule": "zb_v"}, 2),
        ({"gpus": 2, "pp": 2, "model": replace(TINY, layers=12)}, 3),
        ({"gpus": 2, "pp": 2, "model": replace(TINY, layers=10), "framework": "megatron-core-2025"}, 3),
        # Down to one layer, of which there are ten with both ends.
        ({"gpus": 2, "pp": 2, "framework": "megatron-core-2024"}, 5),
        ({"gpus": 2, "pp": 2, "framework": "megatron-2021"}, 1),
        ({"gpus": 1}, 1),
    ],
)
def test_a_pipeline_is_interleaved_as_far_as_layers_and_microbatches_allow(fields, vpp):
    assert job_of(**{"vpp": None} | fields).parallel.vpp == vpp


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"schedule": "zb_v"}, "2, as schedule zb_v has it"),
        ({"schedule": "gpipe"}, "1, as megatron-core-2025 does not interleave by itself"),
        ({"schedule": "1f1b"}, "1, as megatron-core-2025 does not interleave by itself"),
        ({"framework": "megatron-2021"}, "1, as megatron-2021 does not interleave by itself"),
        ({"global_batch": 7}, "1, as 7 microbatches are not a multiple of pp 2"),
        ({"first_stage_layers": 4}, "1, as the first or last stage has its own number of layers"),
        ({"model": replace(TINY, layers=3)}, "1, as the layers do not divide into smaller pieces over pp 2"),
        ({}, "2 (8 layers / 4 virtual stages = 2 each; megatron-core-2025 interleaves down to 2 layers)"),
    ],
)
def test_why_a_pipeline_is_interleaved_or_not_is_told(fields, why):
    notes = [
        n.text for n in job_of(**{"gpus": 2, "pp": 2, "vpp": None} | fields).assumptions if n.code == "assumed-vpp"
    ]
    assert notes == [f"vpp is not given: {why}"]


@pytest.mark.parametrize(
    ("counts", "fields", "layers_Q"),
    [
        (False, {}, (2, 2, 2, 0)),
        (True, {}, (1, 2, 2, 1)),
        # Who says of one end whether it counts, says it of both.
        (True, {"embedding_as_layer": False}, (2, 2, 2, 0)),
        (True, {"head_as_layer": False}, (2, 2, 2, 0)),
        (False, {"embedding_as_layer": True, "head_as_layer": True}, (1, 2, 2, 1)),
    ],
)
def test_ends_count_as_layers_where_the_framework_or_the_job_says_so(counts, fields, layers_Q):
    own = replace(load_framework("megatron-core-2025"), counts_embedding=counts, uneven_split="short_last")
    job = job_of(replace(TINY, layers=6), gpus=4, pp=4, framework=own, **fields)
    assert job.pipeline.layers_Q == layers_Q


def test_schedules_follow_the_virtual_stages():
    assert job_of(gpus=2, pp=2, vpp=None, stage_layers=(5, 3)).pipeline.schedule == "1f1b"
    assert job_of(gpus=2, pp=2, vpp=1).pipeline.schedule == "1f1b"
    assert job_of(gpus=2, pp=2, vpp=2).pipeline.schedule == "interleaved"
    assert job_of(gpus=2, pp=2, vpp=None, stage_layers=(2, 2, 2, 2)).parallel.vpp == 2
    assert job_of(schedule="zb_v", vpp=None).pipeline.schedule == "1f1b"
    assert job_of(schedule="gpipe", vpp=None).pipeline.schedule == "gpipe"


@pytest.mark.parametrize(("said", "mtp_stage"), [("Et*4|t*4mmL", None), ("Et*8mm|L", 0), ("Et*8|mmL", None)])
def test_mtp_layers_are_on_the_last_stage_unless_a_layout_says_otherwise(said, mtp_stage):
    job = job_of(replace(TINY, mtp_layers=2), gpus=2, pp=2, vpp=None, pipeline_layout=said)
    assert job.pipeline.mtp_stage == mtp_stage
    assert str(job.layout) == str(parse_layout(said))


@pytest.mark.parametrize(
    ("said", "states"),
    [("Et*4|t*4mm||L", [1, 3, 3, 1]), ("Et*4|t*4|mm|L", [1, 1, 3, 1]), ("Et*4|t*2|t*2|mmL", [1, 1, 1, 1])],
)
def test_stages_behind_mtp_layers_hand_on_their_hidden_states_too(said, states):
    """Two more for each token, up to the last stage, which has their heads."""
    job = job_of(replace(TINY, mtp_layers=2), gpus=4, pp=4, vpp=None, pipeline_layout=said)
    assert [job.hidden_states_after(index) for index in range(4)] == states
    assert job_of(gpus=2, pp=2).hidden_states_after(0) == 1


@pytest.mark.parametrize(
    ("layers_Q", "mtp", "stage", "written"),
    [
        ((8,), 0, None, ("EttttttttL",)),
        ((2, 1), 0, None, ("Ett", "tL")),
        ((2, 1), 2, None, ("Ett", "tmmL")),
        ((2, 1, 0), 1, 1, ("Ett", "tm", "L")),
        ((1,), 1, None, ("EtmL",)),
    ],
)
def test_a_layout_has_the_ends_where_they_are(layers_Q, mtp, stage, written):
    layout = layout_of(layers_Q, mtp, stage)
    assert layout.stages == written
    assert layout.layers_Q == layers_Q
    assert layout.mtp_layers == mtp
    assert layout.mtp_stage == (None if not mtp else len(layers_Q) - 1 if stage is None else stage)


def test_a_layout_has_no_mtp_layers_unless_they_are_said():
    assert layout_of((2, 1)).stages == ("Ett", "tL")


def fits(text, *, layers=8, mtp_layers=0, pp=2, vpp=None):
    check_layout(parse_layout(text), name="tiny", layers=layers, mtp_layers=mtp_layers, pp=pp, vpp=vpp)


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("Et*4|t*3L", {}, "places 7 layers, but tiny has 8: 1 too few"),
        ("Et*4|t*6L", {}, "places 10 layers, but tiny has 8: 2 too many"),
        ("Et*4|t*4mL", {}, "places 1 MTP layer, but tiny has 0: 1 too many"),
        ("Et*4|t*4L", {"mtp_layers": 1}, "places 0 MTP layers, but tiny has 1: 1 too few"),
        ("Et*4|t*2|t*2L", {}, "3 virtual stages, which pp 2 does not divide: 1 too few or 1 too many"),
        ("Et*8L", {}, "1 virtual stage, which pp 2 does not divide: 1 too few$"),
        ("Et*4|t*4L", {"vpp": 2}, "2 virtual stages, so that vpp is 1, not 2"),
    ],
)
def test_layouts_of_other_numbers_are_refused_with_the_difference(text, fields, message):
    with pytest.raises(InfeasibleError, match=message):
        fits(text, **fields)
    fits("Et*4|t*4L")
    fits("Et*2|t*2|t*2|t*2L", vpp=2)
    fits("Et*4|t*4mL", mtp_layers=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t*4|t*4L", "it has E .* 0 times, not once"),
        ("EEt*4|t*4L", "it has E .* 2 times"),
        ("tEt*3|t*4L", "E .* must be the first of the first virtual stage"),
        ("Et*4|t*4", "it has L .* 0 times"),
        ("Et*4|Lt*4", "L .* must be the last of the last"),
        ("Et*4|t*3mtL", r"layers \(t\) must come before MTP layers"),
        ("Et*4|t*4|m|mL", "on one virtual stage, not on 2"),
        ("Et*8m|||L", "one of the last 2"),
    ],
)
def test_parts_of_a_layout_out_of_place_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        fits(text, mtp_layers=text.count("m"))
    fits("Et*8||m|L", mtp_layers=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Etx", "'x' is not a letter"),
        ("E((t)*2)*2L", "groups cannot be nested"),
        ("E(tt|)L", "a group needs its number"),
        ("*3", "write it like"),
        ("Et*70000L", "stands for more than 65536 letters"),
        ("E(t*300)*300L", "stands for more than 65536 letters"),
    ],
)
def test_texts_that_are_no_layout_are_told_what_is_wrong(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_layout(text)
    assert parse_layout("E t*2, (t|)*2 'L'").stages == ("Ettt", "t", "L")


def test_a_layout_may_be_as_long_as_its_limit():
    """Written and repeated letters count together, as neither may be large."""
    assert len(parse_layout(f"Et*{2**16 - 8}").stages[0]) == 1 + 2**16 - 8
    with pytest.raises(ConfigError, match="more than 65536"):
        parse_layout(f"Et*{2**16 - 7}")


@pytest.mark.parametrize(("number", "text"), [(1, "1"), (2, "1 or 2"), (7, "1 or 7"), (12, "1, 2, 3, 4, 6 or 12")])
def test_divisors_are_told_in_words(number, text):
    assert divisors(number) == text


def test_degrees_multiply_to_ranks():
    layout = Parallel(tp=2, cp=3, dp=4, pp=5, vpp=2, ep=4, etp=1, microbatches=10)
    assert (layout.replicas, layout.ranks_per_stage, layout.world_size, layout.edp) == (12, 24, 120, 6)
    assert (layout.expert_tp, replace(layout, etp=None, ep=3).expert_tp) == (1, 2)
    assert (layout.sharing, replace(layout, shard=4).sharing) == (12, 4)
    assert Parallel(tp=1, dp=1, microbatches=1).world_size == 1


@pytest.mark.parametrize(
    ("refused", "taken", "message"),
    [
        ({"tp": 0}, {"tp": 1}, "is 0; it must be at least 1"),
        ({"microbatches": 0}, {"microbatches": 1}, "is 0; it must be at least 1"),
        ({"dp": 3, "ep": 2}, {"dp": 4, "ep": 2}, "the 3 ranks of a stage .* do not divide"),
        ({"ep": 2}, {"dp": 2, "ep": 2}, "the 1 rank of a stage .* does not divide"),
        ({"dp": 4, "tp": 2, "ep": 8}, {"dp": 4, "tp": 2, "ep": 8, "etp": 1}, "into experts of etp 2 x ep 8"),
        ({"dp": 4, "shard": 3}, {"dp": 4, "shard": 2}, "does not divide the 4 ranks"),
        ({"dp": 4, "shard": 0}, {"dp": 4, "shard": 1}, "does not divide the 4 ranks"),
        ({"dp": MAX_WORLD_SIZE + 1}, {"dp": MAX_WORLD_SIZE}, "above the limit of 1048576"),
        ({"pp": 1025}, {"pp": 1024}, "a pipeline of 1025 stages is above the limit"),
        ({"pp": 2, "vpp": 2, "microbatches": MAX_SLOTS // 4 + 1}, {"pp": 2, "vpp": 2, "microbatches": MAX_SLOTS // 4},
         "slots to schedule, above the limit"),
    ],
)  # fmt: skip
def test_degrees_end_where_they_must(refused, taken, message):
    with pytest.raises((ConfigError, InfeasibleError), match=message):
        Parallel(**refused)
    Parallel(**taken)


def test_what_follows_from_sharding_and_pipelines():
    """Answers of a whole job, one truth table each."""
    titan = {"framework": "torchtitan-2025", "gpus": 8, "zero": 3}
    once = {pp: job_of(**titan, pp=pp).reduces_once for pp in (1, 2)}
    assert once == {1: False, 2: True}
    assert not job_of(gpus=8, pp=2, zero=3).reduces_once
    assert not job_of(**titan | {"zero": 2}, pp=2).reduces_once
    assert job_of(**titan, pp=2).keeps_parameters_whole
    assert not job_of(**titan).keeps_parameters_whole
    assert job_of(**titan, reshard_after_forward=False).keeps_parameters_whole
    assert not job_of(gpus=8, zero=1).keeps_parameters_whole
    sharing = [job_of(gpus=8, zero=zero, cp=2).sharing for zero in (0, 1, 3)]
    assert sharing == [1, 8, 8]
    offloads = {zero: job_of(gpus=8, zero=zero, offload_optimizer=0.5).offloads_gradients for zero in range(4)}
    assert offloads == {0: False, 1: False, 2: True, 3: True}
    assert not job_of(gpus=8, zero=2).offloads_gradients
    assert job_of(zero=2, offload_optimizer=0.5).offloads_gradients
    assert not job_of(**titan, pp=2, offload_optimizer=0.5).offloads_gradients


@pytest.mark.parametrize(("zero", "memory"), [(0, (4, 0)), (1, (4, 0)), (2, (4, 0)), (3, (4, 0))])
def test_gradients_stay_as_they_are_reduced(zero, memory):
    policy = job_of(gpus=2, zero=zero, grad_reduce_bytes=4).memory_policy
    assert (policy.gradient_bytes, policy.main_gradient_bytes) == memory
    narrow = job_of(gpus=2, zero=zero, grad_reduce_bytes=2)
    limit = narrow.framework.memory.main_gradients_up_to_zero
    assert narrow.memory_policy.main_gradient_bytes == (4 if zero <= limit else 0)
    assert narrow.memory_policy.gradient_bytes == (narrow.framework.memory.gradient_bytes or 2)


def test_experts_leave_as_many_copies_as_ranks_are_left():
    job = job_of(TINY_EXPERTS, gpus=16, tp=2, cp=2, ep=4, etp=1, pp=2, global_batch=16)
    assert (job.parallel.dp, job.parallel.replicas, job.parallel.edp) == (2, 4, 2)
