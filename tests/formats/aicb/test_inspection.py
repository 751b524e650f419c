"""An inspection says which generation a file is, and counts and sums what it holds."""

from pathlib import Path

import pytest

from traincast import api
from traincast.errors import FormatError
from traincast.formats.aicb.grammar import parse
from traincast.formats.aicb.inspection import generation
from traincast.formats.aicb.sniff import looks_like

EXAMPLES = Path(__file__).parents[3] / "examples"
FWD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
V1_0 = f"{FWD}\tmodel_parallel_NPU_group: 8 checkpoints: 0 checkpoint_initiates: 0"
V1_1 = f"{FWD} model_parallel_NPU_group: 8 ep: 1 pp: 2 ga: 1 all_gpus: 64 checkpoints: 0 checkpoint_initiates: 0"
VPP = f"{FWD} model_parallel_NPU_group: 8 ep: 1 pp: 2 vpp: 4 ga: 1 all_gpus: 64 checkpoints: 0 checkpoint_initiates: 0"
INFERENCE = f"{FWD} model_parallel_NPU_group: 8 ep: 1 pp: 2 all_gpus: 64 mode: 1 vpp: 1 ga: 1 checkpoints: 0"
OLD = ["norm", "grad_norm", "layernorm", "embedding_layer", "attention_column_layer", "attention_row_layer"]
NEW = ["grad_gather", "grad_param_compute", "embedding_layer", "attention_column", "attention_row", "mlp_column"]
MOE = ["embedding_layer", "attention_column", "attention_row"]
LATENT = ["embedding_layer", "attention_linear_q_lora", "attention_q_column"]


def text_of(header, names):
    rows = [f"{name}\t-1\t1000\tALLREDUCE\t4\t10\tNONE\t0\t10\tNONE\t0\t100" for name in names]
    return "\n".join([header, str(len(rows)), *rows, ""])


@pytest.mark.parametrize(
    ("header", "names", "text", "confidence"),
    [
        (V1_0, OLD, "AICB v1.0", 0.9),
        (V1_1, NEW, "AICB v1.1", 0.9),
        (VPP, NEW, "AICB with vpp", 0.9),
        (VPP + " pp_comm: 16777216.0", NEW, "AICB with pp_comm", 0.9),
        (VPP + " pp_comm 50331648", [*MOE, *["mlp_moelayer"] * 7], "SimAI example (2024-12 or later) (7-row MoE", 0.9),
        (VPP + " pp_comm: 0", [*MOE, *["mlp_moelayer"] * 5], "(5-row MoE, since 2025-09-24)", 0.9),
        (VPP + " pp_comm: 0", [*LATENT, *["mlp_moelayer"] * 5], "(DeepSeek, 5-row MoE", 0.9),
        (INFERENCE, ["attention_norm", "attention_layer", "moe_route", "moe_expert"], "AICB inference", 0.9),
        ("MICRO", ["micro_test"], "SimAI micro test", 0.95),
        (V1_0, ["micro_test"], "AICB v1.0 (2024-07 to 2024-08) (micro test)", 0.5),
        (f"{FWD} expert_parallel_npu_group: 8", ["micro_test"], "AICB micro test", 0.5),
        (VPP, OLD, "mixed: AICB v1.0 rows under a newer header", 0.5),
        (V1_0, NEW, "mixed: rows of AICB v1.1 or later under a v1.0 header", 0.5),
        (f"{FWD} pp_comm: 1 checkpoints: 0", NEW, "unknown writer", 0.5),
        ("DATA", ["conv1"], "ASTRA-sim 1.0 workload", 0.8),
        ("DATA all_gpus: 8", ["conv1"], "SimAI workload that AICB did not write", 0.8),
    ],
)
def test_the_generation_is_told_with_evidence(header, names, text, confidence):
    found = generation(parse("w.txt", text_of(header, names)))
    assert text in found.text
    assert found.confidence == confidence
    assert found.evidence


