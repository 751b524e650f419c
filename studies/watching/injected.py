"""Series of steps with a change put in, and what a detector says of them.

A shift multiplies all steps from a random point on; a drift multiplies them by more with each point; a spike multiplies
one step in fifty. The detector reads the run up to the change once; each change starts from a copy of it.
"""

import copy
import csv
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from datafiles import table_path
from traincast.checking.alarm import Alarm
from traincast.checking.detector import Detector, LoggedStep
from traincast.checking.series import judged_series, spread_of_medians
from traincast.files import read_unpacked
from traincast.workload.ops import FloatArray, IntArray

LEAST_POINTS = 60
"""Points of a run that is judged."""
FIRST = 30
"""Points before a change at least: a detector learns from them, after a warm-up."""
SHIFT, SPREADS, WITHIN, DATED = 0.03, 3.0, 30, 10
LARGE, SOON = 0.10, 10
DRIFT, DRIFT_WITHIN = 0.01, 300
PERIOD, SPIKE, SPIKES = 50, 0.5, 8
LONGEST = 2500
"""Points of a run into which something is put."""
TRIES = 3
"""Changes of each kind for a run."""


class Run(NamedTuple):
    """The steps of one run."""

    name: str
    step: IntArray
    step_s: FloatArray

    @property
    def family(self) -> str:
        """Return the first part of its name."""
        return self.name.partition("/")[0]

    @property
    def half(self) -> int:
        """Return 0 or 1: into which half its test falls, on whatever machine it ran."""
        return zlib.crc32("/".join(self.name.split("/")[:2]).encode()) % 2


SAVED = 50
"""Step after which Megatron-LM's tests with ``resume`` in their name save a checkpoint (``--save-interval 50`` of 100,
`studies/data/megatron_golden.csv.gz`). A log says so and the table does not. Their second run, which goes on from it,
is not in the table: tests/functional_tests/python_test_utils/get_test_results_from_tensorboard_logs.py reads the first
log alone."""


class Watcher(Protocol):
    """What reads points one by one and raises alarms."""

    def feed(self, point: LoggedStep, /) -> list[Alarm]:
        """Take in a point."""
        ...


class Outcome(NamedTuple):
    """What became of one change."""

    run: Run
    at: int
    """LoggedStep from which on it is there."""
    size: float
    found: bool
    dated: bool
    """Whether its beginning was told within ten points."""
    told: Alarm | None = None
    """The alarm."""


def read_series(name: str = "step_series.csv") -> list[Run]:
    """Return the runs of the table in its order."""
    rows: dict[str, list[tuple[int, float]]] = {}
    for row in csv.DictReader(read_unpacked(table_path(name)).decode().splitlines()):
        rows.setdefault(row["run"], []).append((int(row["step"]), float(row["step_s"])))
    return [
        Run(run, np.array([step for step, _ in found]), np.array([step_s for _, step_s in found]))
        for run, found in rows.items()
    ]


def long_enough(runs: Sequence[Run], points: int = LEAST_POINTS) -> list[Run]:
    """Return the runs of so many points."""
    return [run for run in runs if len(run.step) >= points]


def spread_of(run: Run) -> float:
    """Return the spread (p10 to p90) of a run's ten-step medians after its warm-up."""
    return spread_of_medians(run.step_s[warm_up_of(run) :])


def warm_up_of(run: Run) -> int:
    """Return how many first points a run warms up for."""
    series = judged_series(run.step, run.step_s)
    return next((len(each.steps) for each in series.left_out if each.reason == "warm-up"), 0)


def alarms(
    run: Run, watcher: Watcher, first: int = 0, last: int | None = None, *, saves_told: bool = False
) -> list[Alarm]:
    """Return the alarms of some of a run's points; `saves_told` says where a checkpoint was saved, as a log does."""
    found = []
    saves = saves_told and "resume" in run.name
    for step, step_s in zip(run.step[first:last].tolist(), run.step_s[first:last].tolist(), strict=True):
        found += watcher.feed(LoggedStep(step=step, step_s=step_s, interrupted=saves and step == SAVED + 1))
    return found


