"""Cases in order: by tokens a second, days, money or energy, with which of them are too close to the first to tell."""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.names import known_names
from traincast.planning.answer import Choice
from traincast.simulation.differences import chance_of_less, deviation_between


def _run(name: str) -> Callable[[Choice], float | None]:
    return lambda choice: None if choice.training is None else getattr(choice.training, name)


ORDERS: Mapping[str, Callable[[Choice], float | None]] = {
    "tokens-per-s": lambda choice: choice.tokens_per_s,
    "days": _run("days"),
    "cost": _run("cost"),
    "energy": _run("energy_mwh"),
}
"""What cases can be ranked by, to the figure of each; more is better of the first, less of the others."""
USUAL = "tokens-per-s"
_NEEDS = {"days": "tokens=...", "cost": "gpu_hour_price=...", "energy": "gpu_power_w=..."}


class RankedCase(Struct, frozen=True, kw_only=True):
    """Where a case stands among those of its model."""

    model: str
    cluster: str
    gpus: int
    figure: float
    """What it is ranked by: tokens a second, days, cost, or MWh."""
    behind: float
    """How much worse than the first, as a share."""
    deviation: float
    """Standard deviation of the logarithm of the ratio to the first; errors that both forecasts share cancel."""
    confidence: float
    """Probability that it is behind the first in earnest."""
    tied: bool
    """Whether it is nearer to the first than the difference is uncertain: too close to tell."""


def in_order(choices: Sequence[Choice], by: str) -> tuple[tuple[Choice, RankedCase], ...]:
    """Return cases with their places: by model, in the order in which models come, then the best first.

    Raises
    ------
    ConfigError
        If there is no such order, or the figure of a case is not known.
    """
    figure = checked_order(by)
    models = dict.fromkeys(each.model for each in choices)
    return tuple(
        place for model in models for place in _of_one([each for each in choices if each.model == model], by, figure)
    )


def checked_order(by: str) -> Callable[[Choice], float | None]:
    """Return the figure that cases are ranked by.

    Raises
    ------
    ConfigError
        If there is no such order.
    """
    if by not in ORDERS:
        raise ConfigError(f"is {by!r}; {known_names(by, ORDERS)}", "rank_by")
    return ORDERS[by]


def _of_one(
    choices: Sequence[Choice], by: str, figure: Callable[[Choice], float | None]
) -> list[tuple[Choice, RankedCase]]:
    figures = []
    for each in choices:
        value = figure(each)
        if value is None:
            text = f"{by!r} is not known of {each.model} on {each.cluster}; give {_NEEDS[by]}"
            raise ConfigError(text, "rank_by")
        figures.append((value, each))
    figures.sort(key=lambda each: each[0], reverse=by == USUAL)
    first, best = figures[0]
    return [(each, _place(each, value, first, best, by)) for value, each in figures]


def _place(choice: Choice, value: float, first: float, best: Choice, by: str) -> RankedCase:
    ratio = first / value if by == USUAL else value / first
    deviation = deviation_between(best.doubts, choice.doubts)
    return RankedCase(
        model=choice.model,
        cluster=choice.cluster,
        gpus=choice.layout.gpus,
        figure=value,
        behind=ratio - 1,
        deviation=deviation,
        confidence=0.0 if choice is best else 1 - chance_of_less(ratio, deviation),
        tied=choice is not best and math.log(ratio) <= deviation,
    )
