"""Which combinations of switches a plan tries: small tables of switches that are made up, and all of real ones."""

from itertools import product

import pytest

from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.switches import read_switches
from traincast.model.load import load_model
from traincast.planning.software import Software, software_of


def switch(name, axis, settings, needs="", always="yes"):
    return {
        "name": name,
        "axis": axis,
        "settings": settings,
        "offered_by": "megatron:2024",
        "level": "best",
        "always": always,
        "needs": needs,
        "changes": "",
        "asks": "",
        "source": "made up",
    }


def software(*rows, **more):
    return Software(switches=read_switches(rows), **more)


OFF = {"cuda_graph_impl": "none", "cuda_graph_scope": (), "te_op_fuser": False, "moe_paged_stash": False}
LAYERS = switch("layers", "graphs", "cuda_graph_impl=transformer_engine", "recompute!=full")
WHOLE = switch("whole", "graphs", "cuda_graph_impl=full_iteration", "zero<2")
FUSER = switch("fuser", "op fuser", "te_op_fuser=true", "etp=1")
STASH = switch("stash", "stash", "moe_paged_stash=true", "te_op_fuser=true")
LAYERS_ON, WHOLE_ON = (("cuda_graph_impl", "transformer_engine"),), (("cuda_graph_impl", "full_iteration"),)


def test_what_a_switch_needs_of_another_axis_is_taken_before_it():
    assert list(software(STASH, LAYERS, FUSER).axes) == ["graphs", "op fuser", "stash"]
    assert list(software(STASH, FUSER).axes) == ["op fuser", "stash"]


def test_the_best_of_what_costs_nothing_is_taken_and_not_tried():
    of = software(LAYERS, WHOLE, defaults=OFF)
    assert of.choices({"zero": 1, "recompute": "none"}) == (WHOLE_ON,)
    assert of.choices({"zero": 3, "recompute": "none"}) == (LAYERS_ON,)
    assert of.choices({"zero": 3, "recompute": "full"}) == ((),)


def test_what_is_less_stays_only_for_layouts_of_which_the_better_one_may_be_refused():
    of = software(LAYERS, WHOLE, defaults=OFF)
    assert of.choices({}) == (WHOLE_ON, LAYERS_ON, ())
    assert of.choices({"zero": 1}) == (WHOLE_ON,)
    assert of.choices({"zero": 3}) == (LAYERS_ON, ())
    # What needs all that the better one needs is refused with it.
    both = software({**LAYERS, "needs": "zero<2;recompute!=full"}, WHOLE, defaults=OFF)
    assert both.choices({}) == (WHOLE_ON, ())


def test_what_one_switch_gives_another_one_has():
    of = software(FUSER, STASH, defaults=OFF)
    assert of.choices({"etp": 1}) == ((("moe_paged_stash", True), ("te_op_fuser", True)),)
    assert of.choices({"etp": 2}) == ((),)


def test_which_way_to_exchange_tokens_is_best_must_be_tried():
    rows = (
        switch("alltoall", "dispatcher", "moe_dispatcher=alltoall", "ep>1", always="no"),
        switch("hybridep", "dispatcher", "moe_dispatcher=hybridep", "ep>1;capability>=9", always="no"),
        switch("overlap", "exchanges", "moe_a2a_overlap=true", "ep>1;moe_dispatcher=hybridep", always="no"),
    )
    of = software(*rows, defaults={"moe_dispatcher": "deepep", "moe_a2a_overlap": False}, facts={"capability": 10.0})
    hybrid, on = ("moe_dispatcher", "hybridep"), ("moe_a2a_overlap", True)
    assert set(of.choices({"ep": 8})) == {(), (("moe_dispatcher", "alltoall"),), (hybrid,), (on, hybrid)}
    assert of.choices({"ep": 1}) == ((),)
    # What the framework does by itself cannot run here, but where there is nothing to exchange.
    forced = software(*rows, defaults=of.defaults, facts=of.facts, forced=frozenset({"dispatcher"}))
    assert set(forced.choices({"ep": 8})) == {(("moe_dispatcher", "alltoall"),), (hybrid,), (on, hybrid)}
    assert forced.choices({"ep": 1}) == ((),)


def test_what_a_framework_has_on_without_effect_refuses_no_layout():
    """As Megatron-Bridge has weight gradients that are delayed, which have an effect with overlapped exchanges only."""
    row = switch("delayed", "delayed gradients", "delay_wgrad=true", "ep>1;moe_a2a_overlap=true")
    of = software(row, LAYERS, defaults={**OFF, "delay_wgrad": True, "moe_a2a_overlap": False})
    assert of.choices({"ep": 1, "recompute": "none"}) == (LAYERS_ON,)
    assert of.allows(LAYERS_ON, {"ep": 1, "recompute": "none", "moe_a2a_overlap": False})


