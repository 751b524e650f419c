"""Logs of runs that take what a forecast says, times a factor, with noise."""

import numpy as np

from training_logs import megatron_line, megatron_world


def write_log(path, step_s, *, points=40, noise=0.005, seed=0, batch=16, tflops=None, slow=(), world=None):
    """Write a log of Megatron-LM whose steps take so long in the mean; `slow` are steps of three times that."""
    rolls = np.random.default_rng(seed)
    lines = [] if world is None else [megatron_world(*world)]
    for step in range(1, points + 1):
        time_s = step_s * rolls.normal(1, noise) * (5 if step == 1 else 3 if step in slow else 1)
        rate = None if tflops is None else tflops * step_s / time_s
        lines.append(megatron_line(step, 1e3 * time_s, batch=batch, tflops=rate))
    path.write_text("\n".join(lines) + "\n")
    return path
