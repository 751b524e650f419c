"""What a job keeps in the memory of the host, on its way there and back, and the optimizer that runs there.

Copies are operations on streams of their own, one each way; what must have arrived waits for them, so that what hides
them follows from the simulation. As all layers of a pass are one operation, of what goes out layer by layer the last
piece follows the pass, and of what comes in the first one precedes it.
"""

from traincast.lowering.emit import Emitter, Rows
from traincast.mechanisms.offload import GRADIENT_BYTES, PARAMETER_BYTES, on_host, update_bytes
from traincast.model.numbers import Number, anywhere, ceil_div, choose, larger, rounded
from traincast.workload.words import Phase, Stream

STREAMS = (Stream.OFFLOAD_OUT, Stream.OFFLOAD_IN, Stream.HOST_MEMORY)
"""What copies and the optimizer on the host run on."""


def sent_out(emit: Emitter, size_bytes: Number, layers: Number, rows: Rows) -> Rows:
    """Return the forward pass of some layers whose activations leave as they are there, and what is left to send."""
    if not anywhere(size_bytes):
        return rows
    late = ceil_div(size_bytes, larger(layers, 1))
    name, phase = "activations out", Phase.FORWARD
    early = emit.copy(name, phase, Stream.OFFLOAD_OUT, size_bytes - late)
    left = emit.copy(name, phase, Stream.OFFLOAD_OUT, late)
    return [*early, *rows, *emit.wait(Stream.OFFLOAD_OUT, where=size_bytes > 0), *left]


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
