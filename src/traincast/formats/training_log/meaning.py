"""What a training log says of a step in steady state: its median and spread, without warm-up and interruptions.

The rule. Of each start of the run the first `WARM_UP` steps are warm-up (kernels are compiled, libraries find their
algorithms, memory is laid out), so that a line that tells of one of them is left out, and the first line in any case;
of a short start at most the first half. A line after an evaluation or a checkpoint that is more than `INTERRUPTED`
times the median is left out too: some versions count these into the step. Where the batch grows (Megatron-LM's
``--rampup-batch-size``), the steps of the last batch count. All other lines count, slow ones too.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.diagnostics import Note
from traincast.formats.training_log.record import Real, Steps, TrainingLog
from traincast.units import counted, format_time

WARM_UP = 10
"""Steps of warm-up; NeMo says of its own lines that about the first ten are not steady (`flops_callback.py`, v2.4)."""
INTERRUPTED = 1.1
SLOW = 1.5
"""Multiple of the median above which lines are told of."""
LEVEL = 0.9
"""Share of the lines within the spread: from the 5th to the 95th percentile."""
_LEAST_SPAN_S = 20.0
"""Least time between two clock times of whole seconds, as a progress bar says them, that a step is told from."""


class Steady(Struct, frozen=True, kw_only=True):
    """A step in steady state."""

    step_s: float
    """Median."""
    low_s: float
    """5th percentile."""
    high_s: float
    """95th percentile."""
    lines: int
    """Lines that count."""
    steps: int
    """Steps that they tell of, as far as that is known."""
    tokens_per_s: float | None
    """Per GPU, median."""
    flops_per_s: float | None
    """Per GPU as the framework counts them, median."""
    memory_bytes: float | None
    """Of a GPU as the framework means it, the most."""
    notes: tuple[Note, ...]
    """Which lines do not count, and what else there is to know."""


class Timed(Struct, frozen=True):
    """The lines of a log that a time of a step is known of."""

    steps: Steps
    """Each with `step_s`."""
    notes: tuple[Note, ...]
    """How the times are told, where they are not printed."""


def facts_of(log: TrainingLog, known: Mapping[str, int] | None = None) -> dict[str, int | str]:
    """Return what the log says of the run, and of what it does not say what is known of it otherwise."""
    facts: dict[str, int | str] = {**(known or {}), **log.facts}
    batches = log.steps.global_batch[~np.isnan(log.steps.global_batch)]
    if batches.size:
        facts["global_batch"] = int(batches[-1])
    return facts


def tokens_of(log: TrainingLog, facts: Mapping[str, int | str], steps: Steps) -> Real:
    """Return the tokens of each step; NaN where the log does not say them and nothing else is known."""
    if "tokens" in log.facts:
        return np.full(len(steps), float(log.facts["tokens"]))
    batch = np.where(np.isnan(steps.global_batch), float(facts.get("global_batch", np.nan)), steps.global_batch)
    return batch * float(facts.get("seq_length", np.nan))


def timed_steps(log: TrainingLog, known: Mapping[str, int] | None = None) -> Timed | None:
    """Return the steps with a time each: printed, or from tokens or sequences per second, or between two clock times.

    All of them: what is warm-up, or was interrupted, is the business of who asks. None where the log tells no time and
    nothing else does.

    Parameters
    ----------
    log : TrainingLog
    known : mapping, optional
        ``global_batch``, ``seq_length`` and ``gpus`` of the job that ran, for logs that say tokens per second alone and
        not of how many.
    """
    steps = log.steps
    if (printed := ~np.isnan(steps.step_s)).any():
        return Timed(steps.select(printed), _without_time(log, printed))
    rated, text = _by_rate(log, facts_of(log, known))
    if rated is not None:
        return Timed(rated, (Note("from-tokens", text, f"{log.path}:{rated.line[-1]}"),))
    clocked, back = _by_clock(steps)
    if not len(clocked):
        return None
    text = (
        "the log says neither the time of a step nor of how many tokens and GPUs it is; steps are told from when "
        "their lines were printed, with whatever was done between them"
    )
    notes = [Note("from-clock", text, log.path)]
    if back:
        text = f"the clock goes back {counted(back, 'time')}; no step is told across that"
        notes.append(Note("clock-back", text, log.path))
    return Timed(clocked, tuple(notes))


def _without_time(log: TrainingLog, printed: npt.NDArray[np.bool_]) -> tuple[Note, ...]:
    """Say how many lines of steps have no time, where others have one."""
    if printed.all():
        return ()
    text = f"{counted(int((~printed).sum()), 'line')} of steps without a time left out"
    return (Note("without-time", text, f"{log.path}:{log.steps.line[~printed][0]}"),)


def _by_rate(log: TrainingLog, facts: Mapping[str, int | str]) -> tuple[Steps | None, str]:
    """Return the steps that rates tell the time of, and how; the rates of each GPU before those of the whole job."""
    steps, gpus = log.steps, float(facts.get("gpus", np.nan))
    tokens = tokens_of(log, facts, steps)
    batch = np.where(np.isnan(steps.global_batch), float(facts.get("global_batch", np.nan)), steps.global_batch)
    ways = (
        (tokens, steps.tokens_per_s, gpus, "tokens per second and GPU", "tokens", "tokens/s/GPU"),
        (tokens, steps.job_tokens_per_s, 1.0, "tokens per second", "tokens", "tokens/s"),
        (batch, steps.samples_per_s, 1.0, "sequences per second", "sequences", "sequences/s"),
    )
    for amount, rate, shared, said, unit, per_second in ways:
        step_s = amount / (rate * shared)
        if not (known := ~np.isnan(step_s)).any():
            continue
        rated = steps.select(known, step_s=step_s[known])
        last = f"{amount[known][-1]:,.0f} {unit} / "
        by = (
            f"({rate[known][-1]:,.0f} {per_second} x {gpus:.0f} GPUs)"
            if shared == gpus
            else f"{rate[known][-1]:,.6g} {per_second}"
        )
        text = (
            f"the log prints {said}, and steps are told from them: {last}{by} = {format_time(float(rated.step_s[-1]))}"
        )
        return rated, f"{text} in the last line"
    return None, ""


def far_apart(before_s: float, clock_s: float) -> bool:
    """Say whether a step can be told from two clock times; whole seconds may be off by one."""
    whole = before_s.is_integer() and clock_s.is_integer()
    return clock_s - before_s >= _LEAST_SPAN_S if whole else clock_s > before_s


def _by_clock(steps: Steps) -> tuple[Steps, int]:
    """Return steps whose lines stand far enough apart in time, with the mean time since the one before.

    And how often the clock went back.
    """
    kept: list[int] = []
    times: list[float] = []
    spans: list[int] = []
    before, back = -1, 0
    number, start, clock_s = steps.step.tolist(), steps.start.tolist(), steps.clock_s.tolist()
    for at in np.flatnonzero(~np.isnan(steps.clock_s)).tolist():
        if before < 0 or start[at] != start[before] or clock_s[at] < clock_s[before]:
            back += before >= 0 and start[at] == start[before]
            before = at
            continue
        elapsed, done = clock_s[at] - clock_s[before], number[at] - number[before]
        if far_apart(clock_s[before], clock_s[at]) and done > 0:
            kept.append(at)
            times.append(elapsed / done)
            spans.append(done)
            before = at
    chosen = np.array(kept, np.int64)
    return steps.select(chosen, step_s=np.array(times), steps=np.array(spans, np.int64)), back


def steady_step(log: TrainingLog, known: Mapping[str, int] | None = None) -> Steady | None:
    """Return the step in steady state; None where the log tells no time and nothing else does.

    Parameters
    ----------
    log : TrainingLog
    known : mapping, optional
        As of `timed_steps`.
    """
    timed = timed_steps(log, known)
    if timed is None:
        return None
    notes = [*timed.notes]
    kept = _of_last_batch(_without_warm_up(timed.steps, log, notes), log, notes)
    kept = _without_interruptions(kept, log, notes)
    middle = float(np.median(kept.step_s))
    _say_slow(kept, middle, log, notes)
    low, high = map(float, np.quantile(kept.step_s, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    if (most := int(kept.steps.max())) > 1:
        text = f"each line is the mean of {most} steps, so that single steps spread more than the lines do"
        notes.append(Note("means", text, log.path))
    facts, memory = facts_of(log, known), log.steps.memory_bytes
    rates = tokens_of(log, facts, kept) / kept.step_s / float(facts.get("gpus", np.nan))
    return Steady(
        step_s=middle,
        low_s=low,
        high_s=high,
        lines=len(kept),
        steps=int(np.maximum(kept.steps, 1).sum()),
        tokens_per_s=_median(np.where(np.isnan(kept.tokens_per_s), rates, kept.tokens_per_s)),
        flops_per_s=_median(kept.flops_per_s),
        memory_bytes=None if np.isnan(memory).all() else float(np.nanmax(memory)),
        notes=tuple(notes),
    )


def _median(values: Real) -> float | None:
    """Return the median of the values that are known; None where none is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else None


