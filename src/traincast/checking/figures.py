"""Other figures that a log prints, held against the forecast: FLOP/s and memory, as the framework means them.

Frameworks count FLOP in several ways: causal attention as the half that is computed or as the full square, with or
without what is recomputed. The log's own figure times its own step says what it counts; the way that comes nearest is
taken, and said. Where none does the log is of another model, batch or number of GPUs than the job.
"""

import math
from typing import Literal

from msgspec import Struct

from traincast.checking.base import BaseForecast
from traincast.checking.expected import Expected
from traincast.estimate.memory import JobMemory
from traincast.estimate.memory.fits import memory_deviation
from traincast.formats.training_log.contract import MemoryDefinition
from traincast.job.job import Job
from traincast.model.counts import hardware_flops_per_token, token_flops
from traincast.simulation.job_step import plan_in
from traincast.simulation.widths import Z
from traincast.units import format_share

SAME = 0.03
"""Share within which two counts of the FLOP of a step are the same: of paddings, norms and embeddings."""


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of a log."""

    name: str
    """``FLOP/s`` or ``memory``, both of a GPU."""
    measured: float
    expected: float
    low: float | None
    high: float | None
    """Where it is expected to lie in 90 of 100 cases."""
    word: Literal["as expected", "more", "less", "counted otherwise", "cannot tell"]
    definition: str
    """What was taken to be meant by it."""


def flops_figure(flops_per_s: float, base: BaseForecast, expected: Expected, step_s: float) -> Figure:
    """Return the FLOP/s that a log prints of a GPU, with what is expected of the same count."""
    job = base.job
    tokens, gpus = job.batch.tokens_per_step, job.parallel.world_size
    counted = flops_per_s * step_s * gpus / tokens
    counts = _counts(job)
    name = min(counts, key=lambda each: abs(math.log(counted / counts[each])))
    off = counted / counts[name] - 1
    per_step = counts[name] * tokens / gpus
    ends = [None if each is None else per_step / each for each in (expected.high_s, expected.low_s)]
    figure = Figure(
        name="FLOP/s",
        measured=flops_per_s,
        expected=per_step / expected.step_s,
        low=ends[0],
        high=ends[1],
        word=_word(flops_per_s, ends[0], ends[1]),
        definition=name,
    )
    if abs(off) <= SAME:
        return figure
    by = f"{format_share(abs(off))} {'more' if off > 0 else 'fewer'}"
    text = f"the log counts {by} FLOP a step than the job has by the nearest definition ({name})"
    return Figure(
        **{each: getattr(figure, each) for each in ("name", "measured", "expected", "low", "high")},
        word="counted otherwise",
        definition=f"{text}: compare model, batch, sequence and GPUs of log and job",
    )


def _counts(job: Job) -> dict[str, float]:
    """Return the FLOP of a token in training by what is counted."""
    length, task = job.batch.attended_length, job.finetuning.task
    flops = token_flops(job.model, length)
    dense = (2 if task == "lora" else 3) * flops.matrices
    causal, full = dense + 3 * flops.core, dense + 3 * (2 * flops.attention_core + flops.scan)
    found = {"causal attention counted half": causal, "attention counted in full": full}
    if job.recompute.granularity != "none":
        again = hardware_flops_per_token(job.model, length, job.recompute.granularity, task) - causal
        found["with what is recomputed"] = causal + again
        found["attention in full, with what is recomputed"] = full + again
    return found


def memory_figure(size_bytes: float, meaning: MemoryDefinition, base: BaseForecast) -> Figure:
    """Return the peak memory that a log prints of a GPU, with the forecast one of the same meaning."""
    memory = base.study.memory(base.job, lambda job: JobMemory(job, plan_in(base.study, job)))
    stage = max(memory.stages, key=lambda each: each.peak)
    expected = {"allocated": stage.allocated, "reserved": stage.reserved, "device": stage.peak}[meaning.kind]
    spread = math.exp(Z * memory_deviation(base.job.framework.name))
    low, high = expected / spread, expected * spread
    return Figure(
        name="memory",
        measured=size_bytes,
        expected=expected,
        low=low,
        high=high,
        word=_word(size_bytes, low, high),
        definition=meaning.text,
    )


def _word(
    measured: float, low: float | None, high: float | None
) -> Literal["as expected", "more", "less", "cannot tell"]:
    if low is None or high is None:
        return "cannot tell"
    return "less" if measured < low else "more" if measured > high else "as expected"
