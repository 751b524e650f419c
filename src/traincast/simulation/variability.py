"""How a step spreads where computation does not always take the same time.

Every computation of every rank takes its time times a factor of its own: lognormal, of mean 1, independent of all
others, with the standard deviation that is asked for. A step waits for the slowest of those that meet, so that its mean
is longer than the step in which nothing varies.

Letters: N operations, K seeds.
"""

import math

import numpy as np

from traincast.analysis.summary import Variability
from traincast.engine import run
from traincast.engine.many import steps_of
from traincast.progress import told
from traincast.simulation.step import Step
from traincast.workload.ops import FloatArray
from traincast.workload.words import Kind

_AT_ONCE = 2_000_000
"""Durations that are run at once; longer steps run seed by seed."""
_LONG_OPS = 1_000_000


def variability(step: Step, jitter: float, seeds: int) -> Variability:
    """Return how a step spreads over the seeds 0, 1, ...; all its ranks must have been simulated."""
    compute_N = step.program.ops.kind_T[step.program.row_N] == Kind.COMPUTE
    duration_N, graph = step.timeline.duration_s_N, step.layout.graph
    at, steps_s = np.flatnonzero(compute_N), []
    per_run = max(_AT_ONCE // max(len(duration_N), 1), 1)
    batches = [range(begin, min(begin + per_run, seeds)) for begin in range(0, seeds, per_run)]
    what = f"simulating {seeds} seeds of {len(duration_N):,} operations"
    for batch in told(what, batches, 2 if seeds * len(duration_N) > _LONG_OPS else seeds + 1):
        varied = [_varied(duration_N, at, jitter, seed) for seed in batch]
        if len(varied) == 1:
            steps_s.append(float(run(graph, varied[0], step.setting.engine)[2].max(initial=0.0)))
        else:
            steps_s.extend(steps_of(graph, np.stack(varied, axis=1)).tolist())
    found = np.sort(np.array(steps_s))
    p05, median, p95 = np.quantile(found, (0.05, 0.5, 0.95)).tolist()
    return Variability(
        jitter=jitter,
        seeds=seeds,
        mean_s=float(found.mean()),
        deviation_s=float(found.std(ddof=1)) if seeds > 1 else 0.0,
        min_s=float(found[0]),
        p05_s=p05,
        median_s=median,
        p95_s=p95,
        max_s=float(found[-1]),
    )


def _varied(duration_N: FloatArray, at: np.ndarray, jitter: float, seed: int) -> FloatArray:
    """Return durations in which the operations at some places vary; a lognormal factor of mean 1."""
    variance = math.log1p(jitter * jitter)
    factor = np.random.default_rng(seed).lognormal(-variance / 2, math.sqrt(variance), len(at))
    varied_N = duration_N.copy()
    varied_N[at] *= factor
    return varied_N
