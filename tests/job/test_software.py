"""What of the software a job chooses beside its framework: graphs, dispatcher, recipes of 8 bits."""

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.model.routing import busiest_rank


def request(**fields):
    plain = JobRequest(model=load_model("qwen3-30b-a3b"), gpus=64, ep=8, seq_length=4096, global_batch=64)
    return replace(plain, **fields)


@pytest.mark.parametrize(
    ("said", "graphs", "scope"),
    [
        ({}, True, ("attn", "moe_router", "moe_preprocess")),
        ({"framework": "megatron-core-2025"}, False, ()),
        ({"cuda_graphs": True}, True, ()),
        ({"cuda_graph_impl": "none"}, False, ()),
        ({"cuda_graph_impl": "local"}, True, ()),
        ({"cuda_graph_impl": "full_iteration"}, True, ("full_iteration",)),
        ({"cuda_graph_scope": ("attn", "Moe-Router", "attn")}, True, ("attn", "moe_router")),
    ],
)
def test_graphs_hold_what_is_named_or_whole_layers(said, graphs, scope):
    job = resolve_job(request(**said))
    assert (job.kernels.cuda_graphs, job.kernels.cuda_graph_scope) == (graphs, scope)


def test_graphs_of_a_framework_hold_whole_layers_where_there_are_no_experts():
    dense = JobRequest(model=load_model("llama3-8b"), gpus=64, seq_length=4096, global_batch=64)
    job = resolve_job(replace(dense, framework="megatron-core-2026"))
    assert (job.kernels.cuda_graphs, job.kernels.cuda_graph_scope) == (True, ())
    assert not resolve_job(replace(dense, framework="megatron-core-2026", cuda_graphs=False)).kernels.cuda_graphs


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"cuda_graphs": True, "cuda_graph_impl": "none"}, "cuda_graphs is true"),
        ({"cuda_graph_impl": "none", "cuda_graph_scope": ("attn",)}, "no CUDA graphs"),
        ({"cuda_graph_scope": ("attn", "full_iteration")}, "is all of them"),
        ({"precision": "bf16", "fp8_recipe": "current"}, "precision fp8"),
        ({"precision": "fp8", "fp8_recipe": "mxfp8"}, "precision mxfp8"),
    ],
)
def test_choices_that_contradict_each_other_are_refused(said, what):
    with pytest.raises(ConfigError, match=what):
        resolve_job(request(**said))


def test_names_that_are_none_are_refused():
    for said in ({"cuda_graph_scope": ("heads",)}, {"moe_dispatcher": "pigeon"}, {"fp8_recipe": "guessed"}):
        with pytest.raises(UnknownNameError):
            resolve_job(request(**said))


@pytest.mark.parametrize(
    ("name", "once"), [("alltoall", False), ("allgather", False), ("deepep", True), ("hybridep", True)]
)
def test_the_dispatcher_says_how_often_a_token_crosses_to_a_node(name, once):
    job = resolve_job(request(moe_dispatcher=name))
    assert job.experts.dispatcher == name
    assert resolve_job(request(moe_dispatcher=name, deduplicated_dispatch=once)).experts.dispatcher == name
    with pytest.raises(ConfigError, match="give moe_dispatcher alone"):
        resolve_job(request(moe_dispatcher=name, deduplicated_dispatch=not once))
    old = resolve_job(request(deduplicated_dispatch=once))
    assert old.experts.dispatcher == ("deepep" if once else "alltoall")


@pytest.mark.parametrize(
    ("precision", "recipe"), [("bf16", "none"), ("fp8", "delayed"), ("fp8_block", "blockwise"), ("mxfp8", "mxfp8")]
)
def test_a_precision_has_its_usual_recipe(precision, recipe):
    assert resolve_job(request(precision=precision)).precision.fp8_recipe == recipe
    assert resolve_job(request(precision="fp8", fp8_recipe="current")).precision.fp8_recipe == "current"


