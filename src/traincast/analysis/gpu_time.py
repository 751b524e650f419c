"""Where a GPU's time went, as profilers' tools define it: computing, communicating, copying, idle.

Every instant from the first begin to the last end of anything on the GPU is ``compute`` where a computation runs, else
``exposed communication`` where a communication runs, else ``exposed copy`` where memory is copied or set, else
``idle``. A communication runs from the moment its rank begins it: its kernel occupies the GPU while it waits for
others. That differs from `traincast.analysis.breakdown`, which tells waiting from transfer and asks whose it is.

* HTA (facebookresearch/HolisticTraceAnalysis, hta/analyzers): breakdown_analysis.py, get_temporal_breakdown: kernel
  time = compute + non-compute + idle, where non-compute is the two exposed parts; communication_analysis.py,
  get_comm_comp_overlap: the share of communication that a computation is overlapped with.
* TraceLens (AMD-AGI/TraceLens, TreePerf/gpu_event_analyser.py): computation_time, exposed_comm_time,
  exposed_memcpy_time, idle_time; total_comm_time and total_memcpy_time overlapped or not. It counts the setting of
  memory as computation, HTA and we as a copy.

Idle time by stream follows HTA's get_idle_time_breakdown: a pause of a stream is *host wait* where the host launched
what follows after the stream had run empty; else *kernel wait* where it is short
(`traincast.analysis.gpu_intervals.KERNEL_WAIT_S`); else *other*, such as waiting for another stream.
"""

from msgspec import Struct


class StreamIdle(Struct, frozen=True, kw_only=True):
    """Pauses between what ran on one stream, in seconds."""

    stream: int
    """Number of the queue on its rank."""
    host_wait_s: float
    kernel_wait_s: float
    other_s: float


class GpuTime(Struct, frozen=True, kw_only=True):
    """Where the time of one GPU went, in seconds."""

    rank: int
    total_s: float
    """From the first begin to the last end of what ran on it: the sum of the next four."""
    compute_s: float
    exposed_comm_s: float
    """Communicating while nothing computes."""
    exposed_copy_s: float
    """Copying while nothing computes or communicates."""
    idle_s: float
    comm_s: float
    """Communicating, overlapped or not."""
    copy_s: float
    streams: tuple[StreamIdle, ...]

    @property
    def overlap(self) -> float | None:
        """Share of communication that computation is overlapped with; None where there is no communication."""
        return 1 - self.exposed_comm_s / self.comm_s if self.comm_s else None
