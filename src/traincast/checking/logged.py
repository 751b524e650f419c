"""What a training log says of its steps, ready to be judged: times in arrays, and what its figures mean."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from traincast.checking.series import Series, judged_series
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.training_log.grammar import Step, TrainingLog
from traincast.formats.training_log.meaning import INTERRUPTED, WARM_UP, _timed, facts_of
from traincast.units import counted, format_share
from traincast.workload.ops import BoolArray, FloatArray, IntArray

APART = 0.03
"""Share by which the mean step of one log of a run may differ from that of all before it is told."""


class Logged(Struct, frozen=True, kw_only=True):
    """The timed steps of one log."""

    path: str
    framework: str
    """For people."""
    step: IntArray
    step_s: FloatArray
    told: Mapping[str, BoolArray]
    """Which points the log itself says to be no ordinary ones, by the reason (`traincast.checking.series`)."""
    flops_per_s: float | None
    """Of a GPU, as the framework counts them, in the median of the steps that count."""
    facts: Mapping[str, int | str]
    notes: tuple[Note, ...]


def logged(log: TrainingLog, known: Mapping[str, int]) -> Logged:
    """Return the timed steps of a log; what it does not say of its run is `known` of the job.

    Raises
    ------
    FormatError
        If it tells no time of a step, and nothing else does.
    """
    facts, notes = facts_of(log, known), list[Note]()
    timed = _timed(log, facts, notes)
    if not timed:
        text = "gives tokens per second and GPU, but not how many tokens and GPUs a step has; give the job (--job)"
        raise FormatError(text, log.path, log.steps[0].line)
    kept = [step for step in timed if step.global_batch == timed[-1].global_batch]
    if len(kept) < len(timed):
        text = f"the global batch changes; {counted(len(kept), 'line')} of the last one, of {len(timed)}, count"
        notes.append(Note("batch-changes", text, f"{log.path}:{kept[0].line}"))
    notes += [
        Note("log-contradicts", f"{name} is {facts[name]} in the log, and {value} of the job", log.path)
        for name, value in known.items()
        if name in log.facts and log.facts[name] != value
    ]
    flops = [each.flops_per_s for each in kept if each.flops_per_s]
    return Logged(
        path=log.path,
        framework=log.framework.title,
        step=_rising(kept),
        step_s=np.array([each.time_s for each in kept], np.float64),
        told=_told(kept),
        flops_per_s=float(np.median(flops)) if flops else None,
        facts=facts,
        notes=(*notes, *log.warnings),
    )


def _rising(steps: Sequence[Step]) -> IntArray:
    """Return numbers of steps that go on rising where a run was started again from an earlier step."""
    found, shift = list[int](), 0
    for step in steps:
        number = step.number + shift
        if found and number <= found[-1]:
            shift += found[-1] - number + 1
            number = found[-1] + 1
        found.append(number)
    return np.array(found, np.int64)


def _told(steps: Sequence[Step]) -> dict[str, BoolArray]:
    """Return which points hold the first steps of a later start, or what interrupted training."""
    start = np.array([step.start for step in steps])
    began = {each: next(step.number - (step.steps or 1) for step in steps if step.start == each) for each in set(start)}
    warm = [step.start > start[0] and step.number - (step.steps or 1) < began[step.start] + WARM_UP for step in steps]
    times = np.array([step.time_s or 0.0 for step in steps])
    longer = np.array([step.interrupted for step in steps]) & (times > INTERRUPTED * np.median(times))
    return {"warm-up": np.array(warm, bool), "evaluation": longer}


def judged(logs: Sequence[Logged]) -> tuple[Series, tuple[Note, ...]]:
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
