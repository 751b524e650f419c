"""One layer is what the tables say, no less and no more: its kernels, exchanges, saved tensors and parameters."""

import pytest

from layer import product
from layer.cases import CASES, case_of, name_of
from layer.rows import exchange_counts, kernel_counts, tensor_sums

each_case = pytest.mark.parametrize("case", CASES, ids=name_of)
each_weighted = pytest.mark.parametrize("case", [case for case in CASES if case.weights], ids=name_of)


def filled(counts):
    """Return the passes in which anything runs."""
    return {name: dict(found) for name, found in counts.items() if found}


@each_case
def test_kernels(case):
    assert filled(product.kernels(case)) == filled(kernel_counts(case.kernels))


@each_case
def test_exchanges(case):
    found = product.exchanges(case, gpus_per_node=8)
    assert filled(found) == filled(exchange_counts(case.exchanges))


@each_case
def test_saved_tensors(case):
    assert product.saved(case) == pytest.approx(dict(tensor_sums(case.tensors)), rel=1e-12)


@each_weighted
def test_parameters_of_the_model(case):
    assert product.parameters(case) == sum(row.elements for row in case.weights)


@each_weighted
@pytest.mark.parametrize("count", [product.held_in_memory, product.held_in_workload])
def test_parameters_of_a_rank(case, count):
    assert count(case) == sum(row.held for row in case.weights)


def test_latent_attention_casts_what_each_of_its_projections_reads():
    """In 8 bits: hidden states of 7,168 once for both narrow projections, latent vectors of 1,536 and 512 (table 1 of
    arXiv 2412.19437), and 128 heads of 128 for the output projection."""
    found = product.kernels(case_of("deepseek-v3", "alone"), precision="fp8_block")
    casts = {shape[0]: count for (kind, shape, _), count in found["forward"].items() if kind == "cast"}
    for width in (7168, 1536, 512, 128 * 128):
        assert casts[4096 * width] >= 1
    assert found["input gradient"]["cast", (4096 * 1536,), "fp8_block"] == casts[4096 * 1536] == 1


def test_experts_cast_the_copies_that_they_are_sent_and_what_they_make_of_them():
    """Eight experts for each of 4,096 tokens: rows of 7,168 come in, rows of 2,048 go to the second GEMM, which are as
    many elements as the output projection of attention reads (128 heads of 128)."""
    found = product.kernels(case_of("deepseek-v3", "alone"), precision="fp8_block")
    for name in ("forward", "input gradient"):
        assert found[name]["cast", (4096 * 8 * 7168,), "fp8_block"] == 1
        assert found[name]["cast", (4096 * 8 * 2048,), "fp8_block"] == 2


def test_a_shared_expert_casts_what_it_reads_and_what_it_makes_of_it():
    """Hidden states of 7,168 for attention's narrow projections and for the shared expert, whose second GEMM reads its
    2,048 activations of each of 4,096 tokens."""
    found = product.kernels(case_of("deepseek-v3", "alone"), precision="fp8_block")
    for name in ("forward", "input gradient"):
        assert found[name]["cast", (4096 * 7168,), "fp8_block"] == 2
        assert found[name]["cast", (4096 * 2048,), "fp8_block"] == 1
