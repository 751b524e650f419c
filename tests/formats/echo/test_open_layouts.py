"""What rank traces imply of their layout, tried by taking ranks and names away from complete runs."""

import re
import shutil
from pathlib import Path

import pytest

import traincast
from traincast.job.options import LayoutOptions

ROOT = Path(__file__).parents[3]
PROFILE = ROOT / "examples" / "megatron_moe_profile_rank7.txt"
SHARED = ROOT.parent / "shared" / "samples"
TRUTHS = {
    ROOT / "examples" / "megatron_pp4_tp2": {"tp": 2, "dp": 1, "pp": 4, "ep": 1, "microbatches": 1},
    SHARED / "moe_pp2_ep4": {"tp": 1, "dp": 8, "pp": 2, "ep": 4, "microbatches": 8},
    SHARED / "moe_pp4_ep2": {"tp": 1, "dp": 4, "pp": 4, "ep": 2, "microbatches": 16},
}


def nameless(run, ranks, folder):
    """Copy the traces of some ranks under names that say nothing but the rank."""
    if not run.is_dir():
        pytest.skip(f"{run.name} is not here")
    files = {int(re.search(r"rank(\d+)_", path.name)[1]): path for path in run.glob("*.txt")}
    return [Path(shutil.copy(files[rank], folder / f"rank{rank}.txt")) for rank in ranks]


def layouts(paths, **options):
    """Return the layout that is taken and the others that are listed."""
    workload = traincast.read(paths, LayoutOptions(**options))
    taken = {name: getattr(workload.parallel, name) for name in ("tp", "dp", "pp", "ep", "microbatches")}
    return taken, list(workload.other_layouts)


def ranks_of(run):
    return range(8 if "pp4_tp2" in run.name else 16)


@pytest.mark.parametrize(
    ("run", "rank"), [pytest.param(run, rank, id=f"{run.name}-{rank}") for run in TRUTHS for rank in ranks_of(run)]
)
def test_of_one_rank_the_truth_is_taken_or_listed(tmp_path, run, rank):
    paths = nameless(run, [rank], tmp_path)
    taken, others = layouts(paths)
    assert TRUTHS[run] in [taken, *others]
    stage = rank // (TRUTHS[run]["tp"] * TRUTHS[run]["dp"])
    for each in [taken, *others]:
        # Each puts the rank where its lines say that it is, and experts on ranks that there are.
        size = each["tp"] * each["dp"]
        assert rank // size == stage
        assert size % each["ep"] == 0
        assert (each["ep"] > 1) == (TRUTHS[run]["ep"] > 1)
    assert traincast.simulate(paths, cluster="h100").iteration_time_s > 0


@pytest.mark.parametrize("run", TRUTHS, ids=lambda run: run.name)
@pytest.mark.parametrize("part", ["all", "first and last", "last half", "all but the first"])
def test_where_the_traces_determine_the_layout_it_is_found(tmp_path, run, part):
    ranks = list(ranks_of(run))
    chosen = {
        "all": ranks,
        "first and last": [ranks[0], ranks[-1]],
        "last half": ranks[len(ranks) // 2 :],
        "all but the first": ranks[1:],
    }[part]
    taken, others = layouts(nameless(run, chosen, tmp_path))
    assert taken == TRUTHS[run]
    if part in ("all", "all but the first"):
        assert not others


def test_a_lone_gpu_that_played_a_rank_implies_a_stage_of_four():
    taken, others = layouts(PROFILE)
    assert taken == {"tp": 1, "dp": 4, "pp": 3, "ep": 4, "microbatches": 1}
    assert {"tp": 1, "dp": 4, "pp": 4, "ep": 4, "microbatches": 16} in others
    result = traincast.simulate(PROFILE, cluster="h100", suggest=True)
    notes = {note.code: note.text for note in (*result.assumptions, *result.warnings)}
    assert "rank 7 is of stage 1, so a stage has 4 to 7 ranks; 8 experts are spread" in notes["ep-from-experts"]
    assert "works out no loss, so it is not the last" in notes["pp-from-loss"]
    assert [each.gpus for each in result.other_layouts][:2] == [12, 12]


def test_every_listed_layout_has_the_step_of_its_flags():
    result = traincast.simulate(PROFILE, cluster="h100", suggest=True)
    for each in result.other_layouts[::4]:
        fields = {name: getattr(each, name) for name in ("tp", "dp", "pp", "ep", "microbatches")}
        again = traincast.simulate(PROFILE, cluster="h100", **fields)
        assert again.iteration_time_s == pytest.approx(each.iteration_time_s, rel=1e-9)
        assert again.parallel.world_size == each.gpus


def test_flags_close_what_was_open():
    taken, others = layouts(PROFILE, pp=4, dp=4, ep=4, microbatches=16)
    assert not others
    assert layouts(PROFILE, pp=4, microbatches=16)[0] == taken


def test_the_last_stage_of_a_profile_works_out_the_loss(tmp_path):
    text = PROFILE.read_text()
    line = next(each for each in text.splitlines() if ":optimizer_step(" in each)
    path = tmp_path / "rank7.txt"
    path.write_text(text + line.replace(":optimizer_step(", ":loss_func(") + "\n")
    taken, others = layouts(path)
    assert (taken["pp"], {each["pp"] for each in others}) == (2, {2})


def test_written_replicas_are_the_replicas(tmp_path):
    text = PROFILE.read_text()
    line = next(each for each in text.splitlines() if ":dp_allreduce(" in each)
    path = tmp_path / "rank7.txt"
    path.write_text(text.replace(line, line.replace("sub_operations=", "data_parallel_world_size=6,sub_operations=")))
    taken, others = layouts(path)
    assert (taken["dp"], taken["ep"]) == (6, 2)
    assert {each["dp"] for each in others} == {6}
