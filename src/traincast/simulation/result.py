"""What a simulation returns: the contract ``traincast.result/1``."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from traincast.analysis.gpu_time import GpuTime
from traincast.analysis.summary import (
    Advice,
    Analysis,
    Cause,
    Goodput,
    Interval,
    OtherLayout,
    Slowdowns,
    Suggestion,
    TrainingRun,
    Variability,
)
from traincast.diagnostics import Note
from traincast.errors import ConfigError, UnknownNameError
from traincast.files import InputFile
from traincast.job.changes import EXPOSED
from traincast.job.facts import JobFacts
from traincast.later import readable
from traincast.simulation.result_records import (
    RESULT_DEGREES,
    BlockResult,
    ClusterFacts,
    CollectiveResult,
    MemoryResult,
    ParallelFacts,
    PartResult,
    Peak,
    RankResult,
    StragglerResult,
    WhatIfResult,
)
from traincast.units import counted, format_share, format_time

if TYPE_CHECKING:
    import numpy.typing as npt

    from traincast.analysis.timed_program import TimedProgram
    from traincast.simulation.columns import Table
    from traincast.workload.program import Program, Timeline
else:
    # Signatures are asked for, and results read, where nothing is simulated and these need not be loaded.
    TimedProgram = object

BREAKDOWN_KEYS = ("compute", *(f"exposed_{group}" for group in EXPOSED), "bubble", "other")
"""Owners of an instant of the step, in the order they are shown."""

MOST_EXPLAINED = 2_000_000
"""Operations of a step up to which it is explained: a second on one core."""

MEASURED = "measured"
"""Algorithm of a communication whose time the input gives."""


TABLES = ("operations", "ranks", "collectives", "parts", "stragglers", "causes", "advice", "suggestions", "what_if")
"""What a result has columns of."""

UNWRITTEN = ("timed", "doubts")
"""Fields of a `Result` that are not part of its document."""

_UNCOMPARED = (*UNWRITTEN, "advice")
"""Fields that tell no two results apart: advice follows from the others, and is as much work as the step."""


class Result(Struct, frozen=True, kw_only=True):
    """A simulated step; its fields, in their order, are the keys of ``traincast.result/1`` after ``schema``.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2")
    >>> result
    <Result: step 3.851 s, 8 ranks (tp 2, pp 4)>
    >>> f"{result.breakdown_s['compute'] / result.iteration_time_s:.0%}", result.stragglers[0].rank
    ('49%', 7)
    >>> ranks = result.columns("ranks")
    >>> int(ranks["rank"][ranks["wait_s"].argmin()])
    7
    """

    iteration_time_s: float
    breakdown_s: dict[str, float]
    ranks: tuple[RankResult, ...]
    job: JobFacts | None = None
    """What was forecast; None for a file, which does not say it."""
    parallel: ParallelFacts
    interval: Interval | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    """Model FLOP/s over `mfu_peak`."""
    hfu: float | None = None
    """The same with what is recomputed."""
    mfu_peak: Peak | None = None
    """Peak that `mfu` and `hfu` are of, the dense one of the job's precision; None where an older version wrote the
    result, which told shares of the 16-bit one."""
    mfu_16_bit: float | None = None
    """Model FLOP/s over the dense 16-bit peak, whatever type the GEMMs run in."""
    hfu_16_bit: float | None = None
    memory_bytes: tuple[MemoryResult, ...] | None = None
    """Of each stage of a forecast; None for a file."""
    collectives: tuple[CollectiveResult, ...]
    stragglers: tuple[StragglerResult, ...] = ()
    slowdown: Slowdowns | None = None
    """Of a measured run: how much longer its steps took than without stragglers, by type, worker and stage."""
    causes: tuple[Cause, ...] = ()
    """Of a measured run: what made it so, the most expensive first."""
    advice: tuple[Advice, ...] = ()
    """Of a job: what to change, in order, the best first; each with what it saves."""
    suggestions: tuple[Suggestion, ...] = ()
    """What better hardware or code would save most with: the sensitivities of the step."""
    what_if: tuple[WhatIfResult, ...] = ()
    other_layouts: tuple[OtherLayout, ...] = ()
    """Of files that do not say how their run was laid out: what else they allow, with the step of each."""
    variability: Variability | None = None
    """How the step spreads with jitter; None where none was asked for."""
    goodput: Goodput | None = None
    """Of a long run; None where none was asked for."""
    training_run: TrainingRun | None = None
    """What a whole run takes; None where no tokens were given."""
    measured_s: float | None = None
    parts: tuple[PartResult, ...] = ()
    blocks: tuple[BlockResult, ...] = ()
    """Of a forecast: the blocks of each stage, and what they take."""
    gpu_time: tuple[GpuTime, ...] = ()
    """Of a step whose operations were recorded: where the time of each GPU went, as profilers' tools define it."""
    analysis: Analysis | None = None
    """Why it took so long, in short; None of steps of more than `MOST_EXPLAINED` operations, and in older results."""
    inputs: tuple[InputFile, ...]
    cluster: ClusterFacts
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    run: dict[str, object] | None = None
    """All that is needed to run it again (`traincast.job.record`); None where an older version wrote the result."""
    version: str = ""
    timed: "TimedProgram | None" = None
    """The simulated operations and when they ran, for timelines; not part of the JSON."""
    doubts: Mapping[str, Mapping[Hashable, float]] | None = None
    """Of a forecast: what it may be off by, by which two forecasts are compared (`traincast.simulation.differences`);
    not part of the JSON."""

    @property
    def peak_bytes(self) -> float:
        """Memory of the GPU that needs most; 0 where it is not known."""
        return max((stage.peak for stage in self.memory_bytes or ()), default=0.0)

    @property
    def program(self) -> "Program | None":
        """The simulated operations."""
        return None if self.timed is None else self.timed.program

    @property
    def timeline(self) -> "Timeline | None":
        """When they ran."""
        return None if self.timed is None else self.timed.timeline

    def __eq__(self, other: object) -> bool:
        """Tell whether another result says the same; the simulated operations are not looked at."""
        if not isinstance(other, Result):
            return NotImplemented
        said = (name for name in self.__struct_fields__ if name not in _UNCOMPARED)
        return all(getattr(self, name) == getattr(other, name) for name in said)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Say what step this is, in a line; all of it is in its fields."""
        of = f"{self.job.model} on {self.cluster.name or 'a cluster'}, " if self.job else ""
        degrees = [f"{name} {degree}" for name in RESULT_DEGREES if (degree := getattr(self.parallel, name)) != 1]
        mfu = f", MFU {format_share(self.mfu)}" if self.mfu is not None else ""
        layout = f" ({', '.join(degrees)})" if degrees else ""
        ranks = counted(self.parallel.world_size, "rank")
        return f"<Result: step {format_time(self.iteration_time_s)}, {of}{ranks}{layout}{mfu}>"

    def columns(self, of: str = "operations") -> "dict[str, npt.NDArray[Any]]":
        """Return one of its tables as numpy columns: operations, ranks, collectives, parts, ... (`TABLES`).

        Raises
        ------
        UnknownNameError, ConfigError
            If there is no such table, or the result holds no single operations.
        """
        return self.table(of).columns

    def table(self, of: str = "operations") -> "Table":
        """Return one of its tables for data frames: ``result.table("ranks").to_pandas()``; see `columns`."""
        from traincast.simulation.columns import operations, table_of

        if of not in TABLES:
            raise UnknownNameError("table", of, TABLES)
        if of != "operations":
            return table_of(list(map(asdict, getattr(self, of))))
        if self.program is None or self.timeline is None:
            raise ConfigError(
                "this result does not hold single operations; run it again to get them (traincast.run_again)"
            )
        return operations(self.program, self.timeline)

    def frame(self, of: str = "operations") -> Any:  # noqa: ANN401 polars need not be there
        """Return one of its tables as a data frame of polars (extra ``frames``); see `columns`."""
        return self.table(of).to_polars()

    def to_pandas(self, of: str = "operations") -> Any:  # noqa: ANN401 pandas need not be there
        """Return one of its tables as a data frame of pandas; see `columns`."""
        return self.table(of).to_pandas()

    def plot(self, axes: Any = None) -> Any:  # noqa: ANN401 matplotlib need not be there
        """Draw where the time of each stage goes, a bar a stage, and return the axes of matplotlib.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; axes of a new figure by default.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        from traincast.simulation.picture import draw_stages

        return draw_stages(self, axes)

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        from traincast.simulation.notebook import html_of

        return html_of(self)


readable(
    Result,
    *("breakdown_s", "ranks", "job", "interval", "collectives", "slowdown", "causes", "parts", "blocks", "gpu_time"),
    *("stragglers", "analysis", "advice", "assumptions", "warnings", "run", "doubts"),
)
