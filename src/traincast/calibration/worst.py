"""Where the errors of a validation are: the rows and the groups that are furthest off."""

import numpy as np
from msgspec import Struct

from traincast.calibration.kind import Predictions

WORST = 10
"""How many of the worst rows and groups are listed."""


class WorstRow(Struct, frozen=True):
    """A row with a large error, which is signed and a fraction of the measured value; `details` say what it is."""

    id: str
    measured: float
    predicted: float
    error: float
    details: dict[str, str | int | float | None]


class WorstGroup(Struct, frozen=True, kw_only=True):
    """A group of rows with much of all error. Errors are signed and fractions of the measured value."""

    by: str
    """What is told apart: ``"family"``."""
    name: str
    rows: int
    share: float
    """Its part of the sum of all absolute errors."""
    bias: float
    """Median of its errors: positive where predictions are too long."""
    lowest: float
    highest: float
    """Its most negative and its most positive error."""


def worst_rows(found: Predictions) -> tuple[WorstRow, ...]:
    """Return the `WORST` rows with the largest errors, the largest first; of equal ones the first in the file."""
    errors = found.predicted / found.measured - 1.0
    known = np.flatnonzero(~np.isnan(errors))
    order = known[np.argsort(-np.abs(errors[known]), kind="stable")][:WORST]
    return tuple(
        WorstRow(
            id=found.ids[row],
            measured=float(found.measured[row]),
            predicted=float(found.predicted[row]),
            error=float(errors[row]),
            details={name: column[row] for name, column in found.details.items()},
        )
        for row in order
    )


def worst_groups(found: Predictions, by: str | None) -> tuple[WorstGroup, ...]:
    """Return the `WORST` groups with the largest parts of the sum of all absolute errors, the largest first.

    Parameters
    ----------
    found : Predictions
        Forecasts and measurements.
    by : str or None
        The grouping to tell apart; nothing is returned for None.
    """
    errors = found.predicted / found.measured - 1.0
    known = ~np.isnan(errors)
    total = float(np.abs(errors[known]).sum())
    grouping = next((each for each in found.groupings if each.by == by), None)
    if grouping is None or not total:
        return ()
    sums = np.bincount(grouping.index[known], np.abs(errors[known]), len(grouping.names))
    groups = []
    for position in np.argsort(-sums, kind="stable")[:WORST]:
        own = errors[known & (grouping.index == position)]
        if own.size:
            low, middle, high = np.quantile(own, (0.0, 0.5, 1.0)).tolist()
            group = WorstGroup(
                by=grouping.by,
                name=grouping.names[position],
                rows=len(own),
                share=float(sums[position]) / total,
                bias=middle,
                lowest=low,
                highest=high,
            )
            groups.append(group)
    return tuple(groups)
