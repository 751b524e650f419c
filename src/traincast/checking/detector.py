"""Watch the steps of a running job one by one: alarms, in memory and time that do not grow with the run."""

import math
from collections import deque

from msgspec import Struct, field

from traincast.checking.alarm import Alarm, FoundChange, calibrated, confidence_of, quantile
from traincast.checking.level_shift import LEAST_SHORT, SKIPPED, TIMES_LONG, LevelShift, Reference
from traincast.checking.periodic import PeriodicSpikes
from traincast.checking.slow_change import SlowChange
from traincast.units import format_share

DRIFT_LEAST, DRIFT_FAST, DRIFT_ERRORS = 0.018, 0.05, 3.5
"""Growth of a drift that is told at least, the same within eighty points, and standard errors that it must be. One of
the healthy runs (nemotron3, GB200) slows by 10 % in a hundred points of each of its starts."""
CREEP_LEAST, CREEP_ERRORS = 0.01, 6.0
"""The same of memory."""
SPREAD_POINTS = 60
"""Points whose spread is held against that of as many before."""
SPREAD_TIMES, SPREAD_LEAST = 3.0, 0.05
"""How many times the spread it had the run must have, and the share of a step that it must be."""
STALL_STEPS, STALL_S = 20.0, 60.0
"""A run stalls after so many times of a step, and so long, without one."""
PAUSE_LEAST = 0.08
"""A level that rises by less at a checkpoint or restart is not told, unless such rises add up to more. Of 142 healthy
jobs that save a checkpoint after step 50 (Megatron-LM's tests with ``resume`` in their name and ``--save-interval 50``,
`studies/data/step_series.csv.gz`) one in twenty went on slower by 4 % and more, one in fifty by 6 %. That restarts do
the same is assumed: no table has them."""
NEAR_STEPS = 5
"""How far from a pause a change may be dated that began there."""
CAUSES = {
    "level shift": (
        "a GPU that slowed down (power cap, heat, another tenant)",
        "a link or NIC at a lower rate",
        "another phase of the data or of the schedule: longer sequences, larger batch",
    ),
    "drift": (
        "the host slows: a growing log, cache or list in the training loop, a data loader that falls behind",
        "memory that fragments, so that the allocator works longer",
        "GPUs that get warmer",
    ),
    "growing spread": ("contention with other jobs on the network or the storage", "a straggler that comes and goes"),
    "stall": ("a hung collective or a lost rank", "storage that does not answer", "an evaluation or a checkpoint"),
    "memory creep": ("tensors that are kept from step to step", "fragmentation of the allocator's memory"),
}
"""What explains each kind where nothing in the log does."""


class LoggedStep(Struct, frozen=True, kw_only=True):
    """What a line of a log says of a step."""

    step: int
    step_s: float
    start: int = 0
    """Which start of the run it belongs to."""
    memory_bytes: float = math.nan
    interrupted: bool = False
    """Whether an evaluation or a checkpoint came before it."""
    steps: int = 1
    """Steps of which it is the mean."""


