"""What may explain a step that takes longer than it should: single causes, each by its own forecast.

A cause is a row of `data/checking/causes.csv`: one thing that is often wrong with a run, as a change of its forecast
(`traincast.checking.changes`). All whose needs the job meets are forecast; what the measured step is over the
expected one is held against what each makes of the forecast. The likelier of two causes is the one that makes the
step as much longer as it is, and the one that is seen more often. How far what a change is forecast to cost may be from
what it costs is what changes of published runs have taught (`traincast.simulation.advice`, `OWN_SPREAD`).
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from traincast.checking.base import BaseForecast
from traincast.checking.changes import Fault, read_change
from traincast.errors import TraincastError
from traincast.job.condition_facts import job_facts
from traincast.job.switches import Need, read_need
from traincast.shipped import shipped_rows
from traincast.simulation.advice import OWN_SHARE, OWN_SPREAD
from traincast.simulation.suggestions import MOST_OPS
from traincast.simulation.widths import Z

TABLE = "checking/causes.csv"
OFTEN: Mapping[str, float] = {"often": 3.0, "sometimes": 1.0, "seldom": 1 / 3}
"""How often a cause is seen, as odds: judged from issue threads of frameworks, each a factor of three."""
LEAST = 0.005
"""Share by which a cause must make a step longer to be one."""
MOST_TOLD = 5
RUNNING = frozenset({"network", "links", "clocks", "host", "straggler", "routing"})
"""Kinds of causes that may begin while a job runs, where they change no setting: what tokens are routed to is none."""
PAUSE = "pause"
"""Kind of what no work of the step explains."""
_ODDS_OF_PAUSE = OFTEN["seldom"]
"""A pause may be of any length, so that it fits every step: it goes behind what fits this one and is seen more."""


class KnownCause(Struct, frozen=True, kw_only=True):
    """A row of the table of causes."""

    name: str
    """In words that finish the sentence "it may be that"."""
    kind: str
    change: Fault
    needs: tuple[Need, ...]
    odds: float
    look: str
    """What shows whether it is so."""
    source: str

    @property
    def begins_in_a_run(self) -> bool:
        """Whether it may begin while the job runs."""
        return self.kind in RUNNING and (self.kind == "routing" or not self.change.fields)


class PossibleCause(Struct, frozen=True, kw_only=True):
    """Something that would make the step longer than it should be, by itself alone."""

    name: str
    kind: str
    change: str
    """What is otherwise in its forecast; empty of a pause, which is none of the step's work."""
    step_s: float
    """The expected step with it."""
    ratio: float
    """The same over the expected step without it."""
    explains: float
    """Share of what the measured step is longer by; above 1 where it would be longer still."""
    fits: bool
    """Whether it alone may explain the measured step."""
    chance: float
    """How likely it is that it is this one, of all that were tried."""
    look: str
    """What shows whether it is so."""


class ForecastCause(NamedTuple):
    """A cause that was forecast."""

    suspect: KnownCause
    ratio: float
    """What it makes of the forecast step."""


class Excess(NamedTuple):
    """What a measured step is over the expected one."""

    expected_s: float
    ratio: float
    deviation: float
    """Standard deviation of the logarithm of the ratio."""

    @property
    def is_longer(self) -> bool:
        """Whether it is enough to look for a cause."""
        return self.ratio > 1 + LEAST


@cache
def known_causes() -> tuple[KnownCause, ...]:
    """Return the table of causes."""
    return tuple(
        KnownCause(
            name=row["name"],
            kind=row["kind"],
            change=read_change(row["change"]),
            needs=tuple(read_need(each) for each in row["needs"].split(";") if each),
            odds=OFTEN[row["often"]],
            look=row["look"],
            source=row["source"],
        )
        for row in shipped_rows(TABLE)
    )


def tried(base: BaseForecast, *, running: bool = False) -> tuple[ForecastCause, ...]:
    """Return what each cause that the job allows makes of its forecast; nothing of a step of too many operations.

    `running` leaves out causes that cannot begin while the job runs.
    """
    if len(base.done.step.program) > MOST_OPS:
        return ()
    facts, found = job_facts(base.job, base.setting.cluster), list[ForecastCause]()
    for each in known_causes():
        if running and not each.begins_in_a_run:
            continue
        if all(any(one.holds(facts) for one in need) for need in each.needs):
            ratio = _ratio(base, each.change)
            if ratio is not None and ratio >= 1 + LEAST:
                found.append(ForecastCause(each, ratio))
    return tuple(found)


def possible_causes(
    found: Sequence[ForecastCause], excess: Excess, most: int | None = MOST_TOLD
) -> tuple[PossibleCause, ...]:
    """Return what may make a step as much longer as it is, the likeliest first; nothing of a step that is not longer.

    Of several of a kind the likeliest stands for all.
    """
    if not excess.is_longer:
        return ()
    likeliest: dict[str, tuple[float, ForecastCause]] = {}
    for each in found:
        weight = each.suspect.odds * _likelihood(each.ratio, excess)
        if weight > likeliest.get(each.suspect.kind, (0.0, each))[0]:
            likeliest[each.suspect.kind] = weight, each
    total = _ODDS_OF_PAUSE + sum(weight for weight, _ in likeliest.values())
    causes = [_cause(each, weight / total, excess) for weight, each in likeliest.values()]
    causes.append(_pause(_ODDS_OF_PAUSE / total, excess))
    causes.sort(key=lambda each: -each.chance)
    return tuple(causes[:most])


def _ratio(base: BaseForecast, change: Fault) -> float | None:
    """Return what a change makes of the forecast step; None where there is nothing to change."""
    try:
        return change.applied(base).step_s / base.step_s
    except TraincastError:
        return None


def _off(ratio: float, excess: Excess) -> float:
    """Return by how many deviations a cause is off: of the logarithm of what the step is longer by."""
    measured = math.log(excess.ratio)
    spread = math.hypot(OWN_SPREAD, math.hypot(excess.deviation, OWN_SHARE) / measured)
    return math.log(measured / math.log(ratio)) / spread


def _likelihood(ratio: float, excess: Excess) -> float:
    """Return how likely the measured step is if a cause makes it so much longer, over one that fits exactly."""
    off = _off(ratio, excess)
    return math.exp(-off * off / 2)


def _cause(tried: ForecastCause, chance: float, excess: Excess) -> PossibleCause:
    suspect, ratio = tried
    return PossibleCause(
        name=suspect.name,
        kind=suspect.kind,
        change=suspect.change.text,
        step_s=excess.expected_s * ratio,
        ratio=ratio,
        explains=(ratio - 1) / (excess.ratio - 1),
        fits=abs(_off(ratio, excess)) <= Z,
        chance=chance,
        look=suspect.look,
    )


def _pause(chance: float, excess: Excess) -> PossibleCause:
    return PossibleCause(
        name="every step has a pause in which no GPU works",
        kind=PAUSE,
        change="",
        step_s=excess.expected_s * excess.ratio,
        ratio=excess.ratio,
        explains=1.0,
        fits=True,
        chance=chance,
        look="the data loader (times of batch-generator in the log), garbage collection, logging and checkpoints",
    )
