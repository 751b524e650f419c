"""Outputs that are not free before the GPU is through with them, as the host launches ahead of it.

A tensor that another stream works on is free when that stream has passed it, and PyTorch's allocator looks only when
something is allocated (ProcessGroupNCCL.cpp, recordStream; CUDACachingAllocator.cpp, process_events).
"""

from traincast.lowering.launches import launch_s, layer_launches
from traincast.mechanisms.activations import LayerModel
from traincast.model.numbers import Number, added, choose

GPU_FLOPS_PER_S = 5e14
"""At which a layer's GEMMs and attention run: half of what an H100 is sold for. The memory model knows no cluster, and
which of host and GPU is slower is the same with a third more or less."""

NODE_BYTES_PER_S, NETWORK_BYTES_PER_S = 3e11, 1.6e11
"""At which tensor parallel ranks exchange in a node of H100, and over several of them with a card of 400 Gb/s for each
GPU: two thirds of NVLink, and the rate of 13 to 48 ms that layers of nanotron's sweep take on 2 and 4 nodes."""

PASSES = 3
"""FLOP of both passes of a GEMM over those of the forward pass."""

_BEHIND = 2
"""Microbatches in flight in a pipeline of which nothing waits: the host receives a gradient before and after the last
forward pass, and what waits of the one before is free again for it."""


def waiting(model: LayerModel, layers: range, virtual_stage: int) -> Number:
    """Return the whole outputs of a microbatch on a virtual stage that wait, on average over those in flight.

    In a pipeline a stage sends its first outputs ahead and does not look at the GPU. Where the GPU takes longer for a
    layer than the host, those of one microbatch more wait.
    """
    share, each = model.share, model.policy.waiting_tensors * len(layers)
    if not each:
        return 0.0
    parallel = model.job.parallel
    whole = each * share.activation_bytes * choose(share.splits_sequence, 1, 0)
    if parallel.pp == 1:
        return whole
    in_flight = parallel.pp - virtual_stage % parallel.pp
    behind = choose(gpu_layer_s(model, layers[0]) > host_layer_s(model, layers[0]), _BEHIND - 1, _BEHIND)
    return whole * choose(behind < in_flight, (in_flight - behind) / in_flight, 0.0)


def gpu_layer_s(model: LayerModel, layer: int) -> Number:
    """Return roughly what a layer takes on the GPU in both passes."""
    share, parts = model.share, model.parts.of_blocks(model.blocks_at(layer))
    sent = added(
        each.count * each.size_bytes * (share.tp - 1) / share.tp
        for part in parts
        for each in (*part.forward, *part.backward)
        if each.group == "tp"
    )
    rate = choose(share.tp > share.execution.ranks_per_node, NETWORK_BYTES_PER_S, NODE_BYTES_PER_S)
    return PASSES * added(part.flops for part in parts) / GPU_FLOPS_PER_S + sent / rate


def host_layer_s(model: LayerModel, layer: int) -> Number:
    """Return what the host takes to launch a layer in both passes, on an x86 server."""
    launches = layer_launches(model.blocks_at(layer), model.parts, model.job)
    return (launches.forward + launches.backward).launches * launch_s(model.job.framework)
