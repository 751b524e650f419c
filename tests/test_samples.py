"""The acceptance numbers of the two AICB samples, on their copies in ``examples/``."""

import math
from pathlib import Path

import numpy as np
import pytest

from aicb_runs import check_sums, codes, work
from support import ALONE
from traincast import api
from traincast.workload.words import Kind

EXAMPLES = Path(__file__).parent.parent / "examples"
GPT_405B = EXAMPLES / "aicb_gpt_405b_1024gpu.txt"
SCALED = EXAMPLES / "aicb_scaled_512gpu.txt"
ENDLESS = 1e15
"""Bus bandwidth at which bytes take no time."""


def simulate(path, cluster="h100", **options):
    result = api.simulate(path, cluster=cluster, **options)
    check_sums(result)
    return result


@pytest.fixture(scope="module")
def on_h100():
    return simulate(GPT_405B)


def test_405b_as_written_takes_the_time_of_its_pipeline():
    # (16 microbatches + 15) x the 0.4506 s of a microbatch, and 3.8 ms of optimizer.
    result = simulate(GPT_405B, "ideal", stage_roles="as-written")
    assert result.iteration_time_s == pytest.approx(13.972, rel=5e-4)
    assert {key for key, value in result.breakdown_s.items() if value > 1e-6} == {"compute", "bubble"}


def test_405b_with_roles_saves_the_rows_that_a_stage_does_not_have():
    result = simulate(GPT_405B, "ideal")
    assert result.iteration_time_s == pytest.approx(13.685, rel=1e-3)
    assert result.parallel == {
        "world_size": 1024,
        "dp": 8,
        "tp": 8,
        "pp": 16,
        "vpp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 8,
        "microbatches": 16,
        "schedule": "1f1b",
    }


def test_405b_interleaved_shrinks_the_bubble():
    result = simulate(GPT_405B, "ideal", vpp=8)
    assert 7.9 < result.iteration_time_s < 8.1
    assert result.parallel.schedule == "interleaved"


def test_405b_on_h100(on_h100):
    assert 14.2 < on_h100.iteration_time_s < 15.0
    assert 0.3 < on_h100.breakdown_s["exposed_tp"] < 0.8
    assert 0.3 < on_h100.breakdown_s["exposed_dp"] < 0.5
    assert on_h100.breakdown_s["exposed_pp"] > 0
    assert on_h100.warnings == ()
    assert codes(on_h100) == {"vpp-absent", "pp-comm-absent", "zero-size", "shared-links"}


@pytest.mark.parametrize(("group", "least", "most"), [("tp", 0.3, 0.8), ("dp", 0.3, 0.5)])
def test_405b_without_the_cost_of_a_group(on_h100, group, least, most):
    result = simulate(GPT_405B, busbw_bytes_per_s={group: ENDLESS})
    assert least < on_h100.iteration_time_s - result.iteration_time_s < most


@pytest.mark.parametrize("path", [GPT_405B, SCALED])
def test_every_collective_is_priced_and_listed(path):
    result = simulate(path)
    listed = {}
    for each in result.collectives:
        assert math.isfinite(each.time_s)
        assert each.time_s > 0
        assert each.ranks > 1
        assert each.algorithm not in ("", "none")
        listed[each.group, each.op, each.size_bytes] = each
    for stage in sorted({rank.stage for rank in result.ranks}):
        for op in work(result, stage):
            if op.kind is Kind.COLLECTIVE:
                assert op.end_s - op.start_s > 0
                assert (op.group.name.lower(), op.operation.name.lower(), op.size_bytes) in listed


