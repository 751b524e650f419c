"""What kernels sustain, per (GPU, family, dtype): constants of the roofline, and corrections beyond it.

Level 1 is the roofline with a few constants; where a GPU has none of its own, those of its kin, of a near dtype, or of
all GPUs stand in. Level 0 corrects it where the same GPU, family and dtype were measured near the shape: a coarse grid
over the logarithms of a call's sizes. Each node holds the logarithm of measured over predicted time in whole percent,
smoothed over its neighbours; between nodes it is interpolated linearly. It stays within a factor of 2, and fades to
nothing over one octave outside the measured range.

Shipped: `data/operators/constants.csv` and `data/operators/corrections.csv.gz`, made by `studies/fit_operators.py`.
"""

import csv
import io
from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import FormatError, UnknownNameError
from traincast.files import csv_rows, read_text
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.hardware.gpu import Gpu
from traincast.later import later, readable
from traincast.shipped import constant, shipped_packed_text, shipped_text
from traincast.tables import from_row
from traincast.workload.ops import FloatArray

ANY = "*"
"""GPU or dtype of a row that stands for all that have no row of their own."""

HOST_LAUNCH = "host_launch"
"""Not a kernel: its `FamilyConstants.floor_s` is what the host of a GPU takes to launch a GEMM from Python."""

STEP = 0.01
"""Resolution of a stored logarithm: 1 %."""
LIMIT = float(np.log(2.0))
"""A correction is at most a factor of 2 either way: beyond it the roofline, not a table, is wrong."""

_LEAST_SHARE = 1e-6
"""Least share of a peak that a kernel can be said to reach; the lowest shipped one is 0.05."""
_LARGEST = 1e9
"""Largest of the other constants: seconds, and sizes in elements."""
_LIMITS = {
    **dict.fromkeys(("compute", "memory", "unaligned"), (_LEAST_SHARE, 1)),
    **dict.fromkeys(("wave", "unhidden"), (0, 1)),
    **dict.fromkeys(("floor_s", "k_fill", "edge", "event_s"), (0, _LARGEST)),
}

_Key = tuple[str, str, str]
_Axis = tuple[float, float, int]


class FamilyConstants(Struct, frozen=True, kw_only=True):
    """What one family of kernels sustains on one GPU with one element type; `ANY` stands for all others."""

    gpu: str
    family: str
    dtype: str
    compute: float = 0.7
    """Share of the peak FLOP/s that full waves of large tiles sustain (clock and pipeline)."""
    memory: float = 0.8
    """Share of the peak memory rate that is sustained."""
    floor_s: float = 3e-6
    """Device time of a kernel that does nothing."""
    k_fill: float = 0.0
    """Reduction length at which a tile runs at half its rate."""
    wave: float = 0.0
    """Share of the idling of a last, partly filled wave that is real; 0 to 1."""
    edge: float = 0.0
    """What a small tile pays: relative cost is ``1 + edge * (1 / tile m + 1 / tile n)``."""
    unhidden: float = 0.0
    """Share of the lesser of compute and memory time that is not hidden behind the greater."""
    unaligned: float = 0.5
    """Share of the compute rate that is left where rows do not begin at multiples of 16 bytes."""
    event_s: float = 0.0
    """What the measurements hold in addition to the kernel (event timing, launch); not part of an estimate."""
    rows: int = 0
    """Measurements behind it; 0 for an estimate."""
    median_error: float | None = None
    """Absolute relative error of these measurements, in sample."""
    p90_error: float | None = None
    source: str = ""
    confidence: str = "low"
    """``high``, ``medium`` or ``low``."""
    grid_of: str = ""
    """GPU whose correction of the same family and type, else of 16 bits, holds here too; its own where empty."""