def slower_alarms(found: Sequence[Alarm]) -> list[Alarm]:
    """Return those of a level shift or drift."""
    return [each for each in found if each.kind in ("level shift", "drift")]


def shift_outcomes(
    runs: Sequence[Run],
    size: Callable[[Run], float],
    within: int,
    new: Callable[[], Watcher] = Detector,
    tries: int = TRIES,
    seed: int = 0,
) -> Iterator[Outcome]:
    """Yield what becomes of level shifts at random points."""
    for run in runs:
        if len(run.step) >= FIRST + WITHIN:
            factor = 1 + size(run)
            for at, watcher in _places(run, WITHIN, tries, new, seed):
                changed = run._replace(step_s=np.where(np.arange(len(run.step)) >= at, factor, 1.0) * run.step_s)
                yield _outcome(changed, at, factor - 1, watcher, within, ("level shift", "drift"))


def drift_outcomes(
    runs: Sequence[Run], new: Callable[[], Watcher] = Detector, tries: int = TRIES, seed: int = 0
) -> Iterator[Outcome]:
    """Yield what becomes of drifts of 1 % per 100 points."""
    for run in runs:
        if len(run.step) >= FIRST + DRIFT_WITHIN:
            for at, watcher in _places(run, DRIFT_WITHIN, tries, new, seed):
                growth = 1 + DRIFT * np.maximum(0, np.arange(len(run.step)) - at) / 100
                changed = run._replace(step_s=growth * run.step_s)
                yield _outcome(changed, at, DRIFT, watcher, DRIFT_WITHIN, ("level shift", "drift"))


def spike_outcomes(
    runs: Sequence[Run], new: Callable[[], Watcher] = Detector, tries: int = TRIES, seed: int = 0
) -> Iterator[Outcome]:
    """Yield what becomes of one slow step in fifty; ``dated`` says whether its period was named."""
    for run in runs:
        length = PERIOD * SPIKES
        if len(run.step) >= FIRST + length:
            every = PERIOD * int(np.median(np.diff(run.step)))
            for at, watcher in _places(run, length, tries, new, seed):
                hit = (np.arange(len(run.step)) >= at) & ((np.arange(len(run.step)) - at) % PERIOD == 0)
                changed = run._replace(step_s=np.where(hit, 1 + SPIKE, 1.0) * run.step_s)
                found = [each for each in alarms(changed, watcher, at, at + length) if each.kind == "periodic spikes"]
                right = [each for each in found if abs((each.period_steps or 0) - every) <= every / PERIOD]
                yield Outcome(run, at, SPIKE, bool(right), bool(right), right[0] if right else None)


def _places(run: Run, after: int, tries: int, new: Callable[[], Watcher], seed: int) -> Iterator[tuple[int, Watcher]]:
    """Yield random points, each with a detector that read all before it."""
    draw = random.Random(f"{seed} {run.name}")  # noqa: S311
    points = sorted(draw.randint(FIRST, min(len(run.step), LONGEST) - after) for _ in range(tries))
    watcher, read = new(), 0
    for at in points:
        alarms(run, watcher, read, at)
        read = at
        yield at, copy.deepcopy(watcher)


def _outcome(run: Run, at: int, size: float, watcher: Watcher, within: int, kinds: tuple[str, ...]) -> Outcome:
    """Return what a detector says of a change within some points."""
    found = [each for each in alarms(run, watcher, at, at + within) if each.kind in kinds]
    if not found:
        return Outcome(run, at, size, found=False, dated=False)
    began = int(np.searchsorted(run.step, found[0].began_step))
    return Outcome(run, at, size, found=True, dated=abs(began - at) <= DATED, told=found[0])
