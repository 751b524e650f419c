"""What a training log says of a step in steady state: its median and spread, without warm-up and interruptions.

The rule. Of each start of the run the first `WARM_UP` steps are warm-up (kernels are compiled, libraries find their
algorithms, memory is laid out), so that a line that tells of one of them is left out, and the first line in any case;
of a short start at most the first half. A line after an evaluation or a checkpoint that is more than `INTERRUPTED`
times the median is left out too: some versions count these into the step. Where the batch grows (Megatron-LM's
``--rampup-batch-size``), the steps of the last batch count. All other lines count, slow ones too.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.formats.training_log.grammar import Step, TrainingLog
from traincast.units import counted, format_time

WARM_UP = 10
"""Steps of warm-up; NeMo says of its own lines that about the first ten are not steady (`flops_callback.py`, v2.4)."""
INTERRUPTED = 1.1
SLOW = 1.5
"""Multiple of the median above which lines are told of."""
LEVEL = 0.9
"""Share of the lines within the spread: from the 5th to the 95th percentile."""
_LEAST_SPAN_S = 20.0
"""Least time between two clock times that a step is told from: a progress bar says whole seconds."""


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
    notes: tuple[Note, ...]
    """Which lines do not count, and what else there is to know."""


def facts_of(log: TrainingLog, known: Mapping[str, int] | None = None) -> dict[str, int | str]:
    """Return what the log says of the run, and of what it does not say what is known of it otherwise."""
    facts: dict[str, int | str] = {**(known or {}), **log.facts}
    batch = log.steps[-1].global_batch
    if batch is not None:
        facts["global_batch"] = batch
    return facts


def tokens_of(log: TrainingLog, facts: Mapping[str, int | str], step: Step) -> int | None:
    """Return the tokens of a step; None where the log does not say them and nothing else is known."""
    if "tokens" in log.facts:
        return int(log.facts["tokens"])
    batch, seq_length = step.global_batch or facts.get("global_batch"), facts.get("seq_length")
    return None if batch is None or seq_length is None else int(batch) * int(seq_length)


def steady_step(log: TrainingLog, known: Mapping[str, int] | None = None) -> Steady | None:
    """Return the step in steady state; None where the log tells no time and nothing else does.

    Parameters
    ----------
    log : TrainingLog
    known : mapping, optional
        ``global_batch``, ``seq_length`` and ``gpus`` of the job that ran, for logs that say tokens per second alone and
        not of how many.
    """
    facts = facts_of(log, known)
    notes: list[Note] = []
    timed = _timed(log, facts, notes)
    if not timed:
        return None
    kept = _of_last_batch(_without_warm_up(timed, log, notes), log, notes)
    kept = _without_interruptions(kept, log, notes)
    times = [step.time_s or 0.0 for step in kept]
    middle = median(times)
    _say_slow(kept, middle, log, notes)
    low, high = map(float, np.quantile(times, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    spans = {step.steps for step in kept if step.steps}
    if max(spans, default=1) > 1:
        text = f"each line is the mean of {max(spans)} steps, so that single steps spread more than the lines do"
        notes.append(Note("means", text, log.path))
    rates = [rate for step in kept if (rate := _tokens_per_s(log, facts, step)) is not None]
    flops = [step.flops_per_s for step in kept if step.flops_per_s]
    return Steady(
        step_s=middle,
        low_s=low,
        high_s=high,
        lines=len(kept),
        steps=sum(step.steps or 1 for step in kept),
        tokens_per_s=median(rates) if rates else None,
        flops_per_s=median(flops) if flops else None,
        notes=tuple(notes),
    )


def _tokens_per_s(log: TrainingLog, facts: Mapping[str, int | str], step: Step) -> float | None:
    """Return the tokens per second and GPU of a step that has a time."""
    if step.tokens_per_s is not None:
        return step.tokens_per_s
    tokens, gpus = tokens_of(log, facts, step), facts.get("gpus")
    return None if tokens is None or gpus is None or not step.time_s else tokens / step.time_s / int(gpus)


def _timed(log: TrainingLog, facts: Mapping[str, int | str], notes: list[Note]) -> list[Step]:
    """Return the steps with a time each: printed, or from tokens per second, or between two clock times."""
    if any(step.time_s is not None for step in log.steps):
        return [step for step in log.steps if step.time_s is not None]
    gpus = facts.get("gpus")
    rated = [
        replace(step, time_s=tokens / (step.tokens_per_s * int(gpus)))
        for step in log.steps
        if gpus and step.tokens_per_s and (tokens := tokens_of(log, facts, step))
    ]
    if rated:
        last = rated[-1]
        tokens, time_s = tokens_of(log, facts, last) or 0, format_time(last.time_s or 0.0)
        rate = f"{tokens:,} tokens / ({last.tokens_per_s:,.0f} tokens/s/GPU x {gpus} GPUs) = {time_s}"
        text = f"the log prints tokens per second and GPU, and steps are told from them: {rate} in the last line"
        notes.append(Note("from-tokens", text, f"{log.path}:{last.line}"))
        return rated
    clocked = _by_clock(log.steps)
    if clocked:
        text = (
            "the log says neither the time of a step nor of how many tokens and GPUs it is; steps are told from when "
            "their lines were printed, with whatever was done between them"
        )
        notes.append(Note("from-clock", text, log.path))
    return clocked


def _by_clock(steps: Sequence[Step]) -> list[Step]:
    """Return steps whose lines stand far enough apart in time, each with the mean time since the one before."""
    found: list[Step] = []
    before: Step | None = None
    for step in steps:
        if step.clock_s is None:
            continue
        if before is None or before.start != step.start or step.clock_s < (before.clock_s or 0.0):
            before = step
            continue
        elapsed, done = step.clock_s - (before.clock_s or 0.0), step.number - before.number
        if elapsed >= _LEAST_SPAN_S and done > 0:
            found.append(replace(step, time_s=elapsed / done, steps=done))
            before = step
    return found


def _without_warm_up(steps: Sequence[Step], log: TrainingLog, notes: list[Note]) -> list[Step]:
    """Return the steps less those of the warm-up of each start; a start of one line counts where it is the only one."""
    kept: list[Step] = []
    dropped: list[Step] = []
    for _, of_start in groupby(steps, key=lambda step: step.start):
        lines = list(of_start)
        # Of the first line it is not known how many steps it tells of: as many as the next.
        span = lines[0].steps or (lines[1].number - lines[0].number if len(lines) > 1 else 1)
        began = lines[0].number - span
        warm = [step for step in lines if step.number - (step.steps or 1) < began + WARM_UP]
        most = max(1, len(lines) // 2)
        count = min(max(1, len(warm)), most)
        dropped += lines[:count]
        kept += lines[count:]
    if not kept:
        notes.append(Note("warm-up-only", "the log has too few lines to leave out the warm-up; it counts", log.path))
        return dropped
    starts = len({step.start for step in steps})
    each = f" of each of {starts} starts" if starts > 1 else ""
    text = (
        f"{counted(len(dropped), 'line')} of warm-up left out (the first {WARM_UP} steps{each}; at most half the lines)"
    )
    notes.append(Note("warm-up", text, f"{log.path}:{dropped[0].line}"))
    return kept


def _of_last_batch(steps: list[Step], log: TrainingLog, notes: list[Note]) -> list[Step]:
    """Return the steps of the last global batch, where it grew."""
    last = steps[-1].global_batch
    kept = [step for step in steps if step.global_batch == last]
    if len(kept) < len(steps):
        text = f"the global batch changes; {counted(len(kept), 'line')} of the last one, {last}, of {len(steps)} count"
        notes.append(Note("batch-changes", text, f"{log.path}:{kept[0].line}"))
    return kept


def _without_interruptions(steps: list[Step], log: TrainingLog, notes: list[Note]) -> list[Step]:
    """Return the steps less those that an evaluation or a checkpoint made longer."""
    limit = INTERRUPTED * median(step.time_s or 0.0 for step in steps)
    longer = [step for step in steps if step.interrupted and (step.time_s or 0.0) > limit]
    if not longer or len(longer) == len(steps):
        return steps
    text = (
        f"{counted(len(longer), 'line')} after an evaluation or a checkpoint left out, more than {INTERRUPTED} x the "
        f"median (up to {format_time(max(step.time_s or 0.0 for step in longer))})"
    )
    notes.append(Note("interrupted", text, f"{log.path}:{longer[0].line}"))
    return [step for step in steps if step not in longer]


def _say_slow(steps: Sequence[Step], middle_s: float, log: TrainingLog, notes: list[Note]) -> None:
    """Note how many of the lines that count are far slower than the median."""
    slow = [step for step in steps if (step.time_s or 0.0) > SLOW * middle_s]
    if slow:
        worst = max(step.time_s or 0.0 for step in slow)
        text = f"{counted(len(slow), 'line')} above {SLOW} x the median, up to {format_time(worst)}; they count"
        notes.append(Note("slow-steps", text, f"{log.path}:{slow[0].line}"))
