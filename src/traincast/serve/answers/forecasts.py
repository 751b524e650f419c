"""The forecast of a job: a step with its interval, its parts and memory, and what was assumed."""

import time

from msgspec.structs import replace

from traincast import report
from traincast.analysis.summary import TrainingRun
from traincast.diagnostics import Note
from traincast.estimate.memory.fits import shown_chance
from traincast.job.fields import FIELDS
from traincast.report.terminal.assumptions import parted
from traincast.report.terminal.header import facts_of
from traincast.report.terminal.step import breakdown_lines
from traincast.report.terminal.training_run import run_lines
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.shown import share_shown, size_shown, time_shown
from traincast.serve.answers.words import command_of, predicted
from traincast.serve.records.forecasts import (
    ForecastAnswer,
    ForecastShown,
    JobRecord,
    MemoryShown,
    NoteShown,
    PartShown,
)
from traincast.serve.records.values import Shown
from traincast.simulation.result import Result
from traincast.units import format_time

_LATE = ("advice", "analysis")
"""What takes as long as the forecast itself, and is asked for apart."""


def forecast(asked: JobRecord, bench: Workbench) -> ForecastAnswer:
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


def notes_of(result: Result) -> tuple[tuple[NoteShown, ...], tuple[NoteShown, ...]]:
    """Return the assumptions of a result, those that may move it first, and its warnings."""
    told, minor = parted(result)
    assumptions = (*(note_shown(each) for each in told), *(replace(note_shown(each), minor=True) for each in minor))
    return assumptions, tuple(map(note_shown, result.warnings))


def note_shown(note: Note) -> NoteShown:
    """Return a note with the field that would replace it."""
    name = note.code.removeprefix("assumed-").replace("-", "_")
    return NoteShown(code=note.code, text=note.text, place=note.place, field=name if name in FIELDS else None)


def forecast_shown(result: Result) -> ForecastShown:
    """Return a result in the words of the terminal report."""
    told = facts_of(result)
    per_gpu, interval = result.tokens_per_s_per_gpu, result.interval
    tokens_per_s = None if per_gpu is None else per_gpu * result.parallel.world_size
    return ForecastShown(
        headline=f"Step {format_time(result.iteration_time_s)}",
        step=time_shown(result.iteration_time_s),
        low=None if interval is None else time_shown(interval.low_s),
        high=None if interval is None else time_shown(interval.high_s),
        tokens_per_s=None if tokens_per_s is None else Shown(tokens_per_s, f"{tokens_per_s:,.0f}"),
        mfu=None if result.mfu is None else share_shown(result.mfu),
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


def run_shown(run: TrainingRun | None) -> tuple[tuple[str, str, str], ...]:
    """Return what a whole run takes, a line each."""
    return () if run is None else tuple(run_lines(run))


_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


def memory_shown(result: Result) -> tuple[MemoryShown, ...]:
    """Return the memory of every stage against its limit."""
    return tuple(
        MemoryShown(
            stage=stage,
            parts={name: float(getattr(each, name)) for name in _MEMORY_PARTS},
            peak=size_shown(float(each.peak)),
            limit=None if each.usable is None else size_shown(float(each.usable)),
            chance_of_oom=None
            if each.chance_of_oom is None
            else Shown(float(each.chance_of_oom), shown_chance(float(each.chance_of_oom))),
        )
        for stage, each in enumerate(result.memory_bytes or ())
    )
