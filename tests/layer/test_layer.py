"""One layer is what the tables say, no less and no more: its kernels, exchanges, saved tensors and parameters."""

import pytest

from layer import product
from layer.cases import CASES, case_of, name_of
from layer.rows import cast, exchange_counts, kernel_counts, tensor_sums

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


BLOCKS = {"dtype": "fp8_block", "copies": 2}
"""Scales of blocks belong to one direction, so that one kernel writes two copies, along rows and along columns
(Transformer Engine, Float8BlockScaling; arXiv 2412.19437, section 3.3)."""

CASTS_OF_DEEPSEEK = (
    # Widths are those of table 1 and section 4.2 of arXiv 2412.19437. Three modules read hidden states and cast each
    # for itself: both narrow projections (Megatron-LM, megatron/core/transformer/multi_latent_attention.py, two
    # linear layers of Transformer Engine), and the shared expert.
    *(3 * (cast("hidden states of both narrow projections and the shared expert", 4096 * 7168, **BLOCKS),)),
    cast("compressed queries", 4096 * 1536, **BLOCKS),
    cast("compressed keys and values", 4096 * 512, **BLOCKS),
    cast("128 heads of 128, for the output", 4096 * 128 * 128, **BLOCKS),
    cast("activations of the shared expert", 4096 * 2048, **BLOCKS),
    # All 256 experts are on the rank, each with a tensor of its own to cast; every token goes to eight of them.
    cast("tokens of experts", 8 * 4096 * 7168, tensors=256, **BLOCKS),
    cast("activations of experts", 8 * 4096 * 2048, tensors=256, **BLOCKS),
    # Gradients of what the GEMMs gave: 64 of keys' width are their position, 128 + 64 and 128 + 128 of each head.
    cast("of compressed queries", 4096 * 1536, backward=True, **BLOCKS),
    cast("of compressed keys and values", 4096 * (512 + 64), backward=True, **BLOCKS),
    cast("of queries", 4096 * 128 * (128 + 64), backward=True, **BLOCKS),
    cast("of keys and values", 4096 * 128 * (128 + 128), backward=True, **BLOCKS),
    *(2 * (cast("of the outputs of attention and of the shared expert", 4096 * 7168, backward=True, **BLOCKS),)),
    cast("of gate and up of the shared expert", 4096 * 2 * 2048, backward=True, **BLOCKS),
    cast("of gate and up of experts", 8 * 4096 * 2 * 2048, tensors=256, backward=True, **BLOCKS),
    cast("of outputs of experts", 8 * 4096 * 7168, tensors=256, backward=True, **BLOCKS),
)


def test_every_gemm_with_latent_attention_and_experts_casts_its_input_and_the_gradient_of_its_output():
    """Those of a layer of DeepSeek-V3 in 8 bits, without its router's, which reads 16."""
    found = product.kernels(case_of("deepseek-v3", "alone"), precision="fp8_block")
    casts = {name: {key: often for key, often in runs.items() if "cast" in key[0]} for name, runs in found.items()}
    assert filled(casts) == filled(kernel_counts(CASTS_OF_DEEPSEEK))
