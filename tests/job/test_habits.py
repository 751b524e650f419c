"""Levels of effort: a program as it comes, and as its published recipes set it."""

import pytest
from msgspec.structs import replace

import traincast
from sameness.jobs import draw
from traincast.dialects import draft_like
from traincast.errors import ConfigError, TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.fields import FIELDS, said_together
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.habits import plain_settings, usual_settings
from traincast.job.levels import LEVELS
from traincast.job.recipes import recipes
from traincast.job.resolve import resolve_job
from traincast.job.words import job_fields
from traincast.report.json import encode, result_to_dict

BRIDGE = load_framework("megatron-bridge-2026")
OWN = """
base = "megatron-core-2026"

[out_of_the_box]
source = "its manual"
cuda_graphs = false

[[habits]]
settings = { moe_dispatcher = "alltoall", fused_router = true }
source = "all recipes"

[[habits]]
when = ["gpu=gb200"]
settings = { moe_dispatcher = "hybridep", cuda_graph_impl = "full_iteration" }
source = "recipes of racks"

[[habits]]
when = ["cuda_graph_impl=full_iteration"]
settings = { moe_paged_stash = true }
source = "what graphs need"
"""


def job_of(model="deepseek-v3", **said):
    """Return a request of 256 GPUs."""
    fields = {"gpus": 256, "seq_length": 4096, "global_batch": 1024, "precision": "mxfp8", **said}
    return Draft(model=model, fields=fields).request()


@pytest.fixture
def own(tmp_path):
    """A framework of one's own with habits."""
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return load_framework(str(path))


@pytest.mark.parametrize("model", ["deepseek-v3", "llama3-8b"])
def test_megatron_out_of_the_box_is_megatron_without_flags(model):
    experts = "--num-experts 8" if model == "deepseek-v3" else ""
    words = f"--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --vocab-size 32000 --seq-length 4096 {experts}"
    fields = draft_like("megatron", [f"{words} --micro-batch-size 1 --world-size 8"]).fields
    plain = plain_settings(load_framework("megatron-core-2026"), job_of(model))
    assert {name: value for name, value in plain.items() if name in fields and fields[name] != value} == {}
    assert len(plain.keys() & fields.keys()) >= 10


def test_torchtitan_out_of_the_box_is_torchtitan_without_flags():
    fields = draft_like("torchtitan", ["--nproc_per_node 8 --model.name llama3 --model.flavor 8B"]).fields
    plain = plain_settings(load_framework("torchtitan-2025"), job_of("llama3-8b"))
    assert plain == {name: fields[name] for name in plain}


def test_later_habits_win_and_know_what_those_before_set(own):
    racks = usual_settings(own, job_of(), load_cluster("gb200"))
    assert racks == {
        **{"moe_dispatcher": "hybridep", "fused_router": True},
        **{"cuda_graph_impl": "full_iteration", "moe_paged_stash": True},
    }
    assert usual_settings(own, job_of(), load_cluster("h100")) == {"moe_dispatcher": "alltoall", "fused_router": True}
    assert usual_settings(own, job_of(), None) == {"moe_dispatcher": "alltoall", "fused_router": True}
    assert usual_settings(own, job_of("llama3-8b"), load_cluster("gb200")) == {"cuda_graph_impl": "full_iteration"}


def test_what_a_job_says_wins_also_in_other_words(own):
    rack = load_cluster("gb200")
    found = usual_settings(own, job_of(cuda_graphs=False, fused_router=False), rack)
    assert found == {"moe_dispatcher": "hybridep"}
    assert usual_settings(own, job_of(deduplicated_dispatch=True), rack).keys().isdisjoint({"moe_dispatcher"})
    assert plain_settings(own, job_of(cuda_graph_impl="local")) == {}
    assert plain_settings(own, job_of()) == {"cuda_graphs": False}


