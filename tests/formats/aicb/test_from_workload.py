"""Traces and other workloads as AICB rows, read again: the same computation and the same bytes by group."""

from collections import Counter
from pathlib import Path

import pytest

import traincast
from traincast.errors import ConfigError, FormatError
from traincast.formats.aicb.passes import works_of
from traincast.job.options import LayoutOptions, make_options
from traincast.workload.words import Group, Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
SHARED = Path(__file__).parents[4] / "shared" / "samples"
PROFILE = EXAMPLES / "megatron_moe_profile_rank7.txt"
OF_PROFILE = {"pp": 4, "dp": 4, "ep": 4, "microbatches": 16}
RUNS = [
    pytest.param(PROFILE, OF_PROFILE, id="profile"),
    pytest.param(EXAMPLES / "megatron_rank0_pp2.txt", {}, id="one-rank"),
    pytest.param(EXAMPLES / "megatron_pp4_tp2", {}, id="tp2-pp4"),
    pytest.param(EXAMPLES / "neusight_gpt2_large_dp.tsv", {"dp": 4}, id="neusight"),
    pytest.param(EXAMPLES / "pytorch_ddp_2gpu_rank0.json.gz", {}, id="kineto"),
    pytest.param(SHARED / "moe_pp2_ep4", {}, id="moe-pp2-ep4"),
    pytest.param(SHARED / "moe_pp4_ep2", {}, id="moe-pp4-ep2"),
    pytest.param(SHARED / "straggler_st", {}, id="straggler"),
]
NAMED = {Group.SHARD: Group.DP, Group.REPLICA: Group.DP, Group.WORLD: Group.DP}
LEFT_OUT = (Group.MP, Group.PP)


def written(tmp_path, source, **options):
    if not Path(source).exists():
        pytest.skip(f"{source} is not here")
    out = tmp_path / "workload.txt"
    done = traincast.convert(source, out, "aicb", force=True, **options)
    return out, done


def of_rank(work):
    """Return the seconds that a rank computes, and the bytes that it moves, by group and operation."""
    parts = (work.start, *work.forward, work.after_forward, *work.backward, work.end)
    items = [item for part in parts for item in part]
    moved = Counter()
    for item in items:
        if not item.computes and item.size_bytes >= 0:
            moved[NAMED.get(item.group, item.group), item.operation] += item.size_bytes
    return sum(item.time_s for item in items if item.computes), moved


@pytest.mark.slow
@pytest.mark.parametrize(("path", "options"), RUNS)
def test_computation_and_bytes_by_group_are_those_of_the_rank(tmp_path, path, options):
    if path.suffix == ".gz" or path.name == "straggler_st":
        pytest.importorskip("polars")
    out, done = written(tmp_path, path, **options)
    stage = int(next(note for note in done.lost if note.code == "aicb-one-rank").text.split("(stage ")[1].split(")")[0])
    compute_s, moved = of_rank(works_of(traincast.read(path, LayoutOptions(**options)))[stage])
    read = works_of(traincast.read(out))[stage]
    again_s, again = of_rank(read)
    assert again_s == pytest.approx(compute_s, rel=1e-5)
    lacking = {key: size for key, size in moved.items() if again.get(key) != size}
    # What has no row is said: sums over groups that rows have no name for, and what the stage's role leaves out.
    assert all(group in LEFT_OUT or operation is Operation.REDUCE for group, operation in lacking), lacking
    assert not again.keys() - moved.keys()


def test_stages_that_are_alike_take_the_same_step(tmp_path):
    out, _ = written(tmp_path, PROFILE, **OF_PROFILE)
    was = traincast.simulate(PROFILE, cluster="h100", **OF_PROFILE)
    now = traincast.simulate(out, cluster="h100")
    assert now.iteration_time_s == pytest.approx(was.iteration_time_s, rel=1e-3)
    for part in ("compute", "exposed_ep", "exposed_pp", "bubble"):
        assert now.breakdown_s[part] == pytest.approx(was.breakdown_s[part], abs=0.005 * was.iteration_time_s)


def test_a_rank_trace_takes_the_step_of_its_estimated_communication(tmp_path):
    path = EXAMPLES / "megatron_rank0_pp2.txt"
    out, done = written(tmp_path, path)
    was = traincast.simulate(path, cluster="h100", comm="model")
    assert traincast.simulate(out, cluster="h100").iteration_time_s == pytest.approx(was.iteration_time_s, rel=0.02)
    assert {"aicb-one-stage", "aicb-communication-times", "aicb-host", "aicb-no-row"} <= {n.code for n in done.lost}


def test_a_neusight_forecast_takes_the_same_step(tmp_path):
    path = EXAMPLES / "neusight_gpt2_large_dp.tsv"
    out, _ = written(tmp_path, path, dp=4)
    was = traincast.simulate(path, cluster="h100", dp=4)
    assert traincast.simulate(out, cluster="h100").iteration_time_s == pytest.approx(was.iteration_time_s, rel=0.02)


@pytest.mark.parametrize(("path", "options"), RUNS[:4])
def test_simai_reads_what_is_written(tmp_path, path, options):
    """Under the rules of its own reader and its analytical sum."""
    out, _ = written(tmp_path, path, **options)
    report = traincast.api.simai(out, make_options(cluster="h100"))
    assert report.total_s > report.compute_s > 0


def test_the_stage_that_is_written_can_be_said(tmp_path):
    run = EXAMPLES / "megatron_pp4_tp2"
    first, last = (written(tmp_path, run, stage=stage)[0].read_text() for stage in ("0", "3"))
    assert first != last
    assert "embedding_grads" in first
    with pytest.raises(ConfigError, match="option stage"):
        written(tmp_path, run, stage="4")
    with pytest.raises(ConfigError, match="applies to jobs"):
        written(tmp_path, run, parameters="job")


def test_what_has_no_time_is_refused(tmp_path):
    workload = traincast.read(EXAMPLES / "neusight_gpt2_large_dp.tsv")
    from msgspec.structs import replace

    unknown_T = workload.ops.duration_s_T * float("nan")
    with pytest.raises(FormatError, match="without a time"):
        written_workload = replace(workload, inputs=(), ops=replace(workload.ops, duration_s_T=unknown_T))
        traincast.convert(written_workload, tmp_path / "o.txt", "aicb")
