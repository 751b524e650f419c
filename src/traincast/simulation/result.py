"""What a simulation returns: the contract ``traincast.result/1`` as frozen dataclasses."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traincast.spec.notes import Note

if TYPE_CHECKING:
    from traincast.workload.program import Program, Timeline

BREAKDOWN_KEYS = (
    "compute",
    "exposed_tp",
    "exposed_cp",
    "exposed_ep",
    "exposed_pp",
    "exposed_dp",
    "bubble",
    "other",
)
"""Owners of an instant of the step, in the order they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveResult:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """One part of one rank's step: an operation of a trace, a phase of compute, a group's communication."""

    rank: int
    part: str
    time_s: float
    """Seconds in the part, waiting included."""
    measured_s: float | None = None
    """The same in the measured run that was read; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input file and the digest of what was read."""

    path: str
    format: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A simulated step."""

    iteration_time_s: float
    breakdown_s: dict[str, float]
    ranks: tuple[RankResult, ...]
    parallel: dict[str, int | str]
    collectives: tuple[CollectiveResult, ...]
    inputs: tuple[Input, ...]
    cluster: dict[str, object]
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    interval: dict[str, float] | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    memory_bytes: tuple[dict[str, int | float], ...] | None = None
    stragglers: tuple[dict[str, int | float], ...] = ()
    what_if: tuple[dict[str, object], ...] = ()
    measured_s: float | None = None
    parts: tuple[PartResult, ...] = ()
    version: str = ""
    program: "Program | None" = field(default=None, repr=False, compare=False)
    """The simulated operations, for timelines; not part of the JSON."""
    timeline: "Timeline | None" = field(default=None, repr=False, compare=False)
