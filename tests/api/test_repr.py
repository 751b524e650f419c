"""What one sees of a result where it is typed: a line, not all of its numbers."""

import pytest

import traincast


@pytest.fixture(scope="module")
def results():
    job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8}
    forecast = traincast.predict(**job, tp=2, seq_length=8192)
    replay = traincast.simulate("examples/megatron_pp4_tp2")
    return {
        "Result: step 3.851 s, 8 ranks (tp 2, pp 4)": replay,
        "Result: step": forecast,
        "Comparison: ": traincast.compare(replay, forecast),
        "Explanation: ": traincast.explain(replay),
        "Plan: ": traincast.plan(**job, top=1),
        "Plans: 2 cases, 0 refused": traincast.plans(**{**job, "gpus": (8, 16)}, max_tp=2, cp=1),
        "CollectiveTable: all_reduce of 16 ranks on h100, 1 GiB in ": traincast.collective("all_reduce", 2**30, 16),
        "OperatorCost: gemm (8192, 8192, 8192) on H100": traincast.operator("gemm", "h100", m=8192, n=8192, k=8192),
        "Inspection: examples/megatron_rank0_pp2.txt is echo": traincast.inspect("examples/megatron_rank0_pp2.txt"),
        "Workload: aicb_scaled_512gpu.txt, 512 ranks": traincast.read("examples/aicb_scaled_512gpu.txt"),
    }


@pytest.mark.slow
def test_results_are_told_in_a_line(results):
    for begun, result in results.items():
        text = repr(result)
        assert text.startswith(f"<{begun}")
        assert text.endswith(">")
        assert len(text) < 250
        assert "\n" not in text
    assert "llama3-8b on h100" in repr(results["Result: step"])
    assert "MFU" in repr(results["Result: step"])