class Correction(Struct, frozen=True, kw_only=True, eq=False):
    """A grid of logarithms of measured over predicted time for the constants of one GPU, family and dtype."""

    gpu: str
    family: str
    dtype: str
    axes: tuple[_Axis, ...]
    """First and last node as binary logarithm of a size, and number of nodes, per size."""
    log_factor_V: FloatArray
    """Values at the nodes, the last axis fastest."""
    rows: int = 0
    """Measurements behind it."""

    def factors(self, coordinates_ND: FloatArray) -> FloatArray:
        """Return the factor on the predicted time of each call; 1 outside the measured range."""
        octaves_ND = np.log2(np.maximum(coordinates_ND, 1e-9))
        nodes_NC, weights_NC = corners(octaves_ND, self.axes)
        log_N = np.clip((self.log_factor_V[nodes_NC] * weights_NC).sum(axis=1), -LIMIT, LIMIT)
        factor_N: FloatArray = np.exp(log_N * _inside(octaves_ND, self.axes))
        return factor_N


readable(Correction, "log_factor_V")


def corners(octaves_ND: FloatArray, axes: tuple[_Axis, ...]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Return the nodes around each point, and their weights, which sum to 1; both of shape (points, 2 ** axes).

    Points outside the grid are moved to its edge.
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


def _inside(octaves_ND: FloatArray, axes: tuple[_Axis, ...]) -> FloatArray:
    """Return 1 inside the grid, 0 an octave outside it, and linearly between."""
    first_D, last_D = (np.array([axis[side] for axis in axes]) for side in (0, 1))
    beyond_N = np.maximum(first_D - octaves_ND, octaves_ND - last_D).max(axis=1)
    inside_N: FloatArray = np.clip(1.0 - beyond_N, 0.0, 1.0)
    return inside_N


class OperatorConstants(Struct, frozen=True, dict=True):
    """All constants that estimates are made with; of one GPU, family and dtype the later row counts."""

    rows: tuple[FamilyConstants, ...]
    corrections: tuple[Correction, ...] = ()
    """A row without one is not corrected."""

    @cached_property
    def _by_key(self) -> dict[_Key, FamilyConstants]:
        return {(row.gpu, row.family, row.dtype): row for row in self.rows}

    @cached_property
    def _grid_by_key(self) -> dict[_Key, Correction]:
        return {(grid.gpu, grid.family, grid.dtype): grid for grid in self.corrections}

    def correction(self, row: FamilyConstants) -> Correction | None:
        """Return the correction that belongs to a row of constants; None where there is none."""
        if not row.grid_of:
            return self._grid_by_key.get((row.gpu, row.family, row.dtype))
        keys = ((row.grid_of, row.family, dtype) for dtype in (row.dtype, ANY, "bf16"))
        return next((self._grid_by_key[key] for key in keys if key in self._grid_by_key), None)

    def find(self, gpu: Gpu, families: tuple[str, ...], dtype: str) -> FamilyConstants:
        """Return the constants of a family on a GPU; of what stands nearest where it has none.

        `families` are its names, the most special first (``attention_fa3``, ``attention``). Its own constants come
        first, then those of its kin (the same chip), of a near dtype, and of all GPUs. The source says which they are,
        and the confidence falls with the distance.

        Raises
        ------
        UnknownNameError
            If there are not even constants for all GPUs.
        """
        stand_ins = ELEMENT_TYPES[dtype].stand_ins if dtype in ELEMENT_TYPES else ()
        for name in (gpu.name, *gpu.kin, ANY):
            for family in families:
                for position, near in enumerate((dtype, ANY, *stand_ins)):
                    row = self._by_key.get((name, family, near))
                    if row is not None:
                        return _as_used(row, 2 * (name == ANY) + (name != gpu.name) + (position > 1))
        raise UnknownNameError("operator with constants", families[0], sorted({row.family for row in self.rows}))

    def host_launch_s(self, gpu: Gpu) -> float | None:
        """Return what the host of a GPU takes to launch a GEMM; None where that was not measured."""
        row = self._by_key.get((gpu.name, HOST_LAUNCH, ANY))
        return None if row is None else row.floor_s

    def with_rows(self, rows: tuple[FamilyConstants, ...]) -> "OperatorConstants":
        """Return these constants with some rows in the place of the old ones.

        Corrections of the old ones no longer hold, but where a new row names them.
        """
        changed = {(row.gpu, row.family, row.dtype) for row in rows}
        changed -= {(row.grid_of, row.family, row.dtype) for row in rows}
        kept = tuple(grid for grid in self.corrections if (grid.gpu, grid.family, grid.dtype) not in changed)
        return OperatorConstants((*self.rows, *rows), kept)


def _as_used(row: FamilyConstants, distance: int) -> FamilyConstants:
    if not distance:
        return row
    confidence = "low" if distance > 1 or row.confidence == "low" else "medium"
    whose = "all GPUs" if row.gpu == ANY else row.gpu
    return replace(row, confidence=confidence, source=f"{row.source} (of {whose} {row.family} {row.dtype})")


def shipped_constants() -> OperatorConstants:
    """Return the constants that come with traincast."""
    return constant(_shipped_constants)


def _shipped_constants() -> OperatorConstants:
    rows, corrections = shipped_text("operators/constants.csv"), shipped_packed_text("operators/corrections.csv.gz")
    return OperatorConstants(tuple(read_constants(rows)), tuple(read_corrections(corrections)))


def read_constants(text: str, shown: str = "operator constants") -> list[FamilyConstants]:
    """Return the rows of a CSV whose columns are the fields of `FamilyConstants`; an empty cell is the default."""
    rows = csv_rows(text, shown)
    _, names = next(rows, (1, []))
    found = []
    for line, row in rows:
        if row and len(row) != len(names):
            raise FormatError(f"the row has {len(row)} cells, the header {len(names)}", shown, line)
        if row:
            found.append(from_row(dict(zip(names, row, strict=True)), FamilyConstants))
    return found


def load_constants(path: str) -> list[FamilyConstants]:
    """Return the rows of a constants file of the user's.

    Raises
    ------
    FormatError
        If it cannot be read, has other columns, or a number in it is wrong.
    """
    return constants_of_text(read_text(Path(path)), path)


def constants_of_text(text: str, path: str) -> list[FamilyConstants]:
    """Return the rows of the text of such a file, whose `path` is for messages; raises as `load_constants`."""
    header = text.partition("\n")[0].strip().split(",")
    known = FamilyConstants.__struct_fields__
    if not {"gpu", "family", "dtype"} <= set(header) <= set(known):
        raise FormatError(f"is not a file of operator constants; its columns must be among {', '.join(known)}", path, 1)
    try:
        rows = read_constants(text, path)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise FormatError(f"a number cannot be read: {error}", path) from None
    for row in rows:
        for name, (least, most) in _LIMITS.items():
            if not least <= getattr(row, name) <= most:
                raise FormatError(f"{name} of {row.gpu} {row.family} must be from {least:g} to {most:g}", path)
    return rows


def write_constants(rows: Iterable[FamilyConstants]) -> str:
    """Return the text of a constants file; `read_constants` of it gives equal rows."""
    names = FamilyConstants.__struct_fields__
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = (getattr(row, name) for name in names)
        writer.writerow("" if cell is None else f"{cell:.5g}" if isinstance(cell, float) else cell for cell in cells)
    return stream.getvalue()


def _values(percents: str) -> FloatArray:
    return np.array(percents.split(), np.float64) * STEP


def read_corrections(text: str) -> list[Correction]:
    """Return the corrections of a CSV.

    Axes are ``first:last:nodes``. The last cell holds the values in whole percent (100 times the logarithm) over
    several lines: each line goes along the last axis that has several nodes, blank lines part the planes.
    """
    return [
        Correction(
            gpu=row["gpu"],
            family=row["family"],
            dtype=row["dtype"],
            axes=tuple((float(a), float(b), int(n)) for a, b, n in (axis.split(":") for axis in row["axes"].split())),
            # Of a hundred thousand values a job needs those of its GPU.
            log_factor_V=later(partial(_values, row["percent"])),
            rows=int(row["rows"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]
