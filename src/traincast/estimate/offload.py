"""How long copies to and from the host take, and an optimizer that runs there."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.program import ComputeCost
from traincast.hardware.gpu import Gpu
from traincast.hardware.host import Host, host_of
from traincast.job.job import Job
from traincast.units import format_rate, format_size
from traincast.workload.words import Provenance, Stream


def ranks_of_host(job: Job, ranks_per_node: int) -> int:
    """Return the ranks that a node of a job has at most."""
    return min(ranks_per_node, job.parallel.world_size)


def with_offload(cost: ComputeCost, host: Host) -> ComputeCost:
    """Put a time on what moves between a GPU and its host, and on the optimizer that runs there."""
    ops = cost.ops
    duration_T, provenance_T = ops.duration_s_T.copy(), ops.provenance_T.copy()
    for stream in (Stream.OFFLOAD_OUT, Stream.OFFLOAD_IN, Stream.HOST_MEMORY):
        at_T = (ops.stream_T == stream) & np.isnan(duration_T) & (ops.size_bytes_T > 0)
        duration_T[at_T] = ops.size_bytes_T[at_T] / rate_of(host, stream)
        provenance_T[at_T] = Provenance.PRICED
    return replace(cost, ops=replace(ops, duration_s_T=duration_T, provenance_T=provenance_T))


def rate_of(host: Host, stream: Stream) -> float:
    """Return the bytes that go through a resource of a host in a second."""
    return host.adam_bytes_per_s if stream is Stream.HOST_MEMORY else host.link_bytes_per_s


def offload_notes(job: Job, gpu: Gpu, ranks_per_node: int) -> Iterator[Note]:
    """Say what was taken of the host, and what nobody said of it."""
    if not job.offload.any:
        return
    ranks = ranks_of_host(job, ranks_per_node)
    host = host_of(gpu, ranks)
    text = (
        f"offloading: of its host a GPU has a link of {format_rate(host.link_bytes_per_s)} each way and "
        f"{format_size(host.memory_bytes)} of memory"
    )
    if job.offload.optimizer:
        text += f", in which Adam goes through {format_rate(host.adam_bytes_per_s)}"
    yield Note("offload-host", f"{text} (usual system of {gpu.name}; give gpu.host_... in a cluster file for another)")
    if host.assumed:
        yield Note("assumed-host", f"the host of {gpu.name} is not known; taken: {', '.join(host.assumed)}")