class Detector(Struct):
    """Takes the points of one run in the order of its log."""

    shifts: LevelShift = field(default_factory=LevelShift)
    drifts: SlowChange = field(default_factory=lambda: SlowChange(DRIFT_LEAST, DRIFT_ERRORS, DRIFT_FAST, LEAST_SHORT))
    creeps: SlowChange = field(default_factory=lambda: SlowChange(CREEP_LEAST, CREEP_ERRORS))
    spikes: PeriodicSpikes = field(default_factory=PeriodicSpikes)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=2 * SPREAD_POINTS))
    """Logarithms of the last times."""
    seen: int = 0
    last: LoggedStep | None = None
    start_before: Reference | None = None
    """What the last start was like, until this one is known."""
    begun_at: int = 0
    """First step of this start."""
    told_spread: float = 0.0
    """The widest that was told; what is hardly wider is not told again."""
    interruptions: deque[int] = field(default_factory=lambda: deque(maxlen=32))
    """Steps after evaluations and checkpoints."""
    at_pauses: float = 0.0
    """What the level rose at these without being told, as a logarithm."""
    stalled_at: int | None = None

    def feed(self, point: LoggedStep) -> list[Alarm]:
        """Take in a point; return the alarms that it raises."""
        if not (math.isfinite(point.step_s) and point.step_s > 0):
            return []
        if self.last is not None and point.start != self.last.start:
            self._start(point.step)
        before, self.last, self.stalled_at = self.last, point, None
        self.seen += 1
        log_s = math.log(point.step_s)
        found = self._stall_of(point) if before is not None and before.start == point.start else []
        self.recent.append(log_s)
        if point.interrupted:
            # What it took was not a step alone; a period of such steps has its cause in the log.
            self.interruptions.append(point.step)
        elif shift := self.shifts.feed(point.step, log_s):
            if not self._of_a_pause(shift, point):
                found.append(self._alarm("level shift", shift, point))
            self.drifts.restart()
        elif again := self._since_restart():
            found.append(self._alarm("level shift", again, point))
        elif drift := self.drifts.feed(point.step, log_s):
            found.append(self._alarm("drift", drift, point))
        found += self._periodic(point, log_s) + self._spread(point)
        if math.isfinite(point.memory_bytes) and point.memory_bytes > 0:
            creep = self.creeps.feed(point.step, math.log(point.memory_bytes))
            found += [self._alarm("memory creep", creep, point)] if creep else []
        return found

    def stalled(self, waited_s: float) -> Alarm | None:
        """Return an alarm, once, where no step came for some seconds since the last."""
        if self.last is None or self.stalled_at is not None or len(self.recent) < SKIPPED:
            return None
        usual_s = self.usual_s * max(1, self.last.steps)
        if waited_s <= max(STALL_S, STALL_STEPS * usual_s):
            return None
        self.stalled_at = self.last.step
        return self._stall(self.last.step, waited_s, usual_s)

    @property
    def usual_s(self) -> float:
        """The median of the last times; NaN before the first."""
        return math.exp(quantile(sorted(self.recent), 0.5)) if self.recent else math.nan

    def band(self) -> tuple[float, float]:
        """Return within which times nine steps in ten of the last ones lie."""
        ordered = sorted(self.recent)
        if not ordered:
            return math.nan, math.nan
        return math.exp(quantile(ordered, 0.05)), math.exp(quantile(ordered, 0.95))

    def _start(self, step: int) -> None:
        """Begin a start of the run: it warms up, and levels of other starts are not its own."""
        self.begun_at, self.start_before = step, self.shifts.known() or self.start_before
        self.interruptions.clear()
        self.at_pauses = 0.0
        self.shifts.restart()
        self.drifts.restart(SKIPPED)
        self.creeps.restart(SKIPPED)
        self.recent.clear()

    def _since_restart(self) -> FoundChange | None:
        """Return by how much this start is slower than the one before, once it is known."""
        now = self.shifts.known() if self.start_before is not None else None
        if self.start_before is None or now is None:
            return None
        before, self.start_before = self.start_before, None
        scatter = math.hypot(before.of_blocks, now.of_blocks)
        slower = now.level - before.level
        if slower <= max(PAUSE_LEAST, TIMES_LONG * scatter):
            return None
        return FoundChange(self.begun_at, math.expm1(slower), confidence_of(slower / scatter))

    def _pauses_near(self, began: int, point: LoggedStep) -> list[int]:
        """Return the steps after evaluations and checkpoints at which a change may have begun."""
        return [step for step in self.interruptions if abs(step - began) <= NEAR_STEPS * max(1, point.steps)]

    def _of_a_pause(self, shift: FoundChange, point: LoggedStep) -> bool:
        """Say whether a shift is no more than what levels rise by when healthy jobs go on after a pause."""
        risen = self.at_pauses + math.log1p(shift.size)
        forgiven = risen < PAUSE_LEAST and bool(self._pauses_near(shift.began, point))
        self.at_pauses = risen if forgiven else 0.0
        return forgiven

    def _stall_of(self, point: LoggedStep) -> list[Alarm]:
        """Return the alarm of a step that took as long as a stall, unless its cause is in the log."""
        if point.interrupted or len(self.recent) < SKIPPED or point.steps > 1:
            return []
        usual_s = self.usual_s
        return [self._stall(point.step, point.step_s, usual_s)] if point.step_s > max(STALL_S, 20 * usual_s) else []

    def _stall(self, step: int, waited_s: float, usual_s: float) -> Alarm:
        return Alarm(
            kind="stall",
            began_step=step,
            noticed_step=step,
            size=waited_s / usual_s - 1,
            confidence=0.99,
            text=f"stall: {waited_s:.0f} s at step {step}, where a step takes {usual_s:.3g} s",
            explained_by=CAUSES["stall"],
        )

    def _alarm(self, kind: str, change: FoundChange, point: LoggedStep) -> Alarm:
        """Return the alarm of a change."""
        near = self._pauses_near(change.began, point)
        causes: tuple[str, ...] = CAUSES[kind]
        if self.begun_at and change.began == self.begun_at:
            causes = (f"the restart before step {change.began}: other nodes, other settings", *causes)
        if near:
            causes = (f"the evaluation or checkpoint before step {near[-1]}", *causes)
        grown = format_share(change.size)
        rate = {
            "level shift": f"slower by {grown} since step {change.began}",
            "drift": f"slower by {grown} from step {change.began} to {point.step}, and growing",
            "memory creep": f"memory grew by {grown} from step {change.began} to {point.step}",
        }[kind]
        return Alarm(
            kind=kind,  # type: ignore[arg-type]
            began_step=change.began,
            noticed_step=point.step,
            size=change.size,
            confidence=calibrated(kind, change.confidence),
            text=f"{kind}: {rate}",
            explained_by=causes,
        )

    def _periodic(self, point: LoggedStep, log_s: float) -> list[Alarm]:
        found = self.spikes.feed(point.step, log_s)
        if found is None:
            return []
        known = [step for step in self.interruptions if (point.step - step) % found.steps <= max(1, point.steps)]
        causes: tuple[str, ...] = (
            f"what the job does every {found.steps} steps: garbage collection, a checkpoint, an evaluation, logging",
            "a data loader that fetches its next piece",
        )
        if len(known) > 1:
            causes = (f"evaluations or checkpoints, which the log has there, last before step {known[-1]}",)
        text = f"one step in {found.steps} takes {format_share(found.excess, 0)} longer since step {found.began}"
        return [
            Alarm(
                kind="periodic spikes",
                began_step=found.began,
                noticed_step=point.step,
                size=found.lost,
                confidence=calibrated("periodic spikes", min(0.9999, 1 - found.by_chance)),
                text=f"periodic spikes: {text}, {format_share(found.lost)} of the time",
                explained_by=causes,
                period_steps=found.steps,
            )
        ]

    def _spread(self, point: LoggedStep) -> list[Alarm]:
        """Return the alarm of a spread that grew, looked for every ten points."""
        if self.seen % 10 or len(self.recent) < 2 * SPREAD_POINTS:
            return []
        values = list(self.recent)
        before, halves = _spread_of(values[:SPREAD_POINTS]), (values[SPREAD_POINTS:-30], values[-30:])
        now = min(map(_spread_of, halves))
        if now < max(SPREAD_LEAST, SPREAD_TIMES * before, 1.5 * self.told_spread):
            return []
        self.told_spread = now
        times, wide = now / max(before, 1e-9), format_share(math.expm1(now), 0)
        # The logarithm of the spread of thirty independent points scatters by about a fifth.
        sure = confidence_of(math.log(times) / 0.25, self.seen / SPREAD_POINTS)
        return [
            Alarm(
                kind="growing spread",
                began_step=point.step - (SPREAD_POINTS - 1) * max(1, point.steps),
                noticed_step=point.step,
                size=times - 1,
                confidence=sure,
                text=f"growing spread: steps scatter by {wide}, before by {format_share(math.expm1(before))}",
                explained_by=CAUSES["growing spread"],
            )
        ]


def _spread_of(values: list[float]) -> float:
    """Return the spread from the tenth to the ninetieth percentile."""
    ordered = sorted(values)
    return quantile(ordered, 0.9) - quantile(ordered, 0.1)
