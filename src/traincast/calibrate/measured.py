"""Make tables of measured times, which replace the formula for the groups they were measured on."""

from collections.abc import Sequence

import numpy as np

from traincast.calibrate.measurements import CollectiveMeasurements, FloatArray
from traincast.hardware.measured import MeasuredTable

_LEAST_SIZES = 2
"""With fewer sizes there is no line between them."""


def measured_tables(measured: CollectiveMeasurements, source: str) -> tuple[MeasuredTable, ...]:
    """Return a table per operation and group: the median time of each size, never falling with it.

    Parameters
    ----------
    measured : CollectiveMeasurements
        With known numbers of nodes.
    source : str
        Where they come from.

    Returns
    -------
    tuple of MeasuredTable
        Sorted; groups with one size only are left out.
    """
    keys = list(zip(measured.op, measured.ranks.tolist(), measured.nodes.tolist(), strict=True))
    tables = []
    for key in sorted(set(keys)):
        rows = np.array([each == key for each in keys])
        sizes, group = np.unique(measured.size_bytes[rows], return_inverse=True)
        if len(sizes) < _LEAST_SIZES:
            continue
        times = [np.median(measured.time_s[rows][group == index]) for index in range(len(sizes))]
        rising = np.exp(never_falling(np.log(times)))
        tables.append(
            MeasuredTable(
                op=key[0],
                ranks=key[1],
                nodes=key[2],
                size_bytes=tuple(sizes.tolist()),
                # Four digits are far below the noise, and rounding keeps the order.
                time_s=tuple(float(f"{time:.4g}") for time in rising),
                source=source,
            )
        )
    return tuple(tables)


def never_falling(values: Sequence[float] | FloatArray) -> FloatArray:
    """Return the sequence that never falls and is nearest to some values, in least squares.

    Notes
    -----
    Neighbours that fall are replaced by their mean until none do: pool adjacent violators,
    Ayer, Brunk, Ewing, Reid and Silverman, 1955.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, many), (two, more) = pools[-2:]
            pools[-2:] = [((one * many + two * more) / (many + more), many + more)]
    return np.repeat([value for value, _ in pools], [count for _, count in pools])
