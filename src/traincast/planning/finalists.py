"""The best layouts of a screen simulated in full, until no other can be expected to be better.

The screen's closed forms are off by a little, and alike for layouts of one schedule: the ratio of simulated to
screened steps of a schedule corrects what is not simulated yet. Layouts are simulated in the order of these corrected
steps, those of a new kind first, until the best simulated one is ahead of all others by more than the ratios scatter.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from traincast.errors import TraincastError
from traincast.job.fields import ways
from traincast.planning.layout import Layout
from traincast.planning.screen.screen import Screened
from traincast.progress import part
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result

Simulate = Callable[[Layout], tuple[Result, JobStep]]

LEAST = 8
"""Fewest layouts that are simulated, where there are so many."""

_SCATTER = 0.01
"""Scatter of the ratios that is assumed in addition to what is seen: of layouts that differ in little."""


class Finalist(Struct, frozen=True, kw_only=True):
    """A layout that was simulated."""

    layout: Layout
    screened_s: float
    """Its step as the screen has it."""
    peak_bytes: float
    result: Result
    done: JobStep

    @property
    def step_s(self) -> float:
        """Its simulated step."""
        return self.result.iteration_time_s

    @property
    def ratio(self) -> float:
        """Simulated over screened."""
        return self.step_s / self.screened_s


class _Race(Struct):
    """Which layout is simulated next."""

    screened: Screened
    kinds: list[tuple[object, ...]]
    """What decides the screen's error, by layout."""
    ratios: dict[tuple[object, ...], list[float]] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    tried: set[tuple[object, ...]] = field(default_factory=set)

    def expected(self, number: int) -> float:
        """Return the step that the simulation of a layout is expected to give."""
        ratios = self.ratios.get(self.kinds[number]) or [each for found in self.ratios.values() for each in found]
        return self.screened.step_s[number] * (sum(ratios) / len(ratios) if ratios else 1.0)

    def next(self) -> int:
        """Return the layout of least expected step; of equal degrees one is tried first."""
        if len(self.tried) < LEAST // 2:
            fresh = [each for each in self.left if _degrees(self.screened.layouts[each]) not in self.tried]
            if fresh:
                return min(fresh, key=self.expected)
        return min(self.left, key=self.expected)

    def scatter(self) -> float:
        """Return how far the ratios of a schedule are from their mean, as a share."""
        around = [each / (sum(found) / len(found)) - 1 for found in self.ratios.values() for each in found]
        return math.hypot(_SCATTER, math.sqrt(sum(each**2 for each in around) / max(1, len(around))))


def _kind(layout: Layout) -> tuple[object, ...]:
    """Return what the screen's error depends on: the schedule, how state is sharded, and ways of execution."""
    schedule = layout.schedule if layout.pp > 1 else ""
    switched = (getattr(layout, each.name) for each in ways())
    return schedule, layout.zero, layout.overlap_grad_reduce, *switched, layout.software


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.gpus, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp


def simulated(screened: Screened, simulate: Simulate, most: int) -> tuple[Finalist, ...]:
    """Simulate the best layouts of a screen, and return them with the fastest first.

    A layout that cannot be run after all is passed over.
    """
    return tuple(sorted(_simulated(screened, simulate, most), key=lambda each: each.step_s))


def _simulated(screened: Screened, simulate: Simulate, most: int) -> Iterator[Finalist]:
    race = _Race(screened, list(map(_kind, screened.layouts)), left=list(range(len(screened.layouts))))
    best_s, count = math.inf, 0
    while race.left and count < most:
        number = race.next()
        if count >= LEAST and best_s < race.expected(number) * (1 - race.scatter()):
            return
        race.left.remove(number)
        layout = screened.layouts[number]
        race.tried.add(_degrees(layout))
        try:
            # Of what is not screening; the race may end before all of them have run.
            with part(count / most, (count + 1) / most):
                result, done = simulate(layout)
        except TraincastError:
            continue
        found = Finalist(
            layout=layout,
            screened_s=screened.step_s[number],
            peak_bytes=screened.peak_bytes[number],
            result=result,
            done=done,
        )
        race.ratios.setdefault(race.kinds[number], []).append(found.ratio)
        best_s, count = min(best_s, found.step_s), count + 1
        yield found


def disagreement(finalists: Sequence[Finalist]) -> tuple[float, float]:
    """Return the mean and the largest difference of screened to simulated steps, as shares of the simulated ones."""
    off = [abs(each.screened_s / each.step_s - 1) for each in finalists]
    return sum(off) / len(off), max(off)
