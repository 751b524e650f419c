"""The shipped table of recipes is what the studies read of their runs, without what was measured."""

import gzip

import pytest
from msgspec.structs import replace

from traincast.job.draft import Draft
from traincast.job.recipes import TABLE, recipes
from traincast.shipped import SHIPPED

pack_recipes = pytest.importorskip("pack_recipes")


@pytest.fixture(scope="module")
def studied():
    """Return the recipes of the studies by their full names."""
    try:
        found = [*pack_recipes.named(pack_recipes.recipes())]
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return {f"{name}@{each.release.rpartition(' ')[2]}": each for name, each in found}


def plain(request):
    """Return a request whose model has no name of its own."""
    return replace(request, model=replace(request.model, name="", source="", notes=()))


@pytest.mark.slow
def test_a_recipe_is_the_job_that_the_studies_read(studied):
    assert {each.full_name for each in recipes()} == {*studied}
    for each in recipes():
        run, draft = studied[each.full_name].run, each.draft(Draft())
        assert plain(draft.request()) == plain(run.request), each.full_name
        assert draft.cluster == run.cluster, each.full_name


@pytest.mark.slow
def test_the_table_is_the_one_that_the_study_packs_and_says_nothing_measured(studied):
    shipped = gzip.decompress((SHIPPED / TABLE).read_bytes()).decode()
    assert shipped == gzip.decompress(pack_recipes.packed()).decode()
    assert not [name for name in shipped.splitlines()[0].split(",") if "measured" in name or name.startswith("x_")]
    assert len(studied) > 500
