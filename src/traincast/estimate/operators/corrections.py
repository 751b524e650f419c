"""Level 0: what measurements of the same GPU, family and dtype say beyond the roofline.

A correction is a coarse grid over the logarithms of a call's sizes. Each node holds the
logarithm of measured over predicted time in whole percent, smoothed over its neighbours; between nodes it is
interpolated linearly. It stays within a factor of 2, and fades to nothing over one octave outside
the measured range. Shipped grids: `data/operators/corrections.csv`, made by
`studies/fit_operators.py`.
"""

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from traincast.estimate.operators.contract import FloatArray

STEP = 0.01
"""Resolution of a stored logarithm: 1 %."""
LIMIT = float(np.log(2.0))
"""A correction is at most a factor of 2 either way: beyond it the roofline, not a table, is wrong."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """A grid of logarithms of measured over predicted time.

    Parameters
    ----------
    gpu, family, dtype : str
        Whose constants it corrects.
    axes : tuple of (float, float, int)
        First and last node as binary logarithm of a size, and number of nodes, per size.
    log_factor_V : array of float
        Values at the nodes, the last axis fastest.
    rows : int
        Measurements behind it.
    """

    gpu: str
    family: str
    dtype: str
    axes: tuple[tuple[float, float, int], ...]
    log_factor_V: FloatArray
    rows: int = 0

    def factors(self, coordinates_ND: FloatArray) -> FloatArray:
        """Return the factor on the predicted time of each call; 1 outside the measured range."""
        octaves_ND = np.log2(np.maximum(coordinates_ND, 1e-9))
        nodes_NC, weights_NC = corners(octaves_ND, self.axes)
        log_N = np.clip((self.log_factor_V[nodes_NC] * weights_NC).sum(axis=1), -LIMIT, LIMIT)
        factor_N: FloatArray = np.exp(log_N * _inside(octaves_ND, self.axes))
        return factor_N


def corners(octaves_ND: FloatArray, axes: tuple[tuple[float, float, int], ...]) -> tuple[IntArray, FloatArray]:
    """Return the nodes around each point and their weights, which sum to 1.

    Parameters
    ----------
    octaves_ND : array of float
        Points; outside the grid they are moved to its edge.
    axes : tuple of (float, float, int)
        As of `Correction`.

    Returns
    -------
    nodes, weights : arrays
        Each of shape (points, 2 ** axes).
    """
    nodes_NC = np.zeros((len(octaves_ND), 1), np.int64)
    weights_NC = np.ones((len(octaves_ND), 1))
    for axis, (first, last, count) in enumerate(axes):
        if count == 1:
            continue
        place_N = (np.clip(octaves_ND[:, axis], first, last) - first) / (last - first) * (count - 1)
        below_N = np.minimum(place_N.astype(np.int64), count - 2)
        part_N1 = (place_N - below_N)[:, None]
        base_NC = nodes_NC * count + below_N[:, None]
        nodes_NC = np.concatenate([base_NC, base_NC + 1], axis=1)
        weights_NC = np.concatenate([weights_NC * (1 - part_N1), weights_NC * part_N1], axis=1)
    return nodes_NC, weights_NC


def _inside(octaves_ND: FloatArray, axes: tuple[tuple[float, float, int], ...]) -> FloatArray:
    """Return 1 inside the grid, 0 an octave outside it, and linearly between."""
    first_D, last_D = (np.array([axis[side] for axis in axes]) for side in (0, 1))
    beyond_N = np.maximum(first_D - octaves_ND, octaves_ND - last_D).max(axis=1)
    inside_N: FloatArray = np.clip(1.0 - beyond_N, 0.0, 1.0)
    return inside_N


@cache
def shipped_corrections() -> tuple[Correction, ...]:
    """Return the corrections that come with traincast."""
    file = resources.files("traincast") / "data" / "operators" / "corrections.csv"
    return tuple(read_corrections(file.read_text(encoding="utf-8")))


def read_corrections(text: str) -> list[Correction]:
    """Return the corrections of a file that `write_corrections` wrote."""
    return [
        Correction(
            gpu=row["gpu"],
            family=row["family"],
            dtype=row["dtype"],
            axes=tuple(_axis(axis) for axis in row["axes"].split()),
            log_factor_V=np.array(row["percent"].split(), np.float64) * STEP,
            rows=int(row["rows"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def write_corrections(corrections: list[Correction]) -> str:
    """Return corrections as CSV that a person can read.

    Axes are ``first:last:nodes``. The last cell holds the values in whole percent (100 times the logarithm) over
    several lines: each line goes along the last axis that has several nodes, blank lines part the planes.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["gpu", "family", "dtype", "rows", "axes", "percent"])
    for each in corrections:
        axes = " ".join(f"{first:g}:{last:g}:{count}" for first, last, count in each.axes)
        writer.writerow([each.gpu, each.family, each.dtype, each.rows, axes, _percent(each)])
    return stream.getvalue()


def _axis(text: str) -> tuple[float, float, int]:
    first, last, count = text.split(":")
    return float(first), float(last), int(count)


def _percent(correction: Correction) -> str:
    """Return the values as lines of whole percent."""
    percent_V = np.clip(np.rint(correction.log_factor_V / STEP), -100, 100).astype(np.int64)
    counts = [count for *_, count in correction.axes if count > 1] or [1]
    width, plane = counts[-1], counts[-2] if len(counts) > 2 else len(percent_V)
    lines = [" ".join(f"{value:3}" for value in line) for line in percent_V.reshape(-1, width).tolist()]
    planes = ("\n".join(lines[start : start + plane]) for start in range(0, len(lines), plane))
    return "\n" + "\n\n".join(planes) + "\n"
