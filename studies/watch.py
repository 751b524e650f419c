"""What `watch` finds in runs of which nobody said that anything is wrong, and in the same runs with changes put in.

    python studies/watch.py            # the board, thresholds over halves, CUSUM next to it, what can be told
    python studies/watch.py --runs     # each run with an alarm, as a picture in text

Thresholds of the level shift are scaled together (`FACTORS`). The tests that the runs are of fall into two halves; each
is judged with the factor that is best on the other: false alarms and missed shifts count alike. CUSUM (Page, Continuous
Inspection Schemes, Biometrika 41, 1954) is the other method: on the same logarithms, centred and scaled by the first
points, those beyond four standard deviations drawn in; it is shown at several thresholds.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from judges.watch import boards
from traincast.checking import level_shift
from traincast.checking.alarm import Alarm
from traincast.checking.detector import Detector, LoggedStep
from watching.confidence import said_and_true
from watching.injected import (
    FIRST,
    SHIFT,
    SPREADS,
    WITHIN,
    Outcome,
    Run,
    Watcher,
    alarms,
    long_enough,
    read_series,
    shift_outcomes,
    slower_alarms,
    spread_of,
)
from watching.lasting import changes
from watching.natural import holds_change
from watching.traded import UNREST, best_of, traded

FACTORS = (0.7, 0.85, 1.0, 1.2, 1.5)
HEIGHTS = (5.0, 8.0, 12.0, 18.0, 27.0, 40.0, 60.0)
"""Thresholds of CUSUM, in standard deviations."""


class Cusum:
    """Page's cumulative sum of standardised logarithms, upwards."""

    def __init__(self, height: float, drawn_in: float = 4.0) -> None:
        self.height, self.drawn_in = height, drawn_in
        self.first: list[float] = []
        self.total, self.since = 0.0, 0

    def feed(self, point: LoggedStep) -> list[Alarm]:
        """Take in a point; an alarm starts the sum over."""
        value = math.log(point.step_s)
        if len(self.first) < FIRST:
            self.first.append(value)
            return []
        learned = np.array(self.first[10:])
        middle = float(np.median(learned))
        spread = max(1.4826 * float(np.median(np.abs(learned - middle))), 0.002)
        # Half of the shift that is looked for, 1.5 standard deviations or 3 %, is taken off.
        slack = max(0.75, SHIFT / 2 / spread)
        before = self.total
        self.total = max(0.0, before + min((value - middle) / spread, self.drawn_in + slack) - slack)
        if before == 0.0 and self.total > 0:
            self.since = point.step
        if self.total < self.height:
            return []
        self.total = 0.0
        return [
            Alarm(
                kind="level shift",
                began_step=self.since,
                noticed_step=point.step,
                size=math.nan,
                confidence=math.nan,
                text="CUSUM",
            )
        ]


