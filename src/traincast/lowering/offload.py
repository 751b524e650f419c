"""What a job keeps in the memory of the host, on its way there and back, and the optimizer that runs there.

Copies are operations on streams of their own, one each way; what must have arrived waits for them, so that what hides
them follows from the simulation. As all layers of a pass are one operation, of what goes out layer by layer the last
piece follows the pass, and of what comes in the first one precedes it.
"""

from traincast.job.job import Job
from traincast.job.offload import ADAM_BYTES, GRADIENT_BYTES, PARAMETER_BYTES, offloaded_tensors
from traincast.job.share import blocks_of_layer, saved_bytes
from traincast.lowering.emit import Emitter, Rows
from traincast.model.numbers import Number, added, anywhere, ceil_div, choose, larger, rounded
from traincast.model.structure import RankParts
from traincast.workload.words import Phase, Stream

STREAMS = (Stream.OFFLOAD_OUT, Stream.OFFLOAD_IN, Stream.HOST_MEMORY)
"""What copies and the optimizer on the host run on."""


def offloaded_layers(job: Job, layers: range) -> int:
    """Return of how many of the layers of a virtual stage, the first ones, activations are offloaded."""
    return min(job.offload.activations, len(layers))


def offloaded_pieces(job: Job, layers: range) -> int:
    """Return in how many pieces, one after another, what is offloaded of a virtual stage leaves."""
    return len(layers) if job.offload.modules else offloaded_layers(job, layers)


def offloaded_bytes(job: Job, kept: RankParts, layers: range) -> Number:
    """Return what one microbatch of a virtual stage keeps in the memory of the host.

    `kept` are the parts of a rank with what its framework keeps (`traincast.job.share.kept_share`), of numbers or
    arrays.
    """
    again, total = job.recompute.layers_of(len(layers)), 0.0 * kept.share.residual_bytes
    if job.offload.modules:
        for index in layers[again:]:
            for block in blocks_of_layer(job, index):
                found = offloaded_tensors(kept.of((block,)), job.offload.modules, job.recompute.recomputed_modules)
                total = added([total, *(size for _, size in found)])
        return total
    for place, index in enumerate(layers[: offloaded_layers(job, layers)]):
        if place >= again:
            total = total + saved_bytes(kept, blocks_of_layer(job, index), job.recompute.recomputed_modules)
        elif place % job.recompute.group == 0:
            total = total + kept.share.residual_bytes
    return total


def sent_out(emit: Emitter, size_bytes: Number, layers: Number, rows: Rows) -> Rows:
    """Return the forward pass of some layers whose activations leave as they are there, and what is left to send."""
    if not anywhere(size_bytes):
        return rows
    late = ceil_div(size_bytes, larger(layers, 1))
    name, phase = "activations out", Phase.FORWARD
    early = emit.copy(name, phase, Stream.OFFLOAD_OUT, size_bytes - late)
    left = emit.copy(name, phase, Stream.OFFLOAD_OUT, late)
    return [*early, *rows, *emit.wait(Stream.OFFLOAD_OUT), *left]


def brought_in(emit: Emitter, size_bytes: Number, layers: Number, rows: Rows, *, whole: Number) -> Rows:
    """Return the backward pass of some layers whose activations come in while it runs.

    Where that is the whole virtual stage, nothing hides the first piece, nor the last one on its way out.
    """
    if not anywhere(size_bytes):
        return rows
    name, phase = "activations in", Phase.BACKWARD
    first = choose(whole, ceil_div(size_bytes, larger(layers, 1)), 0)
    ahead = emit.wait(Stream.OFFLOAD_OUT, where=whole)
    ahead += emit.copy(name, phase, Stream.OFFLOAD_IN, first, blocking=True)
    return ahead + emit.overlapped(emit.copy(name, phase, Stream.OFFLOAD_IN, size_bytes - first), rows)


def gradients_out(emit: Emitter, parameters: Number, share: float) -> Rows:
    """Return the way to the host of a share of the gradients of so many parameters that a pass reduces."""
    size_bytes = rounded(share * GRADIENT_BYTES * on_host(emit.job, parameters))
    return emit.copy("gradients out", Phase.WEIGHT_GRADIENT, Stream.OFFLOAD_OUT, size_bytes)


def parameters_in(emit: Emitter, parameters: Number, phase: Phase) -> Rows:
    """Return the way to the GPU of the share that a rank has of sharded parameters, for a gather."""
    return emit.copy("parameters in", phase, Stream.OFFLOAD_IN, PARAMETER_BYTES * parameters)


def on_host(job: Job, parameters: Number) -> Number:
    """Return how many of the parameters that a rank updates its host updates."""
    return rounded(job.offload.optimizer * parameters)


def update_bytes(job: Job, parameters: Number) -> tuple[Number, Number, Number]:
    """Return the bytes that go out, through the memory of the host, and come back where so many are updated there."""
    count = on_host(job, parameters)
    out = 0 if job.offloads_gradients else GRADIENT_BYTES * count
    return out, ADAM_BYTES * count, 0 if job.offload.parameters else PARAMETER_BYTES * count


def updated_rows(emit: Emitter, parameters: Number, pieces: int, on_gpu: Rows) -> Rows:
    """Return the update of so many parameters, of which the GPU's part, `on_gpu`, runs meanwhile.

    Layer by layer gradients go down, the host updates and parameters come up: the first piece on its way down and the
    last one on its way up are overlapped with nothing; without overlap, nothing is.
    """
    out, through, back = update_bytes(emit.job, parameters)
    if not anywhere(through):
        return on_gpu
    apart = pieces if emit.job.offload.overlap else 1
    first, last = ceil_div(out, apart), ceil_div(back, apart)
    rows = emit.wait(Stream.OFFLOAD_OUT) if emit.job.offloads_gradients else []
    rows += emit.copy("gradients out", Phase.STEP, Stream.OFFLOAD_OUT, first, blocking=True)
    launched = emit.copy("gradients out", Phase.STEP, Stream.OFFLOAD_OUT, out - first)
    launched += emit.copy("optimizer on the host", Phase.STEP, Stream.HOST_MEMORY, through)
    launched += emit.copy("parameters in", Phase.STEP, Stream.OFFLOAD_IN, back - last)
    rows += emit.overlapped(launched, on_gpu)
    return rows + emit.copy("parameters in", Phase.STEP, Stream.OFFLOAD_IN, last, blocking=True)
