"""What a training log says of its steps, ready to be judged: times in arrays, and what its figures mean."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from traincast.checking.series import Series, judged_series
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.training_log.contract import FlopsDefinition, MemoryDefinition
from traincast.formats.training_log.meaning import INTERRUPTED, timed_steps, warm_up
from traincast.formats.training_log.record import Steps, TrainingLog
from traincast.units import counted, format_share
from traincast.workload.ops import BoolArray, FloatArray, IntArray

APART = 0.03
"""Share by which the mean step of one log of a run may differ from that of all before it is told."""


class LoggedRun(Struct, frozen=True, kw_only=True):
    """The timed steps of one log."""

    path: str
    framework: str
    """For people."""
    step: IntArray
    step_s: FloatArray
    told: Mapping[str, BoolArray]
    """Which points the log itself says to be no ordinary ones, by the reason (`traincast.checking.series`)."""
    flops_per_s: float | None
    """Of a GPU, in the median of the steps that count."""
    flops: FlopsDefinition | None
    """How the framework counts them."""
    memory_bytes: float | None
    """The most of a GPU."""
    memory: MemoryDefinition | None
    """What the framework means by it."""
    notes: tuple[Note, ...]


def logged(log: TrainingLog, known: Mapping[str, int]) -> LoggedRun:
    """Return the timed steps of a log; what it does not say of its run is `known` of the job.

    Raises
    ------
    FormatError
        If it tells no time of a step, and nothing else does.
    """
    timed = timed_steps(log, known)
    if timed is None:
        text = "gives rates, but not how many tokens and GPUs a step has; give the job (--job)"
        raise FormatError(text, log.path, int(log.steps.line[0]))
    notes = [*timed.notes, *_contradictions(log, known)]
    if lost := len(log.steps) - len(timed.steps):
        notes.append(Note("without-time", f"{counted(lost, 'step')} of {len(log.steps):,} without a time", log.path))
    if log.starts > 1:
        notes.append(Note("starts", f"the run was started {log.starts} times; the steps of all starts count", log.path))
    kept = _of_last_batch(timed.steps, log.path, notes)
    steady = ~np.logical_or.reduce([*_told(kept).values()])
    return LoggedRun(
        path=log.path,
        framework=log.framework.title,
        step=_rising(kept),
        step_s=kept.step_s,
        told=_told(kept),
        flops_per_s=_median(kept.flops_per_s[steady]),
        flops=log.framework.flops,
        memory_bytes=None if np.isnan(kept.memory_bytes).all() else float(np.nanmax(kept.memory_bytes)),
        memory=log.framework.memory,
        notes=(*notes, *log.warnings),
    )


def _contradictions(log: TrainingLog, known: Mapping[str, int]) -> list[Note]:
    return [
        Note("log-contradicts", f"{name} is {log.facts[name]} in the log, and {value} of the job", log.path)
        for name, value in known.items()
        if name in log.facts and log.facts[name] != value
    ]


def _of_last_batch(steps: Steps, path: str, notes: list[Note]) -> Steps:
    """Return the steps of the last global batch, where it grows."""
    last = steps.global_batch[-1]
    same = np.isnan(steps.global_batch) if np.isnan(last) else steps.global_batch == last
    if same.all():
        return steps
    kept = steps.select(same)
    text = f"the global batch changes; {counted(len(kept), 'line')} of the last one, of {len(steps)}, count"
    notes.append(Note("batch-changes", text, f"{path}:{kept.line[0]}"))
    return kept


def _median(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else None


def _rising(steps: Steps) -> IntArray:
    """Return numbers of steps that go on rising where a run was started again from an earlier step."""
    back = np.minimum(np.diff(steps.step, prepend=steps.step[0] - 1), 1) - 1
    return np.asarray(steps.step - np.cumsum(back), np.int64)


def _told(steps: Steps) -> dict[str, BoolArray]:
    """Return which points hold the first steps of a later start, or what interrupted training."""
    longer = steps.interrupted & (steps.step_s > INTERRUPTED * np.median(steps.step_s))
    return {"warm-up": warm_up(steps) & (steps.start > steps.start[0]), "evaluation": longer}


def judged(logs: Sequence[LoggedRun]) -> tuple[Series, tuple[Note, ...]]:
    """Return the steps of a run that several logs tell, as of several nodes: of each the median of all that tell it.

    The notes say which log differs from the others.
    """
    if len(logs) == 1:
        only = logs[0]
        return judged_series(only.step, only.step_s, told=only.told), ()
    step = np.unique(np.concatenate([each.step for each in logs]))
    table = np.full((len(logs), len(step)), np.nan)
    told: dict[str, BoolArray] = {}
    for row, each in zip(table, logs, strict=True):
        at = np.searchsorted(step, each.step)
        row[at] = each.step_s
        for reason, mask in each.told.items():
            told.setdefault(reason, np.zeros(len(step), bool))[at] |= mask
    series = judged_series(step, np.nanmedian(table, axis=0), told=told)
    notes = []
    for row, each in zip(table, logs, strict=True):
        off = float(np.nanmedian(row[series.steady] / series.step_s[series.steady])) - 1 if series.points else 0.0
        if abs(off) > APART:
            text = (
                f"its steps are {format_share(abs(off))} {'longer' if off > 0 else 'shorter'} than those of the others"
            )
            notes.append(Note("log-apart", f"{text}: is it of the same run?", each.path))
    return series, tuple(notes)
