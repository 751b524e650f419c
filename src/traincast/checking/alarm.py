"""What an alarm of a running job says, and how sure it is."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

AlarmKind = Literal["level shift", "drift", "periodic spikes", "growing spread", "stall", "memory creep"]
KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)
NOT_OF_SPEED: AlarmKind = "memory creep"
"""The kind after which a run is as fast as before."""
TRUE_SHARE: Mapping[str, float] = {"level shift": 0.9, "drift": 0.7, "periodic spikes": 0.8}
"""Of alarms of a kind, the share that are of a change that was put into a run, where every other run has one; all
others are of how healthy runs go. That of level shifts was chosen on half of the tests of
`studies/data/step_series.csv.gz`, those of the others on its twelve long runs (`studies/watch.py` prints them). It
hardly depends on how large a change is: healthy runs have large ones."""


class Alarm(Struct, frozen=True, kw_only=True):
    """A change of a run that one wants to know."""

    kind: AlarmKind
    began_step: int
    """The step at which it began, as far as it can be dated."""
    noticed_step: int
    """The step of the last line that was read."""
    size: float
    """How large, as a share: of a level, drift or memory the growth; of spikes the time lost; of a spread how many
    times it is what it was, less one; of a stall the seconds without a step over those of a step, less one."""
    confidence: float
    """Probability that the run changed: that noise does not make so much, times `TRUE_SHARE` of kinds that have one."""
    text: str
    """For people."""
    explained_by: tuple[str, ...] = ()
    """What would explain it."""
    period_steps: int | None = None
    """Of periodic spikes."""

    @property
    def of_speed(self) -> bool:
        """Whether the run is slower than it was."""
        return self.kind != NOT_OF_SPEED


class FoundChange(NamedTuple):
    """What a detector of one kind found."""

    began: int
    """The step at which it began."""
    size: float
    confidence: float
    """That it is not noise."""


def calibrated(kind: str, by_noise: float) -> float:
    """Return the confidence of an alarm, from the probability that what it tells is not noise."""
    return round(by_noise * TRUE_SHARE.get(kind, 1.0), 4)


def confidence_of(deviations: float, looks: float = 1.0) -> float:
    """Return the probability that something so far out of the noise is none of it.

    Parameters
    ----------
    deviations : float
        Its size in standard deviations of what noise would make of it.
    looks : float
        How often it was looked for, independently: each look may find noise (Bonferroni).
    """
    by_chance = looks * math.erfc(max(deviations, 0.0) / math.sqrt(2)) / 2
    return round(min(0.9999, max(0.5, 1 - by_chance)), 4)


def quantile(ordered: list[float], share: float) -> float:
    """Return a quantile of numbers in order, as numpy does, whose call would take longer than this for short lists."""
    place = share * (len(ordered) - 1)
    below = int(place)
    rest = place - below
    return ordered[below] if not rest else ordered[below] * (1 - rest) + ordered[below + 1] * rest
