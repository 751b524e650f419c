"""How much of a long run is useful training, with failures, restarts and checkpoints.

Failures come at random and independently, at a rate of GPUs over the mean time between failures of one. What was
trained since the last checkpoint is lost; detection and restart follow, which a failure may interrupt too.

Of an interval tau between checkpoints of cost delta, a downtime R and a rate of failures lambda the time that it takes
in the mean is ``e^(lambda R) (e^(lambda (tau + delta)) - 1) / lambda`` (Daly, A higher order estimate of the optimum
checkpoint interval for restart dumps, FGCS 22, 2006, eq. 13), and tau over it is the goodput. It is highest where
``(1 - lambda tau) e^(lambda (tau + delta)) = 1``, which does not depend on R: ``lambda tau = 1 + W(-e^(-1 - lambda
delta))`` with Lambert's W, solved here by Newton's method from Young's ``sqrt(2 delta / lambda)``.
"""

import math

from traincast.analysis.summary import Goodput
from traincast.job.failures import Failures

_ROUNDS = 100
_SOLVED = 1e-12


def goodput(failures: Failures, gpus: int, step_s: float) -> Goodput:
    """Return the goodput of a long run of a job on some GPUs."""
    rate = gpus / failures.mtbf_s
    best_s = optimal_interval_s(rate, failures.checkpoint_s, step_s)
    interval_s = best_s if failures.interval_s is None else failures.interval_s
    useful = share_useful(rate, failures.detection_s + failures.restart_s, failures.checkpoint_s, interval_s)
    in_checkpoints = useful * failures.checkpoint_s / interval_s
    return Goodput(
        goodput=useful,
        mtbf_s=1 / rate,
        detection_s=failures.detection_s,
        restart_s=failures.restart_s,
        checkpoint_s=failures.checkpoint_s,
        interval_s=interval_s,
        optimal_interval_s=best_s,
        in_checkpoints=in_checkpoints,
        in_failures=max(1.0 - useful - in_checkpoints, 0.0),
        useful_step_s=step_s / useful if useful > 0 else math.inf,
    )


def share_useful(rate: float, downtime_s: float, checkpoint_s: float, interval_s: float) -> float:
    """Return the share of the time that is useful training; `rate` is that of failures, in 1/s."""
    longest = 700.0  # e to that is the largest number; beyond it nothing useful is ever done
    exponent = rate * (interval_s + checkpoint_s)
    if exponent + rate * downtime_s > longest:
        return 0.0
    return rate * interval_s * math.exp(-rate * downtime_s) / math.expm1(exponent)


def optimal_interval_s(rate: float, checkpoint_s: float, least_s: float = 0.0) -> float:
    """Return the training between checkpoints that makes the goodput highest, in seconds, but no less than a step."""
    delta = rate * checkpoint_s
    if delta <= 0:
        return least_s
    x = min(math.sqrt(2 * delta), 0.5)
    for _ in range(_ROUNDS):
        # f = (1 - x) e^(x + delta) - 1 and its derivative -x e^(x + delta)
        step = ((1 - x) - math.exp(-x - delta)) / x
        x = min(max(x + step, x / 2), 1.0)
        if abs(step) < _SOLVED * x:
            break
    return max(x / rate, least_s)