def test_scaled_is_one_microbatch_that_walks_all_virtual_stages():
    result = simulate(SCALED, "ideal")
    assert 7.16 < result.iteration_time_s < 7.30
    assert "single-microbatch" in {note.code for note in result.warnings}
    assert (result.parallel.pp, result.parallel.vpp, result.parallel.microbatches) == (8, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("path", [GPT_405B, SCALED])
@pytest.mark.parametrize("microbatches", [1, 3, 5, 12])
def test_interleaved_runs_any_number_of_microbatches(path, microbatches):
    result = simulate(path, pp=8, vpp=2, microbatches=microbatches)
    assert result.parallel.schedule == "interleaved"
    assert result.parallel.microbatches == microbatches
    assert "megatron-would-refuse" in codes(result)
    stages = sorted({rank.stage for rank in result.ranks})
    for stage in stages:
        done = {(op.microbatch, op.virtual_stage) for op in work(result, stage) if op.microbatch >= 0}
        assert done == {(m, q) for m in range(microbatches) for q in (stage, stage + 8)}


@pytest.mark.slow
def test_scaled_folded_and_unfolded_are_equal_bit_for_bit():
    folded, unfolded = simulate(SCALED), simulate(SCALED, unfold=True)
    assert len(folded.ranks) < len(unfolded.ranks) == 512
    assert folded.iteration_time_s == unfolded.iteration_time_s
    assert folded.breakdown_s == unfolded.breakdown_s
    assert folded.collectives == unfolded.collectives
    every = {rank.rank: rank for rank in unfolded.ranks}
    for rank in folded.ranks:
        twin = every[rank.rank]
        assert (rank.end_s, rank.compute_s, rank.wait_s) == (twin.end_s, twin.compute_s, twin.wait_s)
        assert rank.breakdown_s == twin.breakdown_s
    end_s = {(rank.stage, rank.end_s) for rank in folded.ranks}
    assert {(rank.stage, rank.end_s) for rank in unfolded.ranks} == end_s
    a, b = folded.timeline, unfolded.timeline
    first = folded.program.rank_slice(0)
    assert np.array_equal(a.end_s_N[first], b.end_s_N[unfolded.program.rank_slice(0)])


def test_the_same_inputs_give_the_same_result():
    assert simulate(GPT_405B) == simulate(GPT_405B, engine="reference")


@pytest.mark.slow
@pytest.mark.parametrize("path", [GPT_405B, SCALED])
def test_hiding_the_gradient_reduction_never_costs_time_but_for_what_overlap_costs(path):
    plain, hidden, disturbed = (
        simulate(path, **options)
        for options in (ALONE, {**ALONE, "overlap_grad_reduce": True}, {"overlap_grad_reduce": True})
    )
    # The last backward of every stage is slowed down, and they follow each other; large products feel little of it.
    assert hidden.iteration_time_s < disturbed.iteration_time_s < plain.iteration_time_s
    assert disturbed.iteration_time_s < 1.01 * hidden.iteration_time_s
    assert "overlap-slowdown" in codes(disturbed)


FABRICS = {
    "rail-only": 'kind = "rail-only"',
    "2:1": 'kind = "fat-tree"\nnodes_per_leaf = 8\noversubscription = 2.0',
}


@pytest.mark.slow
@pytest.mark.parametrize("path", [GPT_405B, SCALED])
@pytest.mark.parametrize("overlap", [False, True])
def test_fabrics_give_ordered_and_explained_steps(path, overlap, tmp_path):
    results = {"h100": simulate(path, overlap_grad_reduce=overlap)}
    for name, fabric in FABRICS.items():
        file = tmp_path / f"{name[0]}.toml"
        file.write_text(f'base = "h100"\n[fabric]\n{fabric}\n')
        results[name] = simulate(path, str(file), overlap_grad_reduce=overlap)
    step_s = {name: result.iteration_time_s for name, result in results.items()}
    # dp and pp stay on their rails, so that rails without spines are enough.
    assert step_s["rail-only"] == step_s["h100"] < step_s["2:1"]
    alone = simulate(path, overlap_grad_reduce=overlap, network="analytical")
    assert alone.iteration_time_s < step_s["h100"] < 1.03 * alone.iteration_time_s
    said = {name: [n.text for n in each.assumptions if n.code == "shared-links"] for name, each in results.items()}
    assert said["h100"] == said["rail-only"]
    assert all("by contention on all NICs of node 0" in text for text in said["h100"])
    assert any("pp and emb groups" in text and "slowed 2.00x" in text and "leaf" in text for text in said["2:1"])
    if overlap:
        assert any("pp and dp groups communicate at the same time" in text for text in said["2:1"])


@pytest.mark.parametrize("path", [GPT_405B, SCALED])
def test_flows_agree_with_closed_forms_where_nothing_blocks(path, tmp_path):
    file = tmp_path / "free.toml"
    file.write_text('base = "h100"\n[fabric]\nkind = "non-blocking"\n')
    flow, auto, analytical = (simulate(path, str(file), network=name) for name in ("flow", "auto", "analytical"))
    assert flow.iteration_time_s == auto.iteration_time_s
    assert flow.iteration_time_s == pytest.approx(analytical.iteration_time_s, rel=0.03)
