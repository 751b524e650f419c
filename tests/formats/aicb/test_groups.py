"""Rows whose group their column alone does not tell: collective tests, shared parameters, groups of one member."""

from pathlib import Path

import pytest

from aicb_runs import TRANSFORMER, codes, run, work, write_text
from job_parts import TINY, TINY_EXPERTS, job_of
from support import row, run_job
from traincast import api
from traincast.errors import FormatError, InfeasibleError
from traincast.hardware.clusters import load_cluster
from traincast.job.options import SimulateOptions
from traincast.simulation.warnings import without_peers
from traincast.workload.words import Group

EXAMPLES = Path(__file__).parents[3] / "examples"
MS = 1_000_000
V1_0 = f"{TRANSFORMER}\tmodel_parallel_NPU_group: {{tp}} checkpoints: 0 checkpoint_initiates: 0"
SIZES = [4096 << n for n in range(19)]
MICRO = [row("micro_test", 1, 1, (1, "ALLREDUCE", size), 1) for size in SIZES]
GATHERS = [row("layer1", MS, (MS, "ALLGATHER", 357_468), (1, "REDUCESCATTER", 1 << 30), 100)]
GATHERS += [row(f"layer{n}", MS, (MS, "ALLGATHER", 317_843), 1, 100) for n in range(2, 13)]


def notes_of(result, code):
    return [note for note in (*result.assumptions, *result.warnings) if note.code == code]


def test_a_test_of_a_collective_runs_over_the_tp_group_that_is_its_world(tmp_path):
    path = write_text(tmp_path / "w.txt", V1_0.format(tp=8), MICRO)
    result = run(path, "h100")
    assert {(each.group, each.ranks) for each in result.collectives} == {("tp", 8)}
    assert sorted(each.size_bytes for each in result.collectives) == SIZES
    alone = [api.collective("all_reduce", size, gpus=8, cluster="h100").rows[0].time_s for size in SIZES]
    assert result.iteration_time_s == pytest.approx(sum(alone), rel=1e-3)
    assert notes_of(result, "gradients-over-tp")
    assert not codes(result) & {"group-of-one", "placeholder-compute"}
    assert {total.group for total in api.inspect(path).totals} == {"compute", "tp"}


def test_a_test_of_a_collective_in_a_larger_world_keeps_its_dp_group(tmp_path):
    result = run(write_text(tmp_path / "w.txt", V1_0.format(tp=8), MICRO), "h100", gpus=64)
    assert {(each.group, each.ranks) for each in result.collectives} == {("dp", 8)}
    assert "gradients-over-tp" not in codes(result)


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(row("attention_layer", (MS, "ALLREDUCE", 4), MS), id="tp-in-forward"),
        pytest.param(row("grad_param_comm", 1, 1, (1, "REDUCESCATTER", 4096)), id="gradients-by-name"),
        pytest.param(row("mlp_layer", 1, 1, (1, "ALLREDUCE_DP", 4096)), id="group-by-suffix"),
    ],
)
def test_gradients_stay_with_dp_where_the_file_shows_what_its_columns_are(tmp_path, extra):
    result = run(write_text(tmp_path / "w.txt", V1_0.format(tp=8), [*MICRO, extra]), "h100")
    assert "gradients-over-tp" not in codes(result)
    assert notes_of(result, "group-of-one")


@pytest.mark.parametrize(("options", "ranks"), [({}, 8), ({"gpus": 64}, 64), ({"dp": 16}, 16)])
def test_parameters_that_are_gathered_without_a_tp_group_are_shared_by_dp(tmp_path, options, ranks):
    result = run(write_text(tmp_path / "w.txt", V1_0.format(tp=1), GATHERS), "a100", **options)
    found = {(each.group, each.op, each.size_bytes): (each.count, each.ranks) for each in result.collectives}
    assert found == {
        ("dp", "all_gather", 357_468): (1, ranks),
        ("dp", "all_gather", 317_843): (11, ranks),
        ("dp", "reduce_scatter", 1 << 30): (1, ranks),
    }
    assert notes_of(result, "gathers-over-dp")
    assert "group-of-one" not in codes(result)
    assert ("world-absent" in codes(result)) == (not options)


@pytest.mark.parametrize(
    ("tp", "more"),
    [
        pytest.param(2, [], id="a-tp-group"),
        pytest.param(1, [row("layer13", (MS, "ALLREDUCE", 64), MS)], id="an-all-reduce"),
        pytest.param(1, [row("mlp_moelayer", (MS, "ALLGATHER", 64), MS)], id="token-counts-of-experts"),
    ],
)
def test_gathers_stay_with_tp_where_they_may_be_of_activations(tmp_path, tp, more):
    result = run(write_text(tmp_path / "w.txt", V1_0.format(tp=tp), [*GATHERS, *more]), "a100", gpus=16)
    assert "gathers-over-dp" not in codes(result)
    assert {op.group for op in work(result) if op.size_bytes == 317_843} == {Group.TP}