def warm_up(steps: Steps) -> npt.NDArray[np.bool_]:
    """Return which lines tell of the first steps of each start, `WARM_UP` of them; at most half of its lines."""
    warm = np.zeros(len(steps), np.bool_)
    begins = np.flatnonzero(np.diff(steps.start, prepend=-1))
    for first, end in zip(begins, [*begins[1:], len(steps)], strict=True):
        # Of the first line it is not known how many steps it tells of: as many as the next.
        span = steps.steps[first] or (steps.step[first + 1] - steps.step[first] if end > first + 1 else 1)
        before = steps.step[first:end] - np.maximum(steps.steps[first:end], 1)
        count = int(np.count_nonzero(before < steps.step[first] - span + WARM_UP))
        warm[first : first + min(max(1, count), max(1, (end - first) // 2))] = True
    return warm


def _without_warm_up(steps: Steps, log: TrainingLog, notes: list[Note]) -> Steps:
    """Return the steps less those of the warm-up of each start; a start of one line counts where it is the only one."""
    warm = warm_up(steps)
    if warm.all():
        notes.append(Note("warm-up-only", "the log has too few lines to leave out the warm-up; it counts", log.path))
        return steps
    starts = np.unique(steps.start).size
    each = f" of each of {starts} starts" if starts > 1 else ""
    text = (
        f"{counted(int(warm.sum()), 'line')} of warm-up left out (the first {WARM_UP} steps{each}; at most half the "
        "lines)"
    )
    notes.append(Note("warm-up", text, f"{log.path}:{steps.line[warm][0]}"))
    return steps.select(~warm)


def _of_last_batch(steps: Steps, log: TrainingLog, notes: list[Note]) -> Steps:
    """Return the steps of the last global batch, where it grew."""
    last = steps.global_batch[-1]
    same = np.isnan(steps.global_batch) if np.isnan(last) else steps.global_batch == last
    if same.all():
        return steps
    kept = steps.select(same)
    text = f"the global batch changes; {counted(len(kept), 'line')} of the last one, {last:.0f}, of {len(steps)} count"
    notes.append(Note("batch-changes", text, f"{log.path}:{kept.line[0]}"))
    return kept


def _without_interruptions(steps: Steps, log: TrainingLog, notes: list[Note]) -> Steps:
    """Return the steps less those that an evaluation or a checkpoint made longer."""
    longer = steps.interrupted & (steps.step_s > INTERRUPTED * np.median(steps.step_s))
    if not longer.any() or longer.all():
        return steps
    text = (
        f"{counted(int(longer.sum()), 'line')} after an evaluation or a checkpoint left out, more than "
        f"{INTERRUPTED} x the median (up to {format_time(float(steps.step_s[longer].max()))})"
    )
    notes.append(Note("interrupted", text, f"{log.path}:{steps.line[longer][0]}"))
    return steps.select(~longer)


def _say_slow(steps: Steps, middle_s: float, log: TrainingLog, notes: list[Note]) -> None:
    """Note how many of the lines that count are far slower than the median."""
    slow = steps.step_s > SLOW * middle_s
    if slow.any():
        worst = format_time(float(steps.step_s.max()))
        text = f"{counted(int(slow.sum()), 'line')} above {SLOW} x the median, up to {worst}; they count"
        notes.append(Note("slow-steps", text, f"{log.path}:{steps.line[slow][0]}"))
