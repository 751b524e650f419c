"""Changes that healthy runs hold by themselves, as large as those that a detector must find.

A run holds one if it is, step by step, a healthy run into which a change of the asked size was put: take the slow phase
out (its steps over how much slower they are), and what is left has a spread that the change exceeds as asked. Nothing
in its times tells such a run from one with a change put in, so that a detector that finds these in 95 % of all cases
raises an alarm in 95 % of the runs that hold one. The phase must last as long as a detector may take, no longer. A run
that rises steadily over 100 to 300 points, by what a drift put in has grown by when it must be told, holds a drift.
"""

from collections.abc import Iterator

import numpy as np

from traincast.checking.series import spread_of_medians
from traincast.workload.ops import FloatArray
from watching.injected import DRIFT, DRIFT_WITHIN, FIRST, LARGE, SAVED, SHIFT, SOON, SPREADS, WITHIN, Run, warm_up_of

BEFORE = 40
"""Points before a phase that say what the level was."""
MOSTLY = 0.8
"""Share of the first points of a phase that lie nearer to its level than to the one before, and of the ten before it
that do not: so that it begins there."""
SKIPPED = 18
LONG_RUN = 300
"""Points from which on every tenth is tried as a beginning."""
BLOCK = 10
"""Points whose median stands for them where a drift is looked for."""


def holds_change(run: Run, *, saves_told: bool = False) -> bool:
    """Say whether a run holds a change of the asked size; `saves_told` leaves out those right after a checkpoint."""
    log_s, first = np.log(run.step_s), warm_up_of(run)
    for begin, end, size in _phases(log_s):
        if saves_told and "resume" in run.name and abs(int(run.step[begin]) - SAVED) <= WITHIN // 3:
            continue
        rest = log_s.copy()
        rest[begin:end] -= size
        spread = spread_of_medians(np.exp(rest[first:]))
        asked = max(SHIFT, SPREADS * spread) if end - begin >= WITHIN else LARGE + SPREADS * spread
        if np.expm1(size) >= asked:
            return True
    return _drifts(log_s)


def _drifts(log_s: FloatArray) -> bool:
    """Say whether there are 100 to 300 points whose quarters lie each above the one before, by 3 % in all."""
    if len(log_s) < FIRST + DRIFT_WITHIN:
        return False
    count = (len(log_s) - FIRST) // BLOCK
    blocks = np.median(log_s[FIRST : FIRST + count * BLOCK].reshape(count, BLOCK), axis=1)
    least = np.log1p(DRIFT * DRIFT_WITHIN / 100)
    for size in (8, 16, 28):
        windows = np.lib.stride_tricks.sliding_window_view(blocks, size)
        quarters = np.median(windows.reshape(len(windows), 4, -1), axis=2)
        at = np.arange(size) - (size - 1) / 2
        grown = windows @ at / (at @ at) * (size - 1)
        rising = (np.diff(quarters, axis=1) > least / 8).all(axis=1)
        if (rising & (grown >= least)).any():
            return True
    return False


def _phases(log_s: FloatArray) -> Iterator[tuple[int, int, float]]:
    """Yield slow phases: beginning, end, and how much slower they are, as a logarithm."""
    count = len(log_s)
    for begin in range(FIRST, count - SOON + 1, 1 if count <= LONG_RUN else 10):
        before = float(np.median(log_s[max(SKIPPED, begin - BEFORE) : begin]))
        for length in (SOON, WITHIN // 2, WITHIN, 2 * WITHIN, count - begin):
            end = begin + length
            if end > count:
                continue
            size = float(np.median(log_s[begin:end])) - before
            least = SHIFT if length >= WITHIN else LARGE
            known = log_s[begin : begin + min(length, WITHIN)]
            middle, just = before + size / 2, log_s[begin - SOON : begin]
            if size > np.log1p(least) and min(np.mean(known > middle), np.mean(just < middle)) >= MOSTLY:
                yield begin, end, size
