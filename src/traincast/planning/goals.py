"""What days or money buy: which models meet them, on how many GPUs, and the largest model that would.

A run has its tokens, or so many for each parameter; then both its tokens and the FLOPs of a token grow with the
parameters, so that days and money grow with their square at one rate of FLOP/s. Between models that were planned what a
run takes is interpolated, on logarithms of parameters and of days or money; beyond them it goes on by that power.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from traincast.analysis.summary import TrainingRun
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.gpu import Gpu
from traincast.model.counts import parameters
from traincast.model.model import Model
from traincast.planning.answer import Choice, Plan
from traincast.simulation.widths import Z

CHINCHILLA = 20.0
"""Tokens for each parameter that train a dense model best for its FLOPs: Chinchilla's 1.4 T for 70 billion (Hoffmann et
al. 2022, arXiv 2203.15556, table 1)."""
SUPERLINEAR = 4 / 3
"""Most that twice the GPUs make a step faster beyond twice: what recomputes all for want of memory, a forward pass more
for each forward and backward that take three, need not any more."""
MOST_PLANS = 12
"""Most numbers of GPUs that are planned for one answer."""
_LEAP = 2
"""Doublings that are tried next while there is money left."""
_DAY_S = 86400.0
_DOUBLED = 16
"""Most doublings of the GPUs."""
LIMITS = ("days", "budget")


class Limits(Struct, frozen=True, kw_only=True):
    """What a run may take; one of both at least."""

    days: float | None = None
    budget: float | None = None
    """Money, in the currency that GPU-hours are paid in."""

    def __post_init__(self) -> None:
        """Refuse limits that nothing can meet."""
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"is {value:g}; it must be above 0", name)

    def within(self, choice: Choice) -> bool:
        """Return whether a run is forecast to take no more."""
        return all(took <= limit for took, limit in self.taken(choice))

    def taken(self, choice: Choice) -> Iterator[tuple[float, float]]:
        """Yield what a run takes of each limit, with the limit."""
        run = _training(choice)
        for took, limit in ((run.days, self.days), (run.cost, self.budget)):
            if limit is not None and took is not None:
                yield took, limit


class GoalRun(Struct, frozen=True, kw_only=True):
    """What training a model takes on some GPUs, and whether that is within the limits."""

    model: str
    parameters: int
    """Those that one token passes through."""
    all_parameters: int
    cluster: str
    gpus: int
    layout: str
    tokens: float
    days: float
    days_low: float | None = None
    days_high: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    meets: bool
    """Whether it is forecast to be within the limits."""
    chance: float
    """Probability that it is, given how far off forecasts are."""


class Largest(Struct, frozen=True, kw_only=True):
    """How large a model the limits buy on some GPUs, at the speed of those that were planned."""

    cluster: str
    gpus: int
    parameters: float
    active: bool
    """Whether these are what one token passes through, of a model with experts."""
    tokens: float
    limit: str
    """Which limit it is that binds: ``days`` or ``budget``."""
    how: str
    """From which models it follows, in words."""


class Goal(Struct, frozen=True, kw_only=True):
    """The answer to what some days or some money buy."""

    limits: Limits
    tokens_per_parameter: float | None
    """None where the tokens of the run are given."""
    currency: str | None
    runs: tuple[GoalRun, ...]
    """Every case that can be run: the largest models first, of each model the fewest GPUs first."""
    chosen: GoalRun | None
    """The largest model within the limits, with days on the fewest GPUs, with money alone the fastest; None: none."""
    largest: tuple[Largest, ...]
    """For each cluster and number of GPUs, the most parameters first."""


def goal_of(plans: Sequence[Plan], limits: Limits, tokens_per_parameter: float | None) -> Goal:
    """Return what limits buy, of plans whose layouts have their runs."""
    found = [(plan.asked.request.model, plan.best[0]) for plan in plans]
    runs = sorted((_run(model, choice, limits) for model, choice in found), key=lambda run: (-run.parameters, run.gpus))
    within = [run for run in runs if run.meets]
    currency = next((choice.training.currency for _, choice in found if choice.training is not None), None)
    return Goal(
        limits=limits,
        tokens_per_parameter=tokens_per_parameter,
        currency=currency,
        runs=tuple(runs),
        chosen=min(within, key=lambda run: _preferred(run, limits)) if within else None,
        largest=tuple(sorted(_largest(runs, limits, tokens_per_parameter), key=lambda each: -each.parameters)),
    )


def _preferred(run: GoalRun, limits: Limits) -> tuple[float, ...]:
    """Return what is least of the run to choose: the largest model, then few GPUs in time, or little time for money."""
    rest = (run.days, run.gpus) if limits.days is None else (run.gpus, run.cost or 0.0, run.days)
    return (-run.parameters, *rest)


def _run(model: Model, choice: Choice, limits: Limits) -> GoalRun:
    training = _training(choice)
    chances = [
        chance_within(training.days, training.days_low, training.days_high, training.days * limit / took)
        for took, limit in limits.taken(choice)
    ]
    names = ("tokens", "days", "days_low", "days_high", "cost", "cost_low", "cost_high")
    return GoalRun(
        model=choice.model,
        parameters=parameters(model).active,
        all_parameters=parameters(model).total,
        cluster=choice.cluster,
        gpus=choice.layout.gpus,
        layout=choice.layout.text,
        **{name: getattr(training, name) for name in names},
        meets=limits.within(choice),
        # Days and money are off by the same share.
        chance=min(chances),
    )


def _training(choice: Choice) -> TrainingRun:
    if choice.training is None:
        raise ConfigError("are not given; a run needs them, such as 15T", "tokens")
    return choice.training


def chance_within(value: float, low: float | None, high: float | None, limit: float) -> float:
    """Return the probability that something is within a limit that has been forecast with an interval of 90 %."""
    end = high if limit > value else low
    if end is None or end == value:
        return float(value <= limit)
    deviations = Z * math.log(limit / value) / abs(math.log(end / value))
    return 0.5 * (1 + math.erf(deviations / math.sqrt(2)))


def _largest(runs: Sequence[GoalRun], limits: Limits, tokens_per_parameter: float | None) -> Iterator[Largest]:
    power = 1.0 if tokens_per_parameter is None else 2.0
    for cluster, gpus in dict.fromkeys((run.cluster, run.gpus) for run in runs):
        of_case = sorted(
            {run.parameters: run for run in runs if (run.cluster, run.gpus) == (cluster, gpus)}.values(),
            key=lambda run: run.parameters,
        )
        found = []
        for limit, amount, name in ((limits.days, "days", "days"), (limits.budget, "cost", "budget")):
            points = [(run.parameters, value) for run in of_case if (value := getattr(run, amount)) is not None]
            if limit is not None and points:
                found.append((*interpolated(points, limit, power), name))
        if not found:
            continue
        count, near, name = min(found)
        nearest = [each for each in of_case if each.parameters in near]
        models, active = (
            [each.model for each in nearest],
            any(each.all_parameters > each.parameters for each in nearest),
        )
        how = f"between {' and '.join(models)}" if len(models) > 1 else f"at the FLOP/s of {models[0]}"
        tokens = of_case[0].tokens if tokens_per_parameter is None else tokens_per_parameter * count
        yield Largest(cluster=cluster, gpus=gpus, parameters=count, active=active, tokens=tokens, limit=name, how=how)


def interpolated(points: Sequence[tuple[float, float]], limit: float, power: float) -> tuple[float, tuple[float, ...]]:
    """Return the parameters at which an amount reaches its limit, and those of the points that it follows from.

    Points are parameters with their amounts, the fewest parameters first; beyond them amounts grow with a power.
    """
    for (few, least), (many, most) in pairwise(points):
        if least <= limit <= most and most > least:
            share = math.log(limit / least) / math.log(most / least)
            return few * (many / few) ** share, (few, many)
    count, amount = points[0] if limit < points[0][1] else points[-1]
    return count * (limit / amount) ** (1 / power), (count,)


PlanOn = Callable[[int], Plan | InfeasibleError]
"""Returns the plan of so many GPUs, or why there is none."""


def least_gpus(model: Model, tokens: float, gpu: Gpu, days: float) -> float:
    """Return how many GPUs it takes at least, at the highest rate of FLOP/s that they have."""
    peaks = [getattr(gpu, name) for name in gpu.__struct_fields__ if name.endswith("_flops_per_s")]
    flops = 6 * parameters(model).computed * tokens
    return float(flops / (max(each for each in peaks if each is not None) * days * _DAY_S))


def search(plan_on: PlanOn, base: int, limits: Limits, least: float = 0.0) -> None:
    """Plan multiples of a number of GPUs, at least so many, until the answer is among them.

    With days it is the fewest that make it, of 1, 2, 3, 4, 6, 8, 12, ... times as many. With money alone it is the most
    that stay within it, as more are faster.
    """
    if limits.days is None:
        _most(plan_on, base, limits)
    else:
        _fewest(plan_on, base, limits.days, least)


def _fewest(plan_on: PlanOn, base: int, days: float, least: float) -> None:
    """Go up to the first number that is in time; what cannot be is left out."""
    numbers = [base, *(base * each << power for power in range(_DOUBLED) for each in (2, 3))]
    for _ in range(MOST_PLANS):
        gpus = next((each for each in numbers if each >= least), None)
        if gpus is None:
            return
        numbers = [each for each in numbers if each > gpus]
        found = plan_on(gpus)
        if isinstance(found, InfeasibleError):
            least = _fitting(found)
            continue
        took = _training(found.best[0]).days
        if took <= days:
            return
        least = gpus * took / days / SUPERLINEAR


def _most(plan_on: PlanOn, base: int, limits: Limits) -> None:
    """Leap until money runs out or no more GPUs can be used, bisect the doublings between, try half as many more."""
    low, high, place = -1, _DOUBLED, 0
    for _ in range(MOST_PLANS - 1):
        found = plan_on(base << place)
        over = math.inf
        if not isinstance(found, InfeasibleError):
            over = max((took / limit for took, limit in limits.taken(found.best[0])), default=0.0)
        if over <= 1:
            low = place
        elif low >= 0:
            high = place
        elif SUPERLINEAR < over < math.inf:
            return
        if low < 0:
            # Nothing fits yet, or more GPUs may do with less money.
            fits = _fitting(found) if isinstance(found, InfeasibleError) else 0.0
            place = max(place + 1, math.ceil(math.log2(max(1.0, fits / base))))
        elif high - low == 1:
            break
        else:
            place = min(low + _LEAP, _DOUBLED) if high == _DOUBLED else (low + high) // 2
        if place >= _DOUBLED:
            break
    if low >= 0 and (base << low) % 2 == 0:
        plan_on(base * 3 << low >> 1)


def _fitting(error: InfeasibleError) -> float:
    """Return the fewest GPUs on which something fits, as an error has them; 0 where it does not say."""
    return float(next((each.value for each in error.remedies if each.field == "gpus"), 0.0))