@pytest.mark.parametrize(
    ("schedule", "more", "overlaps", "code"),
    [
        ("1f1b", {}, False, None),
        ("1f1b", {"moe_a2a_overlap": True}, True, None),
        ("gpipe", {"moe_a2a_overlap": True}, False, "moe-a2a-overlap-unused"),
        ("zb_h1", {"moe_a2a_overlap": True}, False, "moe-a2a-overlap-unused"),
        ("dualpipe", {}, True, "assumed-moe-a2a-overlap"),
        ("dualpipe", {"moe_a2a_overlap": False}, False, None),
    ],
)
def test_exchanges_overlap_where_they_are_asked_to_and_a_schedule_has_pairs(schedule, more, overlaps, code):
    layout = {"gpus": 16, "pp": 2, "ep": 8, "global_batch": 64, "schedule": schedule}
    job = resolve_job(request(**layout, **more))
    assert job.experts.a2a_overlap is overlaps
    assert [note.code for note in job.assumptions if "moe-a2a" in note.code] == ([code] if code else [])


def test_delayed_weight_gradients_need_exchanges_that_overlap():
    plain = resolve_job(request(delay_wgrad=True))
    assert plain.experts.delay_wgrad is False
    assert "delay-wgrad-unused" in {note.code for note in plain.assumptions}
    assert resolve_job(request(delay_wgrad=True, moe_a2a_overlap=True)).experts.delay_wgrad is True


def test_natural_routing_gives_the_busiest_rank_more_and_says_so():
    even, natural = (resolve_job(request(moe_routing=name)) for name in ("balanced", "natural"))
    assert even.experts.imbalance == 1
    assert natural.experts.imbalance == busiest_rank(128, 8, 8) > 1.3
    assert [note.code for note in natural.assumptions if "routing" in note.code] == ["natural-routing"]
    assert "natural-routing" not in {note.code for note in even.assumptions}
    assert "assumed-moe-routing" in {note.code for note in resolve_job(request()).assumptions}
    with pytest.raises(ConfigError, match="moe_routing is natural; give one of the two"):
        resolve_job(request(moe_routing="natural", expert_imbalance=1.5))
    assert resolve_job(request(ep=1, moe_routing="natural")).experts.imbalance == 1


def test_trained_routing_is_between_and_says_what_balances():
    kinds = ("balanced", "trained", "natural")
    even, trained, natural = (resolve_job(request(moe_routing=name)).experts.imbalance for name in kinds)
    assert even < trained < natural
    larger = resolve_job(request(moe_routing="trained", micro_batch=4, global_batch=256)).experts.imbalance
    assert even < larger < trained
    (note,) = (each for each in resolve_job(request(moe_routing="trained")).assumptions if "routing" in each.code)
    assert note.code == "trained-routing"
    assert "an auxiliary loss balances 128 experts" in note.text
    of_bias = resolve_job(replace(request(moe_routing="trained"), model=load_model("deepseek-v3")))
    assert any("biases of the router balance 256 experts" in each.text for each in of_bias.assumptions)
    with pytest.raises(ConfigError, match="moe_routing is trained; give one of the two"):
        resolve_job(request(moe_routing="trained", expert_imbalance=1.5))


@pytest.mark.parametrize(
    ("model", "more", "overlaps", "code"),
    [
        ("deepseek-v3", {"moe_shared_expert_overlap": True}, True, None),
        ("deepseek-v3", {"moe_shared_expert_overlap": True, "moe_a2a_overlap": True}, False, "overlap-unused"),
        ("qwen3-30b-a3b", {"moe_shared_expert_overlap": True}, False, "overlap-unused"),
        ("deepseek-v3", {}, False, None),
    ],
)
def test_shared_experts_overlap_where_there_are_some_and_nothing_else_does(model, more, overlaps, code):
    job = resolve_job(request(model=load_model(model), **more))
    assert job.experts.shared_expert_overlap is overlaps
    assert [note.code for note in job.assumptions if "overlap-unused" in note.code] == (
        [f"moe-shared-expert-{code}"] if code else []
    )


def test_megatron_bridge_delays_weight_gradients_where_it_overlaps_exchanges():
    for overlaps in (True, False):
        job = resolve_job(request(framework="megatron-bridge-2025", moe_a2a_overlap=overlaps))
        assert job.experts.delay_wgrad is overlaps
        assert "delay-wgrad-unused" not in {note.code for note in job.assumptions}
