"""What there is to be said of a training log."""

import numpy as np

from traincast.formats.contract import Inspection
from traincast.formats.training_log.meaning import facts_of, steady_step
from traincast.formats.training_log.record import TrainingLog
from traincast.units import format_size, format_time

_TERA = 1e12
_SAID = ("gpus", "tp", "pp", "vpp", "cp", "ep", "global_batch", "micro_batch", "seq_length", "layers", "hidden", "gpu")


def describe(log: TrainingLog) -> Inspection:
    """Describe a log: what it says of the run, and its step in steady state."""
    facts, steady = facts_of(log), steady_step(log)
    layout: dict[str, int | str | None] = {name: facts.get(name) for name in _SAID if name in facts}
    layout |= {name: None for name in ("gpus", "global_batch", "seq_length") if name not in facts}
    if steady is None:
        layout["step"] = None
    else:
        spread = f"from {format_time(steady.low_s)} to {format_time(steady.high_s)} (5th to 95th percentile)"
        layout["step"] = f"{format_time(steady.step_s)} {spread}"
        if steady.tokens_per_s is not None:
            layout["tokens/s/GPU"] = f"{steady.tokens_per_s:,.0f}"
        if steady.flops_per_s is not None:
            layout["TFLOP/s/GPU"] = f"{steady.flops_per_s / _TERA:.1f} as the framework counts them"
        if steady.memory_bytes is not None:
            kind = "" if log.framework.memory is None else f" ({log.framework.memory.kind})"
            layout["memory"] = f"{format_size(steady.memory_bytes)}{kind}"
    losses = log.steps.loss[np.isfinite(log.steps.loss)]
    if losses.size:
        layout["loss"] = f"{losses[0]:.4g} to {losses[-1]:.4g}"
    counts = {"lines_of_steps": len(log.steps), "starts": log.starts, "printing_ranks": log.ranks}
    evidence = f"steps {log.steps.step.min()} to {log.steps.step.max()}" + (f" of {log.planned}" if log.planned else "")
    return Inspection(
        generation=f"training log of {log.framework.title}",
        evidence=(f"{evidence}, read as {log.framework.title}",),
        counts=counts,
        layout=layout,
        oddities=(*(steady.notes if steady else ()), *log.warnings),
        taken_by="traincast compare JOB LOG compares it with a forecast; validate and calibrate take it with --job JOB",
    )
