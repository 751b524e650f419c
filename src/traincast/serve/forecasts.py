"""The forecast of a job: a step with its interval, its parts and memory, and what was assumed."""

import time
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from traincast import report
from traincast.serve.shown import Shown
from traincast.serve.words import Value, command_of, predicted

if TYPE_CHECKING:
    from traincast.analysis.summary import TrainingRun
    from traincast.diagnostics import Note
    from traincast.serve.bench import Workbench
    from traincast.simulation.result import Result


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job, by the names of its fields as ``/api/about`` lists them."""

    job: dict[str, Value]
    """Field to its value as typed on the command line, such as ``{"model": "llama3-70b", "seq_length": "8k"}``."""


class PartShown(Struct, frozen=True, kw_only=True):
    """A part of the step."""

    name: str
    """Its key in ``breakdown_s``."""
    label: str
    seconds: float
    share: float
    text: str
    """Its time; `share_text` is its share of the step."""
    share_text: str


class MemoryShown(Struct, frozen=True, kw_only=True):
    """Memory of a pipeline stage, in bytes."""

    stage: int
    parts: dict[str, float]
    peak: Shown
    limit: Shown | None
    chance_of_oom: Shown | None


class ForecastShown(Struct, frozen=True, kw_only=True):
    """A forecast as the terminal report says it."""

    headline: str
    step: Shown
    low: Shown | None = None
    high: Shown | None = None
    """Of the 90 % interval."""
    tokens_per_s: Shown | None = None
    mfu: Shown | None = None
    tflops: Shown | None = None
    facts: tuple[tuple[str, str], ...] = ()
    """Model, layout, memory, interval, rates, whole run: what each line is of, and what it says."""
    run: tuple[tuple[str, str, str], ...] = ()
    """Of a whole run, where its tokens are said: what it takes, how much, and what that counts on, a line each."""
    breakdown: tuple[PartShown, ...] = ()
    memory: tuple[MemoryShown, ...] = ()


class NoteShown(Struct, frozen=True, kw_only=True):
    """An assumption or a warning."""

    code: str
    text: str
    place: str | None = None
    field: str | None = None
    """Field of the job that would replace it."""
    minor: bool = False
    """Whether it hardly moves the step."""


class ForecastAnswer(Struct, frozen=True, kw_only=True):
    """A forecast."""

    result: dict[str, object] = field(default_factory=dict)
    """The document ``traincast.result/1``, without advice and analysis."""
    shown: ForecastShown
    assumptions: tuple[NoteShown, ...]
    warnings: tuple[NoteShown, ...]
    command: str
    """The command line that prints the same."""
    seconds: float
    """How long it took."""


_LATE = ("advice", "analysis")
"""What takes as long as the forecast itself, and is asked for apart."""


def forecast(asked: JobRecord, bench: "Workbench") -> ForecastAnswer:
    """Forecast one step of a job."""
    begin = time.perf_counter()
    result = predicted(asked.job, bench)
    assumptions, warnings = notes_of(result)
    return ForecastAnswer(
        result={**report.result_to_dict(result, without=_LATE), "advice": [], "analysis": None},
        shown=forecast_shown(result),
        assumptions=assumptions,
        warnings=warnings,
        command=command_of(asked.job),
        seconds=time.perf_counter() - begin,
    )


def notes_of(result: "Result") -> tuple[tuple[NoteShown, ...], tuple[NoteShown, ...]]:
    """Return the assumptions of a result, those that may move it first, and its warnings."""
    from traincast.report.terminal.assumptions import parted

    told, minor = parted(result)
    assumptions = (*(note_shown(each) for each in told), *(replace(note_shown(each), minor=True) for each in minor))
    return assumptions, tuple(map(note_shown, result.warnings))


def note_shown(note: "Note") -> NoteShown:
    """Return a note with the field that would replace it."""
    from traincast.job.fields import FIELDS

    name = note.code.removeprefix("assumed-").replace("-", "_")
    return NoteShown(code=note.code, text=note.text, place=note.place, field=name if name in FIELDS else None)


def forecast_shown(result: "Result") -> ForecastShown:
    """Return a result in the words of the terminal report."""
    from traincast.report.terminal.header import facts_of
    from traincast.report.terminal.step import breakdown_lines
    from traincast.units import format_share, format_time

    told = facts_of(result)
    per_gpu, interval = result.tokens_per_s_per_gpu, result.interval
    tokens_per_s = None if per_gpu is None else per_gpu * result.parallel.world_size
    return ForecastShown(
        headline=f"Step {format_time(result.iteration_time_s)}",
        step=Shown(result.iteration_time_s, format_time(result.iteration_time_s)),
        low=None if interval is None else Shown(interval.low_s, format_time(interval.low_s)),
        high=None if interval is None else Shown(interval.high_s, format_time(interval.high_s)),
        tokens_per_s=None if tokens_per_s is None else Shown(tokens_per_s, f"{tokens_per_s:,.0f}"),
        mfu=None if result.mfu is None else Shown(result.mfu, format_share(result.mfu)),
        tflops=None if result.tflops_per_gpu is None else Shown(result.tflops_per_gpu, f"{result.tflops_per_gpu:,.1f}"),
        facts=tuple(told),
        run=run_shown(result.training_run),
        breakdown=tuple(
            PartShown(
                name=each.key,
                label=each.name,
                seconds=each.time_s,
                share=each.time_s / result.iteration_time_s if result.iteration_time_s else 0.0,
                text=each.time,
                share_text=each.share,
            )
            for each in breakdown_lines(result)
        ),
        memory=memory_shown(result),
    )


def run_shown(run: "TrainingRun | None") -> tuple[tuple[str, str, str], ...]:
    """Return what a whole run takes, a line each."""
    from traincast.report.terminal.training_run import run_lines

    return () if run is None else tuple(run_lines(run))


_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


def memory_shown(result: "Result") -> tuple[MemoryShown, ...]:
    """Return the memory of every stage against its limit."""
    from traincast.estimate.memory.fits import shown_chance
    from traincast.units import format_size

    return tuple(
        MemoryShown(
            stage=stage,
            parts={name: float(getattr(each, name)) for name in _MEMORY_PARTS},
            peak=Shown(float(each.peak), format_size(each.peak)),
            limit=None if each.usable is None else Shown(float(each.usable), format_size(each.usable)),
            chance_of_oom=None
            if each.chance_of_oom is None
            else Shown(float(each.chance_of_oom), shown_chance(float(each.chance_of_oom))),
        )
        for stage, each in enumerate(result.memory_bytes or ())
    )
