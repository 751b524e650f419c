"""Whether a run really changes, by a rule that knows no detector.

A run changes if it holds a change that a detector must find (`watching.natural`), or if two long stretches of it
differ: of all places with thirty points on either side the one where the median of the points after is furthest above
the median of those before, sixty at most. They differ by the least shift that is asked to be found, and blocks of the
run in random order, which keep what neighbours share, hold as large a difference in at most 1 % of all orders (a
permutation test, Fisher, The Design of Experiments (1935), section 21; the best place is sought anew in each order).
"""

import numpy as np

from traincast.workload.ops import FloatArray
from watching.injected import SHIFT, WITHIN, Run, warm_up_of
from watching.natural import LONG_RUN, holds_change

STRETCH = 60
"""Points of a stretch, at most."""
BLOCK = 5
"""Points that stay together when the order is changed."""
ORDERS = 499
BY_CHANCE = 0.01
"""Share of orders that may hold as large a difference."""


def changes(run: Run) -> bool:
    """Say whether a run holds a change that must be found, or long stretches of it differ."""
    return holds_change(run) or stretches_differ(run)


def stretches_differ(run: Run) -> bool:
    """Say whether points before and after the best place differ by the asked shift, and not by chance."""
    log_s = np.log(run.step_s[warm_up_of(run) :])
    found = _largest_rise(log_s)
    if found < np.log1p(SHIFT):
        return False
    count = len(log_s) // BLOCK
    blocks = log_s[len(log_s) - count * BLOCK :].reshape(count, BLOCK)
    draw = np.random.default_rng(0)
    as_large = 1  # the order that it has
    for _ in range(ORDERS):
        as_large += _largest_rise(blocks[draw.permutation(count)].ravel()) >= found
        if as_large > BY_CHANCE * (ORDERS + 1):
            return False
    return True


def _largest_rise(log_s: FloatArray) -> float:
    """Return by how much the median of a stretch is above that of the one before, at the place where it is most."""
    count = len(log_s)
    if count < 2 * WITHIN:
        return 0.0
    if count > LONG_RUN:
        medians = np.median(np.lib.stride_tricks.sliding_window_view(log_s, STRETCH)[::BLOCK], axis=1)
        apart = STRETCH // BLOCK
        return float((medians[apart:] - medians[:-apart]).max())
    places = range(WITHIN, count - WITHIN + 1)
    return max(
        float(np.median(log_s[at : at + STRETCH]) - np.median(log_s[max(0, at - STRETCH) : at])) for at in places
    )
