"""Counts of single layers and of adapters, for the tests: sums over the parts of the product's blocks."""

from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import _flops_of, _layer_parameters, _whole
from traincast.model.structure import layer_blocks, layer_kinds, parts_of


def layer_parameters(model, layer):
    """Return the parameters of the layer at that index (from 0)."""
    return _layer_parameters(model, layer_blocks(model, layer))


def layer_flops(model, layer, seq_length):
    """Return the forward FLOPs of one layer for one token of a sequence, as a mean."""
    return _flops_of(parts_of(layer_blocks(model, layer), _whole(model, seq_length)), seq_length)


def adapter_parameters(model, rank, *, mlp=True):
    """Return the parameters of low-rank adapters beside the projections of every layer, perhaps of attention alone.

    Queries, keys and values share one adapter, as do the two matrices of a gated MLP; experts and latent attention have
    one for each matrix. Source: Hu et al. 2021, arXiv 2106.09685, section 4.1, with the fused matrices of NeMo
    (``nemo/collections/llm/peft/lora.py``: linear_qkv, linear_proj, linear_fc1, linear_fc2).
    """
    adapted = ("attention", *(("mlp", "experts", "shared_experts") if mlp else ()))
    total = 0
    for blocks, count in layer_kinds(model, range(model.layers)).items():
        parts = parts_of(blocks, Share(model=model, sequences=Sequences(length=1)))
        gemms = [gemm for part in parts if part.counts_as in adapted for gemm in part.gemms]
        total += count * sum(gemm.groups * (gemm.n + gemm.k) for gemm in gemms)
    return rank * total
