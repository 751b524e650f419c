"""The constants of the roofline per (GPU, family, dtype), and who stands in where there are none."""

import csv
import io
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path

from traincast.errors import FormatError, UnknownNameError
from traincast.estimate.operators.corrections import Correction, shipped_corrections
from traincast.files import read_text
from traincast.hardware.gpu import Gpu

_Key = tuple[str, str, str]

ANY = "*"
"""GPU or dtype of a row that stands for all that have no row of their own."""

STAND_INS = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "tf32": ("bf16", "fp16"),
    "fp8_block": ("fp8", "bf16"),
    "mxfp8": ("fp8_block", "fp8", "bf16"),
    "fp8": ("fp8_block", "bf16"),
    "int8": ("fp8", "bf16"),
    "nvfp4": ("mxfp4", "fp8", "bf16"),
    "mxfp4": ("nvfp4", "fp8", "bf16"),
    "fp4": ("nvfp4", "fp8", "bf16"),
    "fp32": (),
}
"""Element types whose sustained shares come nearest, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyConstants:
    """What one family of kernels sustains on one GPU with one element type.

    Parameters
    ----------
    gpu, family, dtype : str
        What it holds for; `ANY` for all others.
    compute : float
        Share of the peak FLOP/s that full waves of large tiles sustain (clock and pipeline).
    memory : float
        Share of the peak memory rate that is sustained.
    floor_s : float
        Device time of a kernel that does nothing.
    k_fill : float
        Reduction length at which a tile runs at half its rate.
    wave : float
        Share of the idling of a last, partly filled wave that is real; 0 to 1.
    edge : float
        What a small tile pays: relative cost is ``1 + edge * (1 / tile m + 1 / tile n)``.
    unhidden : float
        Share of the lesser of compute and memory time that is not hidden behind the greater.
    unaligned : float
        Share of the compute rate that is left where rows do not begin at multiples of 16 bytes.
    event_s : float
        What the measurements hold beside the kernel (event timing, launch); no part of a price.
    rows : int
        Measurements behind it; 0 for an estimate.
    median_error, p90_error : float or None
        Absolute relative errors of these measurements, in sample.
    source : str
        Where it comes from.
    confidence : str
        ``high``, ``medium`` or ``low``.
    grid_of : str
        GPU whose correction of the same family and type holds here too; its own where empty.
    """

    gpu: str
    family: str
    dtype: str
    compute: float = 0.7
    memory: float = 0.8
    floor_s: float = 3e-6
    k_fill: float = 0.0
    wave: float = 0.0
    edge: float = 0.0
    unhidden: float = 0.0
    unaligned: float = 0.5
    event_s: float = 0.0
    rows: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    source: str = ""
    confidence: str = "low"
    grid_of: str = ""


@dataclass(frozen=True, slots=True)
class OperatorConstants:
    """All constants that prices are made with.

    Parameters
    ----------
    rows : tuple of FamilyConstants
        In any order; a later row of the same GPU, family and dtype counts.
    corrections : tuple of Correction
        Grids of measured over predicted time; a row without one is not corrected.
    """

    rows: tuple[FamilyConstants, ...]
    corrections: tuple[Correction, ...] = ()
    _by_key: dict[_Key, FamilyConstants] = field(init=False, repr=False, compare=False, hash=False)
    _grid_by_key: dict[_Key, Correction] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {(row.gpu, row.family, row.dtype): row for row in self.rows})
        grids = {(grid.gpu, grid.family, grid.dtype): grid for grid in self.corrections}
        object.__setattr__(self, "_grid_by_key", grids)

    def correction(self, row: FamilyConstants) -> Correction | None:
        """Return the correction that belongs to a row of constants; None where there is none."""
        if not row.grid_of:
            return self._grid_by_key.get((row.gpu, row.family, row.dtype))
        keys = ((row.grid_of, row.family, dtype) for dtype in (row.dtype, ANY))
        return next((self._grid_by_key[key] for key in keys if key in self._grid_by_key), None)

    def find(self, gpu: Gpu, families: tuple[str, ...], dtype: str) -> FamilyConstants:
        """Return the constants of a family on a GPU; of what stands nearest where it has none.

        Parameters
        ----------
        gpu : Gpu
            The accelerator.
        families : tuple of str
            Names of the family, the most special first (``attention_fa3``, ``attention``).
        dtype : str
            Element type.

        Returns
        -------
        FamilyConstants
            Its own; else those of its kin (the same chip), of a near dtype, then of all GPUs.
            The source says which, and the confidence falls with the distance.

        Raises
        ------
        UnknownNameError
            If there are not even constants for all GPUs.
        """
        for name in (gpu.name, *gpu.kin, ANY):
            for family in families:
                for position, near in enumerate((dtype, ANY, *STAND_INS.get(dtype, ()))):
                    row = self._by_key.get((name, family, near))
                    if row is not None:
                        return _as_used(row, 2 * (name == ANY) + (name != gpu.name) + (position > 1))
        raise UnknownNameError("operator with constants", families[0], sorted({row.family for row in self.rows}))

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


@cache
def shipped_constants() -> OperatorConstants:
    """Return the constants that come with traincast (`data/operators/constants.csv`)."""
    file = resources.files("traincast") / "data" / "operators" / "constants.csv"
    return OperatorConstants(tuple(read_constants(file.read_text(encoding="utf-8"))), shipped_corrections())


def read_constants(text: str) -> list[FamilyConstants]:
    """Return the rows of a constants file.

    Parameters
    ----------
    text : str
        CSV whose columns are the fields of `FamilyConstants`; an empty cell is the default.
    """
    kinds = {each.name: each.type for each in fields(FamilyConstants)}
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        values: dict[str, object] = {}
        for name, cell in row.items():
            if cell:
                values[name] = cell if kinds[name] is str else int(cell) if kinds[name] is int else float(cell)
        found.append(FamilyConstants(**values))  # type: ignore[arg-type]
    return found


def load_constants(path: str) -> list[FamilyConstants]:
    """Return the rows of a constants file of the user's.

    Raises
    ------
    FormatError
        If it cannot be read, has other columns, or a number in it is wrong.
    """
    text = read_text(Path(path))
    header = text.partition("\n")[0].strip().split(",")
    known = [each.name for each in fields(FamilyConstants)]
    if not {"gpu", "family", "dtype"} <= set(header) <= set(known):
        raise FormatError(f"is no file of operator constants; its columns must be among {', '.join(known)}", path, 1)
    try:
        rows = read_constants(text)
    except (ValueError, TypeError) as error:
        raise FormatError(f"a number cannot be read: {error}", path) from None
    for row in rows:
        _check(row, path)
    return rows


_LEAST_SHARE = 1e-6
"""Least share of a peak that a kernel can be said to reach; the lowest shipped one is 0.05."""
_LARGEST = 1e9
"""Largest of the other constants: seconds, and sizes in elements."""


def _check(row: FamilyConstants, path: str) -> None:
    for name in ("compute", "memory", "unaligned"):
        if not _LEAST_SHARE <= getattr(row, name) <= 1:
            raise FormatError(f"{name} of {row.gpu} {row.family} must be from {_LEAST_SHARE:g} to 1", path)
    for name in ("wave", "unhidden"):
        if not 0 <= getattr(row, name) <= 1:
            raise FormatError(f"{name} of {row.gpu} {row.family} must be between 0 and 1", path)
    for name in ("floor_s", "k_fill", "edge", "event_s"):
        if not 0 <= getattr(row, name) <= _LARGEST:
            raise FormatError(f"{name} of {row.gpu} {row.family} must be from 0 to {_LARGEST:g}", path)


def write_constants(rows: list[FamilyConstants]) -> str:
    """Return the text of a constants file; `read_constants` of it gives equal rows."""
    stream = io.StringIO()
    names = [each.name for each in fields(FamilyConstants)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = (getattr(row, name) for name in names)
        writer.writerow("" if cell is None else f"{cell:.5g}" if isinstance(cell, float) else cell for cell in cells)
    return stream.getvalue()
