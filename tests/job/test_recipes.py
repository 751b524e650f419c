"""Published recipes by name."""

import re

import pytest

from traincast.errors import UnknownNameError
from traincast.job.draft import Draft
from traincast.job.fields import FIELDS
from traincast.job.recipes import as_cell, find_recipe, from_cell, recipe_names, recipes, search_recipes
from traincast.job.resolve import resolve_job

NAME = "deepseek_v3_pretrain_256gpu_gb200_fp8mx"


def drafted(name=NAME, model=None, **said):
    """Return the job of a recipe under fields."""
    return find_recipe(name).draft(Draft(model=model, fields=said))


def test_names_say_what_a_recipe_is_and_releases_tell_them_apart():
    assert len({each.full_name for each in recipes()}) == len(recipes()) > 500
    for each in recipes():
        assert re.fullmatch(r"[a-z0-9_]+", each.name)
        assert f"_{each.fields['gpus']}gpu_{each.gpu.split('-')[0].lower()}_" in each.name
        assert each.basis in ("exact", "near", "stated")
        assert each.source
        assert each.release


def test_a_name_is_the_newest_release_and_a_release_can_be_named():
    releases = [each.release for each in recipes() if each.name == NAME]
    assert releases[0] == find_recipe(NAME).release == find_recipe(f"{NAME}_config").release
    assert releases == sorted(releases, reverse=True)
    older = find_recipe(f"{NAME}@26.02")
    assert older.release == "Megatron-Bridge 26.02"
    assert older.fields["cuda_graph_impl"] != find_recipe(NAME).fields["cuda_graph_impl"]


@pytest.mark.parametrize("name", ["deepseek_v3_pretrain_256gpu_gb200_fp8", f"{NAME}@27.13"])
def test_an_unknown_name_lists_those_near_it(name):
    with pytest.raises(UnknownNameError, match=f"did you mean.*{NAME}"):
        find_recipe(name)


def test_a_search_takes_parts_of_names_and_releases():
    found = search_recipes(("DeepSeek", "gb200", "26.08"))
    assert {each.release for each in found} == {"Megatron-Bridge 26.08"}
    assert all("deepseek" in each.name and "gb200" in each.name for each in found)
    assert search_recipes(()) == recipes()
    with pytest.raises(UnknownNameError):
        search_recipes(("deepseek", "tpu"))


def test_a_recipe_is_a_whole_job_with_its_cluster_and_source():
    draft = drafted()
    job = resolve_job(draft.request(), draft.cluster)
    assert (job.model.name, job.parallel.ep, job.parallel.pp, job.precision.dtype) == ("deepseek-v3", 64, 4, "mxfp8")
    assert (job.experts.dispatcher, job.kernels.cuda_graph_scope) == ("hybridep", ("full_iteration",))
    assert draft.cluster.gpu.name.startswith("GB200")
    (note,) = draft.notes
    assert "Megatron-Bridge 26.08" in note.text
    assert "perf_recipes/deepseek/gb200/deepseek_v3.py" in note.text


def test_what_is_given_wins_and_takes_away_what_then_means_nothing():
    graphs = drafted(cuda_graphs=False)
    assert resolve_job(graphs.request(), graphs.cluster).kernels.cuda_graphs is False
    assert "cuda_graph_impl, cuda_graph_scope" in graphs.notes[1].text
    split = drafted(pp=8, ep=32, gpus=512)
    job = resolve_job(split.request(), split.cluster)
    assert (job.parallel.pp, job.parallel.dp, "pipeline_layout" in split.fields) == (8, 64, False)
    narrow = drafted("llama3_70b_pretrain_64gpu_h100_fp8cs", precision="bf16")
    assert resolve_job(narrow.request(), narrow.cluster).precision.fp8_recipe == "none"
    other = drafted(model="qwen3-235b-a22b")
    assert resolve_job(other.request(), other.cluster).model.name == "qwen3-235b-a22b"
    same = drafted(pp=4, precision="mxfp8")
    assert same.fields == drafted().fields


def test_more_gpus_stand_in_a_cluster_for_as_many():
    few, many = drafted(gpus=64), drafted(gpus=512)
    assert few.cluster.gpu == many.cluster.gpu
    assert (few.cluster.gpus_per_node, many.cluster.gpus_used_per_node or many.cluster.gpus_per_node) == (72, 64)


def test_cells_are_read_as_they_are_written():
    for each in recipes()[::7]:
        assert {name: from_cell(name, as_cell(value)) for name, value in each.fields.items()} == dict(each.fields)
        assert {*each.fields} <= {*FIELDS}


def test_no_cell_is_a_measurement():
    known = {"name", "release", "basis", "source", "model", "model_changes", "gpu", "gpus_per_node"}
    assert {name for each in recipes() for name in each.__struct_fields__} == {*known, "nic_bytes_per_s", "fields"}
    assert recipe_names()[0] == recipes()[0].name
