"""The tables themselves, against totals that papers and checkpoints print."""

import pytest

from layer.cases import CASES, case_of, name_of


def forward_flops(case):
    """Return the FLOPs of the GEMMs and of the attention core of a rank's forward pass; of a causal mask half."""
    total = 0
    for row in case.kernels:
        if "gemm" in row.kind:
            m, n, k = row.sizes[:3]
            total += 2 * m * n * k * row.forward
        elif "attention" in row.kind:
            batch, queries, keys, heads, _, query, value = row.sizes
            total += 2 * batch * queries * keys * heads * (query + value) // (2 if "causal" in row.kind else 1)
    return total


def routed_flops(case):
    """Return the FLOPs of the routed experts of a rank's forward pass."""
    rows = [row for row in case.kernels if "expert" in row.what or row.kind == "grouped gemm"]
    products = [row.sizes[:3] for row in rows if "gemm" in row.kind and "shared" not in row.what]
    return sum(m * n * k for m, n, k in products)


def kept(case):
    return sum(row.size_bytes for row in case.tensors)


def elements(case):
    return sum(row.elements for row in case.weights)


def test_flops_of_gpt3():
    """Narayanan et al., arXiv 2104.04473, appendix: 24 B s h^2 + 4 B s^2 h forward, of which the mask leaves half."""
    case = case_of("gpt3-175b", "alone")
    assert forward_flops(case) == 24 * 2048 * 12288**2 + 4 * 2048**2 * 12288 // 2
    assert 8 * forward_flops(case_of("gpt3-175b", "tp 8")) == forward_flops(case)


@pytest.mark.parametrize("name", ["cp 4 ring", "cp 4 all-gather", "cp 4 Ulysses"])
@pytest.mark.parametrize("model", ["gpt3-175b", "llama3-70b"])
def test_context_parallel_ranks_share_the_work(model, name):
    assert 4 * forward_flops(case_of(model, name)) == forward_flops(case_of(model, "alone"))


def test_activations_of_gpt3():
    """Korthikanti et al., arXiv 2205.05198, equations 1, 2 and 4."""
    sbh, pairs = 2048 * 12288, 5 * 96 * 2048 / 12288
    assert kept(case_of("gpt3-175b", "alone")) == sbh * (34 + pairs)
    assert kept(case_of("gpt3-175b", "tp 8")) == sbh * (10 + 24 / 8 + pairs / 8)
    assert kept(case_of("gpt3-175b", "tp 8 sp")) == sbh / 8 * (34 + pairs)


def test_parameters_of_whole_models():
    """What is printed, or what the published checkpoints hold.

    Brown et al., table 2.1: 175.0 billion. Checkpoints on Hugging Face (their safetensors metadata): Llama 3 70B,
    Mixtral 8x7B, Qwen3-30B-A3B. DeepSeek-V3, arXiv 2412.19437: 671 billion, without the layer that predicts a further
    token. gpt-oss-20b, arXiv 2508.10925, section 2: 20.9 billion.
    """
    h = 12288
    gpt3 = 96 * elements(case_of("gpt3-175b", "alone")) + (50257 + 2048) * h + 2 * h
    assert gpt3 == pytest.approx(175.0e9, rel=0.003)
    assert elements(case_of("gpt3-175b", "alone")) == 12 * h**2 + 13 * h
    assert 80 * elements(case_of("llama3-70b", "alone")) + 2 * 128256 * 8192 + 8192 == 70_553_706_496
    assert 32 * elements(case_of("mixtral-8x7b", "alone")) + 2 * 32000 * 4096 + 4096 == 46_702_792_704
    assert 48 * elements(case_of("qwen3-30b-a3b", "ep 8")) + 2 * 151936 * 2048 + 2048 == 30_532_122_624
    dense, moe = (elements(case_of("deepseek-v3", name)) for name in ("dense alone", "alone"))
    assert round((3 * dense + 58 * moe + 2 * 129280 * 7168 + 7168) / 1e9) == 671
    gpt_oss = elements(case_of("gpt-oss-20b", "whole attention"))
    assert round((24 * gpt_oss + 2 * 201088 * 2880 + 2880) / 1e9, 1) == 20.9


def test_active_parameters_of_deepseek():
    """arXiv 2412.19437, section 4.2: 37 billion are activated for each token."""
    dense, moe = (case_of("deepseek-v3", name) for name in ("dense alone", "alone"))
    active = 3 * elements(dense) + 129280 * 7168 * 2 + 7168
    for row in moe.weights:
        active += 58 * (row.elements * 8 // 256 if row.expert else row.elements)
    assert active == pytest.approx(37e9, rel=0.02)


def test_experts_of_all_ranks_do_the_work_of_one():
    """Whatever splits them, all tokens meet 2 of 8, or 8 of 256."""
    for model in ("mixtral-8x7b", "deepseek-v3"):
        whole = routed_flops(case_of(model, "alone"))
        for case in CASES:
            if case.model == model and "dense" not in case.name and "imbalance" not in case.name:
                # A stage's ranks hold dp microbatches at once, of which tp and cp ranks share one.
                share = case.fields.get("tp", 1) * case.fields.get("cp", 1)
                assert share * routed_flops(case) == whole, case.name


def test_splitting_the_sequence_sends_as_many_bytes_forward():
    """An all-reduce is a reduce-scatter and an all-gather: arXiv 2205.05198, section 4.2.2."""
    for model in ("gpt3-175b", "llama3-70b"):
        whole, split = (
            sum((2 if "reduce" in row.operation and "all" in row.operation else 1) * row.size_bytes * row.forward
                for row in case_of(model, name).exchanges)
            for name in ("tp 8", "tp 8 sp")
        )  # fmt: skip
        assert whole == split


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_ranks_hold_no_less_than_the_model(case):
    tp, ep, etp = (case.fields.get(key, 1) for key in ("tp", "ep", "etp"))
    for row in case.weights:
        assert row.held <= row.elements <= row.held * (ep * etp if row.expert else tp)