def test_a_workload_is_recognised_by_its_head():
    for header, names in ((V1_0, OLD), (V1_1, NEW), (INFERENCE, NEW), ("MICRO", ["micro_test"])):
        assert looks_like(text_of(header, names)).confidence > 0.95
    assert looks_like("\ufeff\r\n" + text_of(V1_1, NEW)).confidence > 0.95
    assert looks_like(V1_1).confidence == 0.7
    assert looks_like(V1_1 + "\n" + text_of("", NEW).split("\n", 2)[2]).confidence == 0.9
    assert looks_like("COLOCATED model_parallel_NPU_group: 1\n5\n").confidence == 0.3


@pytest.mark.parametrize("head", ["", "\n\n", "\0", "{}", "DATA are here\nas prose\n", "rank:0,mbs:1\n", "x\t" * 9999])
def test_other_files_are_not_recognised(head):
    sniffed = looks_like(head)
    assert sniffed.confidence <= 0.2
    assert sniffed.reason


def test_the_405b_sample_is_described():
    found = api.inspect(EXAMPLES / "aicb_gpt_405b_1024gpu.txt")
    assert (found.format, found.generation, found.confidence) == ("aicb", "AICB v1.1 (2024-09 to 2024-11)", 0.9)
    assert found.counts == {
        "rows": 557,
        "microbatches": 16,
        "layers_per_microbatch": 8,
        "once_per_step_rows": 13,
        "declared_rows": 557,
    }
    assert found.layout == {
        "policy": FWD,
        "tp": 8,
        "ep": 1,
        "pp": 16,
        "vpp": None,
        "microbatches": 16,
        "world_size": 1024,
        "pp_message_bytes": None,
    }
    totals = {(total.group, total.what): (total.count, total.size_bytes, total.time_s) for total in found.totals}
    activation = 2 * 4096 * 16384
    assert totals == {
        ("compute", "forward"): (544, 0, pytest.approx(2.903350528)),
        ("compute", "backward"): (544, 0, pytest.approx(2.130637264)),
        ("compute", "weight_gradient"): (544, 0, pytest.approx(2.175489188)),
        ("compute", "step"): (18, 0, pytest.approx(0.003755025)),
        ("tp", "all_reduce"): (16 + 7, 16 * activation + 3 * 16384 + 4 * 4, None),
        ("tp", "all_gather"): (16 * 33, 16 * 33 * activation, None),
        ("tp", "reduce_scatter"): (16 * 33, 16 * 16 * activation, None),
        ("dp", "all_gather"): (1, 6401032192, None),
        ("dp", "reduce_scatter"): (1, 12802064384, None),
        ("emb", "all_reduce"): (1, activation, None),
        ("edp", "all_gather"): (1, 0, None),
        ("edp", "reduce_scatter"): (1, 0, None),
    }
    assert [note.code for note in found.oddities] == ["zero-size"] * 3 + ["microbatches-differ"]
    assert all(note.place.startswith(found.path + ":") for note in found.oddities)


def test_the_scaled_sample_is_described():
    found = api.inspect(EXAMPLES / "aicb_scaled_512gpu.txt")
    assert found.generation == "mixed: AICB v1.0 rows under a newer header"
    assert found.counts["microbatches"] == 1
    assert found.counts["layers_per_microbatch"] == 40
    assert found.counts["once_per_step_rows"] == 11
    totals = {(total.group, total.what): total.size_bytes for total in found.totals}
    assert totals["tp", "broadcast"] == 65536
    assert totals["dp", "all_gather"] == 12994478080
    assert totals["emb", "all_reduce"] == 1310720000
    assert math_sum(found) == pytest.approx(0.951592086)


def math_sum(found):
    return sum(total.time_s for total in found.totals if total.group == "compute")


def test_a_broken_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "w.txt"
    path.write_text(text_of(V1_1, NEW).replace("ALLREDUCE", "ALLREDUCEALLTOALL"))
    with pytest.raises(FormatError, match="ALLREDUCEALLTOALL") as caught:
        api.inspect(path)
    assert (caught.value.line, caught.value.path) == (3, str(path))