def test_a_level_is_filled_in_with_its_sources_and_none_changes_nothing(own):
    rack = load_cluster("gb200")
    plain = resolve_job(job_of(ep=64, framework=own), rack)
    tuned = resolve_job(job_of(ep=64, framework=own, tuned="usual"), rack)
    assert plain == resolve_job(job_of(ep=64, framework=own, tuned=None), rack)
    assert (plain.experts.dispatcher, tuned.experts.dispatcher) == ("deepep", "hybridep")
    notes = {note.code: note.text for note in tuned.assumptions}
    assert "moe_dispatcher hybridep" in notes["tuned-experts"]
    assert "recipes of racks; all recipes; what graphs need" in notes["tuned-experts"]
    assert "recipes of racks" in notes["tuned-kernels"]
    said = {name: getattr(tuned.experts, name) for name in ("fused_router", "paged_stash")}
    assert said == {"fused_router": True, "paged_stash": True}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", framework_names())
def test_every_framework_runs_at_every_level(name, level):
    request = job_of("llama3-8b", framework=name, tuned=level, precision="bf16", gpus=64, tp=2, pp=2)
    job = resolve_job(request, load_cluster("h100"))
    codes = [note.code for note in job.assumptions if note.code.startswith("tuned-")]
    assert codes
    assert not [note for note in job.assumptions if note.code.endswith("-unused") and not note.code.startswith("tuned")]


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "nemotron-3-nano", "llama3-70b"])
@pytest.mark.parametrize("cluster", ["h100", "b200", "b300", "gb200", "gb300"])
@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8", "nvfp4"])
def test_habits_of_recipes_make_jobs_that_can_be(model, cluster, precision):
    if cluster == "h100" and precision in ("mxfp8", "nvfp4"):
        pytest.skip("Hopper has no such units")
    request = job_of(model, precision=precision, ep=8 if model != "llama3-70b" else None, tuned="usual", tp=2, pp=1)
    resolve_job(replace(request, framework="megatron-bridge-2026"), load_cluster(cluster))


def refused(request, cluster):
    """Return why a job cannot be; empty where it can."""
    try:
        resolve_job(request, cluster)
    except TraincastError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("number", range(0, 120, 3))
def test_no_level_refuses_a_job_that_can_be_without(number):
    job = draw(3, number)
    request = Draft(model=job.shape.name, fields=job_fields(job.fields)).request()
    cluster = load_cluster(job.cluster)
    for framework in (request.framework, "megatron-bridge-2026"):
        named = replace(request, framework=framework, year=None if framework else request.year)
        if not refused(named, cluster):
            assert [refused(replace(named, tuned=level), cluster) for level in LEVELS] == ["", "", ""]


SWITCHES = (
    *("fp8_recipe", "param_gather_bytes", "bf16_first_last", "overlap_tp", "overlap_grad_reduce", "grad_reduce_bytes"),
    *("overlap_param_gather", "cuda_graph_impl", "fused_router", "fused_permute", "moe_dispatcher", "moe_a2a_overlap"),
    *("moe_shared_expert_overlap", "moe_paged_stash", "te_op_fuser", "fp8_attention", "recompute"),
)


def test_habits_are_those_of_the_newest_recipes():
    """Nine of ten switches of recipes of 26.06 and later follow from the model, the GPU and the precision."""
    told, same = 0, 0
    for each in recipes():
        if each.basis != "exact" or not each.release.startswith(("Megatron-Bridge 26.06", "Megatron-Bridge 26.08")):
            continue
        draft = each.draft(Draft())
        request = replace(draft.request(), **dict.fromkeys((*SWITCHES, "cuda_graph_scope", "recompute_modules")))
        usual = usual_settings(BRIDGE, request, draft.cluster)
        shared = [name for name in SWITCHES if name in usual and name in each.fields]
        told += len(shared)
        same += sum(usual[name] == each.fields[name] for name in shared)
    assert told > 400
    assert same / told > 0.93


def test_fields_that_go_together_are_fields_of_a_job():
    for name, field in FIELDS.items():
        family = said_together(name)
        assert name in family
        assert all(said_together(each) == family for each in family)
        assert {*field.goes_with} <= {*FIELDS}


