"""What a simulation returns: the contract ``traincast.result/1``, and a result as a side of a comparison."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traincast.analysis.comparison import Side
from traincast.analysis.gpu_time import GpuTime
from traincast.analysis.summary import (
    Analysis,
    Cause,
    Goodput,
    OtherLayout,
    Slowdowns,
    Suggestion,
    TrainingRun,
    Variability,
)
from traincast.diagnostics import Note
from traincast.files import InputFile
from traincast.job.changes import EXPOSED
from traincast.job.facts import JobFacts
from traincast.job.parallel import RESULT_DEGREES
from traincast.units import counted, format_share, format_time

if TYPE_CHECKING:
    import numpy.typing as npt

    from traincast.simulation.columns import Table
    from traincast.workload.program import Program, Timeline
else:
    # Signatures are asked for, and results read, where nothing is simulated and these need not be loaded.
    Program = Timeline = object

BREAKDOWN_KEYS = ("compute", *(f"exposed_{group}" for group in EXPOSED), "bubble", "other")
"""Owners of an instant of the step, in the order they are shown."""

MOST_EXPLAINED = 2_000_000
"""Operations of a step up to which it is explained: a second on one core."""

MEASURED = "measured"
"""Algorithm of a communication whose time the input gives."""


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


UNWRITTEN = ("program", "timeline")
"""Fields of a `Result` that are no part of its document."""


class Result(Struct, frozen=True, kw_only=True):
    """A simulated step; its fields, in their order, are the keys of ``traincast.result/1`` after ``schema``.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2")
    >>> result
    <Result: step 3.851 s, 8 ranks (tp 2, pp 4)>
    >>> f"{result.breakdown_s['compute'] / result.iteration_time_s:.0%}", result.stragglers[0]["rank"]
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
    parallel: dict[str, int | str]
    interval: dict[str, float] | None = None
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
    memory_bytes: tuple[dict[str, int | float], ...] | None = None
    """Of each stage. Counts stay integers, so that a document read and written again has the same bytes."""
    collectives: tuple[CollectiveResult, ...]
    stragglers: tuple[dict[str, int | float], ...] = ()
    slowdown: Slowdowns | None = None
    """Of a measured run: how much longer its steps took than without stragglers, by type, worker and stage."""
    causes: tuple[Cause, ...] = ()
    """Of a measured run: what made it so, the most expensive first."""
    suggestions: tuple[Suggestion, ...] = ()
    """The few changes that would save most."""
    what_if: tuple[dict[str, object], ...] = ()
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
    cluster: dict[str, object]
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    run: dict[str, object] | None = None
    """All that is needed to run it again (`traincast.job.record`); None where an older version wrote the result."""
    version: str = ""
    program: "Program | None" = None
    """The simulated operations, for timelines; not part of the JSON."""
    timeline: "Timeline | None" = None

    def __eq__(self, other: object) -> bool:
        """Tell whether another result says the same; the simulated operations are not looked at."""
        if not isinstance(other, Result):
            return NotImplemented
        said = (name for name in self.__struct_fields__ if name not in UNWRITTEN)
        return all(getattr(self, name) == getattr(other, name) for name in said)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Say what step this is, in a line; all of it is in its fields."""
        of = f"{self.job.model} on {self.cluster.get('name', 'a cluster')}, " if self.job else ""
        degrees = [f"{name} {self.parallel[name]}" for name in RESULT_DEGREES if self.parallel.get(name, 1) != 1]
        mfu = f", MFU {format_share(self.mfu)}" if self.mfu is not None else ""
        layout = f" ({', '.join(degrees)})" if degrees else ""
        ranks = counted(int(self.parallel["world_size"]), "rank")
        return f"<Result: step {format_time(self.iteration_time_s)}, {of}{ranks}{layout}{mfu}>"

    def columns(self, of: str = "operations") -> "dict[str, npt.NDArray[Any]]":
        """Return one of its tables as numpy columns: operations, ranks, collectives, parts, ... (`TABLES`).

        Raises
        ------
        UnknownNameError, ConfigError
            If there is no such table, or the result holds no single operations.
        """
        from traincast.simulation.columns import columns_of

        return columns_of(self, of)

    def table(self, of: str = "operations") -> "Table":
        """Return one of its tables for data frames: ``result.table("ranks").to_pandas()``; see `columns`."""
        from traincast.simulation.columns import Table, columns_of

        return Table(columns_of(self, of))

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


def simulated_side(result: Result, name: str) -> Side:
    """Return the simulated step of a result, under a name for people."""
    tdp_w = result.cluster.get("gpu_tdp_w")
    return Side(
        name=name,
        what="simulated",
        step_s=result.iteration_time_s,
        end_s={rank.rank: rank.end_s for rank in result.ranks},
        part_s=_by_rank((each.rank, each.part, each.time_s) for each in result.parts),
        wait_s=_by_rank((each.rank, each.part, each.wait_s) for each in result.parts),
        breakdown_s=result.breakdown_s,
        mfu=result.mfu,
        mfu_peak=result.mfu_peak.dtype if result.mfu_peak else None,
        mfu_16_bit=result.mfu_16_bit,
        interval=result.interval,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu,
        gpus=int(result.parallel["world_size"]) if "world_size" in result.parallel else None,
        gpu_tdp_w=tdp_w if isinstance(tdp_w, int | float) else None,
        training_run=result.training_run,
    )


def replayed_side(result: Result, name: str) -> Side | None:
    """Return the measured run that a result was simulated from; None where it was none.

    Of folded ranks a result holds one, so that what was measured of the others is not in it.
    """
    if result.measured_s is None:
        return None
    return Side(
        name=name,
        what="measured",
        step_s=result.measured_s,
        end_s={rank.rank: rank.measured_end_s for rank in result.ranks if rank.measured_end_s is not None},
        part_s=_by_rank((each.rank, each.part, each.measured_s) for each in result.parts),
        wait_s=_by_rank((each.rank, each.part, each.measured_wait_s) for each in result.parts),
    )


def _by_rank(parts: Iterable[tuple[int, str, float | None]]) -> dict[int, dict[str, float]]:
    """Return times by rank and part, without those that are not known."""
    part_s: dict[int, dict[str, float]] = {}
    for rank, part, time_s in parts:
        if time_s is not None:
            part_s.setdefault(rank, {})[part] = time_s
    return part_s