def test_what_is_refused_or_has_a_better_one_does_not_stand():
    of = software(LAYERS, WHOLE, defaults=OFF)
    known = {"zero": 1, "recompute": "none"}
    assert of.allows(WHOLE_ON, known)
    assert not of.allows(LAYERS_ON, known)
    assert not of.allows((), known)
    assert not of.allows(WHOLE_ON, {**known, "zero": 2})
    assert of.allows(LAYERS_ON, {**known, "zero": 2})


FACTS = {"zero": (1, 3), "recompute": ("none", "full"), "etp": (1, 2)}


def standing(of, degrees, layout):
    """Return what of the choices of some degrees stands in a layout of them."""
    known = {**degrees, **layout}
    return [each for each in of.choices(degrees) if of.allows(each, known)]


@pytest.mark.parametrize("first", [(), ("zero",), ("etp", "recompute"), tuple(FACTS)])
def test_each_layout_has_one_choice_of_what_costs_nothing(first):
    """However little is known when choices are made: of those that are tried each layout has one, the best."""
    of = software(STASH, LAYERS, WHOLE, FUSER, defaults=OFF)
    for values in product(*FACTS.values()):
        layout = dict(zip(FACTS, values, strict=True))
        degrees = {name: layout[name] for name in first}
        assert standing(of, degrees, layout) == [of.choices(layout)[0]]
        assert len(of.choices(layout)) == 1


REAL = [
    ("qwen3-30b-a3b", "gb200", "megatron-bridge-2026", "mxfp8"),
    ("qwen3-30b-a3b", "h100", "megatron-bridge-2026", "bf16"),
    ("nemotron-3-nano", "gb200", "megatron-bridge-2026", "bf16"),
    ("gpt-oss-120b", "b200", "megatron-core-2025", "bf16"),
    ("llama3-8b", "h100", "megatron-core-2026", "fp8"),
]


def request_of(model, **said):
    given = {"model": load_model(model), "gpus": 64, "global_batch": 512, "seq_length": 4096}
    return JobRequest(**{**given, **said})


def software_on(model, cluster, framework, precision, **said):
    request = request_of(model, **{"framework": framework, "precision": precision, **said})
    none = {"offload_activations": 0, "offload_optimizer": 0.0}
    return software_of(request, load_framework(framework), load_cluster(cluster), tried=True, fixed=(), **none)


@pytest.mark.parametrize("given", REAL, ids=lambda each: f"{each[0]} on {each[1]}")
@pytest.mark.parametrize("ep", [1, 8])
def test_each_layout_has_one_choice_for_each_way_to_exchange_tokens(given, ep):
    of = software_on(*given)
    degrees = {"ep": ep, "etp": 1, "tp": 1, "pp": 1, "vpp": 1, "replicas": 64, "ep_crosses_domains": False}
    ways = ("moe_dispatcher", "moe_a2a_overlap")
    for recompute, zero, modules in (("none", 1, ()), ("full", 1, ()), ("selective", 1, ("moe_act",)), ("none", 3, ())):
        layout = {"recompute": recompute, "zero": zero, "recompute_modules": modules, "schedule": "1f1b"}
        found = standing(of, degrees, layout)
        assert found
        exchanged = [tuple(dict(each).get(name, of.defaults.get(name)) for name in ways) for each in found]
        assert len(exchanged) == len(set(exchanged))


@pytest.mark.parametrize("precision", ["bf16", None])
def test_what_the_type_of_gemms_refuses_is_not_taken_whoever_says_the_type(precision):
    """In bf16 no experts are fused, and so no graph holds the whole iteration; the best of HybridEP has others."""
    of = software_on("nemotron-3-nano", "gb200", "megatron-bridge-2026", precision)
    degrees = {"ep": 8, "etp": 1, "tp": 1, "pp": 1, "replicas": 64, "ep_crosses_domains": False, "zero": 1}
    best = dict(of.choices({**degrees, "precision": "bf16", "eight_bit": False, "four_bit": False})[0])
    assert "moe_paged_stash" not in best
    assert best.get("cuda_graph_impl") != "full_iteration"


@pytest.mark.parametrize(
    ("name", "value"), [("cuda_graph_impl", "none"), ("moe_dispatcher", "alltoall"), ("grad_reduce_bytes", 4)]
)
def test_what_a_job_says_stays(name, value):
    of = software_on("qwen3-30b-a3b", "gb200", "megatron-bridge-2026", "mxfp8", **{name: value})
    assert name not in of.tried
    found = of.choices({"ep": 8, "etp": 1, "tp": 1, "pp": 1, "replicas": 64, "zero": 1})
    assert found
    assert all(name not in dict(each) for each in found)


def test_nothing_is_tried_where_software_is_left_as_it_is():
    of = software_of(
        request_of("llama3-8b"), load_framework("megatron-core-2026"), load_cluster("h100"), tried=False, fixed=()
    )
    assert of.choices({}) == ((),)
    assert not of.tried
    assert of.allows((), {"zero": 1})