def test_a_group_of_one_member_is_a_warning_with_its_bytes_and_first_line(tmp_path):
    rows = [row("embedding_layer"), *[row("attention_layer", (MS, "ALLREDUCE", 1 << 20), MS)] * 3]
    path = write_text(tmp_path / "w.txt", f"{TRANSFORMER} model_parallel_NPU_group: 1 ga: 2 all_gpus: 4", rows * 2)
    (note,) = notes_of(run(path, "h100"), "group-of-one")
    assert "6 communications over tp (6 MiB in all on rank 0)" in note.text
    assert "(tp 1)" in note.text
    assert note.place == f"{path}:4"
    assert note in run(path, "h100").warnings
    assert not notes_of(run(path, "h100", tp=2), "group-of-one")


def test_bytes_that_a_layout_of_the_user_drops_are_told_in_other_formats_too():
    result = run(EXAMPLES / "neusight_gpt2_large_dp.tsv", "a100", dp=1, layers=1)
    (note,) = notes_of(result, "group-of-one")
    assert "over dp" in note.text
    assert "(dp 1, cp 1)" in note.text


@pytest.mark.parametrize("degrees", [{}, {"gpus": 8, "tp": 8}, {"gpus": 4, "pp": 4}, {"gpus": 8, "zero": 3}])
@pytest.mark.parametrize("model", [TINY, TINY_EXPERTS])
def test_a_job_with_degrees_of_one_has_nothing_to_warn_of(model, degrees):
    job = job_of(model, **degrees)
    done = run_job(job, load_cluster("h100"), SimulateOptions())
    assert 1 in (job.parallel.tp, job.parallel.dp, job.parallel.pp)
    assert not without_peers(done.step.program, job.parallel)


def test_virtual_stages_are_bounded_by_the_block_with_fewest_layers(tmp_path):
    layer = row("attention_layer", (MS, "ALLREDUCE", 1 << 20), MS)
    rows = [row("embedding_layer"), *[layer] * 3, row("embedding_layer"), *[layer] * 2]
    header = f"{TRANSFORMER} model_parallel_NPU_group: 2 ep: 1 pp: 2 ga: 2 all_gpus: 4"
    path = write_text(tmp_path / "w.txt", header, rows)
    result = run(path, vpp=2)
    forwards = [op for op in work(result) if op.name == "attention_layer" and op.what[1] == "compute"]
    # Each of the two stages runs the file's whole stage: three layers in microbatch 0, two in microbatch 1.
    assert [sum(op.microbatch == m and op.phase == 0 for op in forwards) for m in range(2)] == [3, 2]
    with pytest.raises(InfeasibleError, match="vpp 3 is more than the 2 layers of a stage"):
        run(path, vpp=3)


def test_communications_that_a_policy_never_runs_are_counted_from_the_first_line(tmp_path):
    rows = [
        row("a", MS, MS, (MS, "ALLREDUCE", 8)),
        row("b", (MS, "ALLGATHER", 8), MS),
        row("c", (MS, "ALLGATHER", 8), (MS, "ALLREDUCE", 8)),
    ]
    path = write_text(tmp_path / "w.txt", "DATA model_parallel_NPU_group: 1 all_gpus: 8", rows)
    (note,) = notes_of(run(path, "h100"), "policy-ignores")
    assert note.text == "policy DATA does not run 3 communications that are written"
    assert note.place == f"{path}:4"


@pytest.mark.parametrize("header", ["ga VPP: 2 pp 3", "ga vpp 2 pp: 3", "ga future : 2", "pp 3 ga", "ga all_gpus 8"])
def test_a_key_before_another_key_has_no_value(tmp_path, header):
    path = write_text(tmp_path / "w.txt", f"{TRANSFORMER} {header}", GATHERS)
    with pytest.raises(FormatError, match="header key 'ga': has no value"):
        run(path)


def test_bare_keys_end_where_the_next_one_begins(tmp_path):
    path = write_text(tmp_path / "w.txt", f"{TRANSFORMER} tag 1 2 ga 1 pp_comm 8 pp: 1", GATHERS)
    layout = api.inspect(path).layout
    assert (layout["tag"], layout["microbatches"], layout["pp_message_bytes"], layout["pp"]) == ("1 2", 1, 8, 1)
