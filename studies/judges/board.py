"""A board: errors of one kind of forecasts against measurements, in per cent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Board(NamedTuple):
    """Figures of forecasts of one kind, in per cent; ``inside`` is worse when smaller, all others when larger."""

    subject: str
    """What was forecast, and what the fit had not seen: ``runs, source left out``."""
    name: str
    """The kind of rows: ``MoE``."""
    rows: int
    figures: Mapping[str, float]
    asked: Mapping[str, float]
    """What each figure should be at most (``inside`` at least); figures without one are printed alone."""


def board_of(
    subject: str,
    name: str,
    forecast: Sequence[float],
    measured: Sequence[float],
    inside: Sequence[bool] = (),
    /,
    **asked: float,
) -> Board:
    """Return the board of some forecasts and what was measured, both in one unit.

    Parameters
    ----------
    subject, name : str
        As of `Board`.
    forecast, measured : sequence of float
        One of each for every row.
    inside : sequence of bool, optional
        Whether each measurement lies inside its forecast's interval.
    **asked : float
        As of `Board`.
    """
    error = np.asarray(forecast, np.float64) / np.asarray(measured, np.float64) - 1
    if not len(error):
        return Board(subject, name, 0, {}, asked)
    median, p90 = np.quantile(np.abs(error), (0.5, 0.9))
    figures = {"median": median, "p90": p90, "bias": np.median(error)}
    if len(inside):
        figures["inside"] = np.mean(inside)
    return Board(
        subject, name, len(error), {each: round(100 * float(value), 2) for each, value in figures.items()}, asked
    )
