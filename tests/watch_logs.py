# ruff: noqa: S311
"""Logs of Megatron-LM whose steps change, for tests and for the example."""

import random

from training_logs import megatron_line


def steps_ms(points, seed=0, spread=0.004):
    """Return times of steps with a little noise and a warm-up."""
    draw = random.Random(seed)
    return [2000 * (1 + draw.gauss(0, spread)) * (12 if at == 0 else 1.2 if at == 1 else 1) for at in range(points)]


def log_of(times_ms):
    """Return the lines of a run with these times, the first of which is step 1."""
    return [megatron_line(at, ms, steps=5000, tflops=400_000 / ms) for at, ms in enumerate(times_ms, 1)]


def slower_log(at=150, by=1.06, points=220):
    """Return the lines of a run that becomes slower."""
    return log_of([ms * (by if step >= at else 1) for step, ms in enumerate(steps_ms(points), 1)])
