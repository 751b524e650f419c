"""The records that a result consists of, each an entry of ``traincast.result/1``."""

from msgspec import Struct

from traincast.analysis.by_name import IndexedByName
from traincast.job.parallel import DEGREES


class RankResult(Struct, frozen=True, kw_only=True):
    """One simulated rank."""

    rank: int
    stage: int
    represents: int
    """Ranks that behave exactly alike, this one included."""
    end_s: float
    compute_s: float
    wait_s: float
    """Exposed waiting for members of a collective."""
    breakdown_s: dict[str, float]
    measured_end_s: float | None = None
    """End of this rank in the measured run that was read; None where there is none."""


class CollectiveResult(Struct, frozen=True, kw_only=True):
    """One distinct communication of the step."""

    group: str
    op: str
    size_bytes: int
    ranks: int
    nodes: int
    count: int
    """Times that it runs in a step on the rank that runs it most often."""
    time_s: float
    """One run's transfer, without waiting for members."""
    algorithm: str
    protocol: str | None


class PartResult(Struct, frozen=True, kw_only=True):
    """One part of one rank's step: an operation of a trace, a phase of compute, a group's communication."""

    rank: int
    part: str
    time_s: float
    """Seconds in the part, waiting included."""
    measured_s: float | None = None
    """The same in the measured run that was read; None where there is none."""
    wait_s: float | None = None
    """Of `time_s` waiting for other ranks; None in results that older versions wrote."""
    measured_wait_s: float | None = None
    """Of `measured_s` waiting for other ranks, as far as the measurement shows it."""


class BlockResult(Struct, frozen=True, kw_only=True):
    """A kind of block on one stage of a forecast (`traincast.simulation.block_times`)."""

    stage: int
    block: str
    """Its name in `traincast.model.blocks`, or an end of the model, or an MTP layer with all of its blocks."""
    count: int
    """Such blocks on the stage, in all of its virtual stages."""
    forward_s: float
    """Time of the operators of one of them for one microbatch, without what the host and exchanges add."""
    backward_s: float
    """The same of both gradients, without recomputation."""


class Peak(Struct, frozen=True, kw_only=True):
    """A dense peak of the GPU: its type as in the datasheets (``"bf16"``, ``"fp8"``, ``"fp4"``), and its rate."""

    dtype: str
    flops_per_s: float


class MemoryResult(IndexedByName, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of the rank of a stage that needs most, at its peak, in bytes; what is None is not written.

    Counts stay integers, so that a document read and written again has the same bytes.
    """

    parameters: int | float
    gradients: int | float
    optimizer: int | float
    activations: int | float
    other: int | float
    peak: int | float
    """Their sum."""
    host: int | float | None = None
    """What is offloaded to the memory of the host; None where nothing is."""
    usable: int | float | None = None
    """Of the GPU; None, as the chance, in results of older versions."""
    chance_of_oom: int | float | None = None
    """Chance of running out of memory, 0 to 1."""


class StragglerResult(IndexedByName, frozen=True, kw_only=True):
    """A rank whose computations take much longer than those of its peers."""

    rank: int
    stage: int
    slowdown: float
    """Its compute time over the median of its peers."""
    cost_s: float
    """What the step would be shorter if its own work took as long as its peers'."""


class WhatIfResult(IndexedByName, frozen=True, kw_only=True):
    """The step with a change that was tried."""

    change: str
    """As ``--what-if`` takes it, or `traincast.simulation.what_if.TOGETHER`."""
    iteration_time_s: float
    saving_s: float
    """The step as it is, less the one with the change."""
    saving_low_s: float | None = None
    """Between these that lies in 90 of 100 cases; None but of forecasts."""
    saving_high_s: float | None = None


class ParallelFacts(IndexedByName, frozen=True, kw_only=True):
    """How the step was laid out: ranks, degrees, microbatches and schedule."""

    world_size: int
    dp: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    microbatches: int
    schedule: str


RESULT_DEGREES = tuple(name for name in ParallelFacts.__struct_fields__ if name in DEGREES and name != "etp")
"""Degrees that every layout has; that of expert tensor parallelism follows from the others where it is not given."""


class ClusterFacts(IndexedByName, frozen=True, kw_only=True):
    """What the step ran on; fields as in `traincast.hardware.cluster.Cluster`."""

    name: str
    description: str
    gpu: str
    """Its name."""
    gpu_tdp_w: float | None = None
    """Thermal design power of a GPU; None where it is not known."""
    gpus_per_node: int
    gpus_used_per_node: int | None = None
    """None in results of older versions."""
    nodes: int
    """Those that the job uses."""
    ideal: bool
    fabric: str | None = None
    """Kind of topology between nodes; None where none is described."""