def test_a_framework_of_another_kin_does_not_inherit_levels():
    assert load_framework("nanotron-2024").out_of_the_box.source.startswith("huggingface/nanotron")
    assert load_framework("eager").out_of_the_box is None
    assert load_framework("torchtitan-2025").usual_as == ""


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[out_of_the_box]\ncuda_graphs = false", "out_of_the_box.source"),
        ("[out_of_the_box]\nsource = 3\ncuda_graphs = false", "out_of_the_box.source"),
        ('[[habits]]\nwhen = 3\nsettings = {}\nsource = "x"', "habits.when"),
        ('[[habits]]\nwhen = [3]\nsettings = {}\nsource = "x"', "habits.when"),
        ('[[habits]]\nwhen = ["ep>many"]\nsettings = {}\nsource = "x"', "habits.when"),
        ('[[habits]]\nsettings = [1, 2]\nsource = "x"', "habits.settings"),
        ('[[habits]]\nsource = "x"', "habits.settings"),
        ("habits = [3]", "habits"),
        ('[out_of_the_box]\nsource = "x"\ncuda_graph = false', "out_of_the_box.cuda_graph"),
        ('[out_of_the_box]\nsource = "x"\ncuda_graphs = 3', "out_of_the_box.cuda_graphs"),
        ('[out_of_the_box]\nsource = "x"\nmodel = "gpt2"', "out_of_the_box.model"),
        ('[[habits]]\nwhen = ["expert"]\nsettings = {}\nsource = "x"', "habits.when"),
        ('[[habits]]\nif = ["experts"]\nsettings = {}\nsource = "x"', "habits.if"),
        ('[[habits]]\nsettings = { moe_dispatcher = "pigeon" }\nsource = "x"', "habits.moe_dispatcher"),
        ("habits = 3", "habits"),
        ("out_of_the_box = 3", "out_of_the_box"),
    ],
)
def test_a_wrong_table_is_refused_with_its_key(text, field, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(f'base = "megatron-core-2026"\n\n{text}\n')
    with pytest.raises(ConfigError, match=r"wrong\.toml") as refused:
        load_framework(str(path))
    assert refused.value.field == field


def test_a_result_with_levels_of_ones_own_is_run_again_the_same(own, tmp_path):
    (model,) = traincast.models(["llama3-8b"])
    said = {"gpus": 8, "tp": 2, "seq_length": 4096, "global_batch": 16, "precision": "mxfp8"}
    first = traincast.predict(model=model, cluster="gb200", framework=own, tuned="usual", **said)
    path = tmp_path / "result.json"
    path.write_bytes(encode(result_to_dict(first)))
    again = traincast.predict(path)
    assert again.iteration_time_s == first.iteration_time_s
    assert again.job.cuda_graph_scope == ("full_iteration",)


LAYOUT = (
    *("gpus", "seq_length", "global_batch", "micro_batch", "tp", "pp", "vpp", "cp", "ep", "etp", "pipeline_layout"),
    *("precision", "embedding_as_layer", "head_as_layer", "moe_routing"),
)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek_v3_pretrain_256gpu_gb200_fp8mx",
        "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx",
        "qwen3_235b_a22b_pretrain_256gpu_gb300_fp8mx",
        "gpt_oss_120b_pretrain_64gpu_gb300_bf16",
        "llama31_405b_pretrain_256gpu_gb200_fp8cs",
    ],
)
def test_as_usual_takes_as_long_as_the_recipe_and_out_of_the_box_longer(name):
    """Where a job says a recipe's layout alone, the habits of its framework give the recipe's step."""
    recipe = traincast.recipes(name)[0]
    layout = {field: recipe.fields[field] for field in LAYOUT if field in recipe.fields}
    said = {"model": recipe.loaded_model(), "cluster": recipe.cluster(layout["gpus"]), "allow_oom": True, **layout}
    steps = {
        level: traincast.predict(framework="megatron-bridge-2026", tuned=level, suggest=False, **said).iteration_time_s
        for level in ("out-of-the-box", "usual")
    }
    of_recipe = traincast.predict(recipe=name, suggest=False, allow_oom=True).iteration_time_s
    assert steps["usual"] == pytest.approx(of_recipe, rel=0.02)
    assert steps["out-of-the-box"] > 1.03 * of_recipe