def main() -> None:
    """Print the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="store_true", help="show each run with an alarm")
    if parser.parse_args().runs:
        for run in long_enough(read_series()):
            show(run)
        return
    print("the board, in per cent:")
    for board in boards():
        print(f"  {board.name:44} {board.rows:5}  {dict(board.figures)}, asked {dict(board.asked)}")
    runs = [run for run in long_enough(read_series()) if len(run.step) <= 300]
    spreads = {run.name: spread_of(run) for run in runs}
    over_halves(runs, spreads)
    everything = long_enough(read_series())
    trade(everything, {run.name: spread_of(run) for run in everything})
    cusum(runs, spreads)
    bound(runs)
    natural(long_enough(read_series()))
    confidence(long_enough(read_series()))


def trade(runs: Sequence[Run], spreads: dict[str, float]) -> None:
    """Print runs that are called changed against changes that are found, over constants of the level shift."""
    rows = list(traded(runs, spreads))
    real = {run.name for run in runs if changes(run)}
    print("variants, changes put at every few points: runs called, those of them that do not change, shifts found,")
    print("those 10 % larger found in ten points:")
    for row in rows:
        called, found, large = row.of_half()
        none = sum(each.called and each.run.name not in real for each in row.runs)
        print(f"  {row.name:38} {called:5.1%} {none:3}  {found:.1%} {large:.1%}")
    print("how restless windows may be, chosen on one half, on the other:")
    rests = list(traded(runs, spreads, UNREST))
    for half in (0, 1):
        best = best_of(rests, 1 - half)
        called, found, large = best.of_half(half)
        print(f"  half {half}: {best.name}: {called:5.1%}  {found:.1%} {large:.1%}")


_Judged = tuple[bool, list[bool]]
"""Whether a run has an alarm, and which shifts that were put into it were missed."""


def shifts(runs: Sequence[Run], spreads: dict[str, float], new: Callable[[], Watcher] = Detector) -> list[Outcome]:
    """Return what becomes of shifts of 3 % or three spreads."""
    return list(shift_outcomes(runs, lambda run: max(SHIFT, SPREADS * spreads[run.name]), WITHIN, new, tries=2))


def over_halves(runs: Sequence[Run], spreads: dict[str, float]) -> None:
    """Print false alarms and missed shifts of each half of the tests with the factor that is best on the other."""
    names = ("TIMES_SHORT", "TIMES_LONG")
    own = {name: getattr(level_shift, name) for name in names}
    found: dict[float, tuple[list[_Judged], list[_Judged]]] = {}
    for factor in FACTORS:
        for name in names:
            setattr(level_shift, name, own[name] * factor)
        found[factor] = [], []
        missed = defaultdict(list)
        for outcome in shifts(runs, spreads):
            missed[outcome.run.name].append(not outcome.found)
        for run in runs:
            found[factor][run.half].append((bool(slower_alarms(alarms(run, Detector()))), missed[run.name]))
    for name, value in own.items():
        setattr(level_shift, name, value)
    print("scale of the thresholds, chosen on one half of the tests, and as they are:")
    for half in (0, 1):
        for factor in (min(FACTORS, key=lambda each: sum(_figures(found[each][1 - half]))), 1.0):
            alarmed, missed_share = _figures(found[factor][half])
            rows = len(found[factor][half])
            print(f"  half {half} {rows:4} runs: x{factor:<4}  alarmed {alarmed:5.1%}  missed {missed_share:5.1%}")


def _figures(rows: Sequence[tuple[bool, list[bool]]]) -> tuple[float, float]:
    """Return the shares of runs with an alarm, and of shifts that were missed."""
    missed = [each for _, found in rows for each in found]
    return float(np.mean([alarmed for alarmed, _ in rows])), float(np.mean(missed)) if missed else 0.0


def cusum(runs: Sequence[Run], spreads: dict[str, float]) -> None:
    """Print what CUSUM finds at several thresholds."""
    print("CUSUM (Page 1954) and the window-limited likelihood ratio (Lai 1995):")

    def line(name: str, new: Callable[[], Watcher]) -> None:
        alarmed = np.mean([bool(slower_alarms(alarms(run, new()))) for run in runs])
        outcomes = shifts(runs, spreads, new)
        found = [each for each in outcomes if each.found]
        dated = np.mean([each.dated for each in found])
        print(f"  {name:22} alarmed {alarmed:5.1%}  missed {1 - len(found) / len(outcomes):5.1%}  dated {dated:5.1%}")

    for height in HEIGHTS:
        line(f"CUSUM, height {height:g}", partial(Cusum, height))
    line("likelihood ratio", Detector)


def bound(runs: Sequence[Run]) -> None:
    """Print the smallest shift that anyone could tell within thirty points, and how near the detector comes.

    A shift of a Gaussian series of known spread and autocorrelation, held against forty points before it, is found in
    95 % with one false alarm in twenty runs only if it is (2.5 + 1.64) standard errors of the difference of both means:
    a run of a hundred points holds about ten windows of its own, so that each may be wrong in 0.6 % (2.5).
    """
    ratios, sizes = [], []
    for run in runs:
        values = np.log(run.step_s[20:])
        spread = 1.4826 * float(np.median(np.abs(values - np.median(values))))
        centred = np.clip(values - np.median(values), -3 * spread, 3 * spread)
        alike = float(np.mean([a * b for a, b in pairwise(centred.tolist())])) / max(float(np.mean(centred**2)), 1e-12)
        alike = min(max(alike, 0.0), 0.9)
        error = spread * math.sqrt((1 / 30 + 1 / 40) * (1 + alike) / (1 - alike))
        sizes.append((2.5 + 1.64) * error)
        known = level_shift.reference_of(np.log(run.step_s[18:58]).tolist())
        ratios.append(max(level_shift.LEAST_LONG, level_shift.TIMES_LONG * known.of_blocks) / max(sizes[-1], 1e-9))
    low, middle, high = np.quantile(sizes, (0.1, 0.5, 0.9))
    print(f"smallest shift that can be told in 30 points: {low:.1%} / {middle:.1%} / {high:.1%} (p10, median, p90)")
    wide = [ratio for ratio, size in zip(ratios, sizes, strict=True) if size > SHIFT]
    print(f"the detector's threshold over it, where it is above 3 %: {np.median(wide):.2f} in the median")


def natural(runs: Sequence[Run]) -> None:
    """Print how many alarms are of runs with a change as large as those that must be told."""
    print("runs with an alarm, and those of them with a change as large as those that must be told:")
    for saves_told in (False, True):
        alarmed = [run for run in runs if slower_alarms(alarms(run, Detector(), saves_told=saves_told))]
        held = [run for run in runs if holds_change(run, saves_told=saves_told)]
        both = {run.name for run in alarmed} & {run.name for run in held}
        name = "checkpoints told" if saves_told else "as they came"
        print(f"  {name:18} {len(alarmed)} of {len(runs)}, {len(both)} of them; {len(held)} such runs in all")
        others = [run.name for run in alarmed if not changes(run)]
        print(f"  {'':18} {len(others)} of them neither hold one nor have long stretches that differ")


def confidence(runs: Sequence[Run]) -> None:
    """Print what share of alarms is of changes that were put in, where every other run has one."""
    print("confidence of alarms, and the share that is of changes that were put in:")
    for each in said_and_true(runs, {run.name: spread_of(run) for run in runs}):
        print(f"  {each.kind:16} half {each.half}: said {each.said:.0%}, true {each.true:.0%} of {each.alarms} alarms")


def show(run: Run) -> None:
    """Print a run with an alarm as a line of heights: medians of blocks."""
    found = slower_alarms(alarms(run, Detector()))
    if not found:
        return
    size = max(1, len(run.step) // 100)
    blocks = [float(np.median(run.step_s[at : at + size])) for at in range(0, len(run.step) - size + 1, size)]
    low, high = np.quantile(blocks, (0.02, 0.95))
    heights = "▁▂▃▄▅▆▇█"
    picture = "".join(heights[int(min(7, max(0, 7 * (each - low) / max(high - low, 1e-9))))] for each in blocks)
    print(f"{run.name}\n  {picture}\n  {low:.4g} to {high:.4g} s: {'; '.join(each.text for each in found[:3])}")


if __name__ == "__main__":
    main()
