"""What blocks of a stage take: together what the stage computes, whatever its layers and schedule are."""

import io

import pytest
from rich.console import Console

import traincast
from traincast.job.draft import Draft
from traincast.report.terminal.step import print_result
from traincast.workload.words import Kind, Phase


def predicted(model, **fields):
    given = {"gpus": 16, "global_batch": 32, "seq_length": 2048, "framework": "megatron-core-2025", "recompute": "none"}
    return traincast.predict(Draft(model=model, cluster="h100", fields=given | fields), allow_oom=True)


def computed_s(result, stage, phases):
    """Return what the computations of layers and ends of a stage take in a step, before overlap slows them."""
    program = result.program
    index = next(index for index, of in enumerate(program.stage_R.tolist()) if of == stage)
    rows = program.row_N[program.rank_slice(index)]
    ops = program.ops
    mine = [row for row in rows.tolist() if ops.kind_T[row] == Kind.COMPUTE and ops.phase_T[row] in phases]
    return sum(float(ops.duration_s_T[row]) for row in mine if not ops.name_T[row].startswith("embedding"))


JOBS = {
    "nemotron-h-8b": {"tp": 4, "pp": 2},
    "qwen3-next-80b-a3b": {"ep": 8, "pp": 2, "vpp": 1},
    "deepseek-v2-lite": {"ep": 8, "pp": 1},
    "llama3-8b": {"pp": 4, "vpp": 2},
}


@pytest.mark.parametrize(("model", "fields"), JOBS.items())
def test_blocks_together_are_what_the_stage_computes(model, fields):
    result = predicted(model, **fields)
    microbatches = result.parallel.microbatches
    for stage in range(result.parallel.pp):
        mine = [each for each in result.blocks if each.stage == stage and each.block != "embedding"]
        forward_s = sum(each.count * each.forward_s for each in mine) * microbatches
        backward_s = sum(each.count * each.backward_s for each in mine) * microbatches
        assert forward_s == pytest.approx(computed_s(result, stage, (Phase.FORWARD,)), rel=1e-6)
        backward = (Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
        assert backward_s == pytest.approx(computed_s(result, stage, backward), rel=1e-6)


def test_every_block_of_the_model_is_on_some_stage():
    result = predicted("qwen3-next-80b-a3b", ep=4, pp=4, pipeline_layout="Et*16|t*16|t*16|mL", vpp=None)
    assert {(each.stage, each.block): each.count for each in result.blocks} == {
        (0, "embedding"): 1,
        **{(stage, block): count for stage in range(3) for block, count in (("gated_delta", 12), ("attention", 4))},
        **{(stage, "experts"): 16 for stage in range(3)},
        **{(3, name): 1 for name in ("MTP projection", "MTP layer", "LM head", "MTP head")},
    }


def test_blocks_are_printed_where_layers_are_of_further_kinds():
    console = Console(file=io.StringIO(), width=100)
    print_result(console, predicted("llama3-8b"))
    assert "Blocks of stage" not in console.file.getvalue()
    print_result(console, predicted("nemotron-h-8b", tp=4))
    printed = console.file.getvalue()
    assert "Blocks of stage 0, ms (of one, for a microbatch)" in printed
    assert [
        line.split()[:2] for line in printed.splitlines() if line.startswith(("  mamba2", "  mlp", "  attention"))
    ] == [
        ["mamba2", "24"],
        ["mlp", "24"],
        ["attention", "4"],
    ]
