"""Fit the operators' constants of one GPU to a few timings per family, as ``traincast calibrate --gpu`` does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.operator_fit import FEWEST, Sample, predict, samples_of
from traincast.calibrate.operator_measurements import OperatorMeasurements, operators_of
from traincast.calibrate.operator_transfer import FOLDS, constants_from_few
from traincast.calibrate.statistics import Statistics, statistics
from traincast.calibrate.tables import Table, read_table
from traincast.errors import CalibrationError
from traincast.estimate.operators import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.constants import write_constants
from traincast.hardware.gpu import Gpu
from traincast.progress import advanced, announce
from traincast.units import counted

_FAMILY_S = 15
"""Most seconds of one core that the fit of a family took."""
_ROWS_OF_HIGH = 50
"""Rows below which constants are medium at best: twenty timings hardly tell how a rate depends on the shape."""
_LOW_ABOVE = 0.25
"""Held-out median error beyond which constants are no better than those of a GPU that was never measured
(docs/operators.md, unseen GPUs)."""


@dataclass(frozen=True, slots=True)
class FamilyResiduals:
    """How far off the prices of one family are.

    Parameters
    ----------
    family, dtype : str
        Which.
    before, after : Statistics
        With the roofline's constants before and after the fit, over the same rows; in sample.
    held_out : Statistics or None
        The same where each of `FOLDS` parts of the rows is predicted by all that the others tell; None with
        rows too few for that.
    """

    family: str
    dtype: str
    before: Statistics
    after: Statistics
    held_out: Statistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCalibration:
    """Constants of one GPU fitted to measurements.

    Parameters
    ----------
    files : tuple of str
        What was read.
    gpu : Gpu
        The accelerator.
    constants : tuple of FamilyConstants
        One per family and element type.
    residuals : tuple of FamilyResiduals
        In the same order.
    skipped : tuple of Skipped
        Rows and families that were left out, and why.
    """

    files: tuple[str, ...]
    gpu: Gpu
    constants: tuple[FamilyConstants, ...]
    residuals: tuple[FamilyResiduals, ...]
    skipped: tuple[Skipped, ...]

    def profile(self) -> str:
        """Return the constants as a CSV file for ``traincast operator --constants``."""
        return write_constants(list(self.constants))

    def over(self, constants: OperatorConstants) -> OperatorConstants:
        """Return constants with the fitted ones in the place of the old."""
        return constants.with_rows(self.constants)


def calibrate_operators(
    paths: Sequence[str | PathLike[str]], gpu: Gpu, base: OperatorConstants | None = None
) -> OperatorCalibration:
    """Fit the constants of a GPU to measured operators.

    Parameters
    ----------
    paths : sequence of paths
        CSV files as `operators_of` reads them; about 20 timings per family suffice. Large shapes
        tell the sustained rates, small ones the rest.
    gpu : Gpu
        The accelerator; rows of others are left out, rows that say none are its own.
    base : OperatorConstants, optional
        What the fit starts from and is pulled towards, and measured GPUs to be like (`operator_transfer`);
        the shipped ones by default.

    Returns
    -------
    OperatorCalibration

    Raises
    ------
    FormatError
        If a file cannot be read.
    CalibrationError
        If no family has rows enough.
    """
    known = base or shipped_constants()
    fitted: list[FamilyConstants] = []
    residuals: list[FamilyResiduals] = []
    skipped: list[Skipped] = []
    for path in paths:
        table = read_table(Path(path))
        measured = _own(operators_of(table, gpu), gpu, skipped)
        samples = sorted(samples_of(measured, known).items())
        announce(f"fitting {counted(len(samples), 'family', 'families')} of operators: up to {_FAMILY_S} s each")
        for at, ((_, family, dtype), sample) in enumerate(samples):
            if at:
                advanced(at / len(samples))
            if len(sample) < FEWEST:
                skipped.append(Skipped(f"{table.path} {family} {dtype}", f"{len(sample)} rows; {FEWEST} are needed"))
                continue
            start = _start(known, gpu, family, dtype)
            events = _has_events(table)
            constants = constants_from_few(sample, start, known, events=events)
            held_out = _held_out(sample, start, known, events=events)
            lent = f" with the corrections of {constants.grid_of}" if constants.grid_of else ""
            constants = replace(
                constants,
                source=f"fitted by traincast calibrate to {table.path}{lent}",
                confidence=_confidence(len(sample), held_out),
            )
            fitted.append(constants)
            after = sample.corrected(known.correction(constants) if constants.grid_of else None)
            residuals.append(replace(_residuals(sample, start, after, constants), held_out=held_out))
    if not fitted:
        raise CalibrationError(f"no family of {gpu.name} has {FEWEST} rows: {skipped[0].reason if skipped else 'none'}")
    return OperatorCalibration(
        files=tuple(map(str, paths)),
        gpu=gpu,
        constants=tuple(fitted),
        residuals=tuple(residuals),
        skipped=tuple(skipped),
    )


def _confidence(rows: int, held_out: Statistics | None) -> str:
    """Return how sure constants are that were fitted to so many rows: never by their error in sample."""
    median = None if held_out is None else held_out.median_abs_error
    if median is None or median > _LOW_ABOVE:
        return "low"
    return "high" if rows >= _ROWS_OF_HIGH else "medium"


def _held_out(sample: Sample, start: FamilyConstants, known: OperatorConstants, *, events: bool) -> Statistics | None:
    """Return the errors of rows by constants chosen and fitted without them, the choice of a like GPU included."""
    sample = sample.thinned()
    if len(sample) < FEWEST + FOLDS:
        return None
    predicted_N = np.full(len(sample), np.nan)
    # By rising time, so that each part holds small and large shapes.
    rank_N = np.argsort(np.argsort(sample.time_s_N, kind="stable"), kind="stable")
    for fold in range(FOLDS):
        inside, outside = np.flatnonzero(rank_N % FOLDS != fold), np.flatnonzero(rank_N % FOLDS == fold)
        fitted = constants_from_few(sample.select(inside), start, known, events=events)
        left = sample.select(outside).corrected(known.correction(fitted) if fitted.grid_of else None)
        predicted_N[outside] = predict(left, fitted)
    return statistics(predicted_N, sample.time_s_N)


def _start(known: OperatorConstants, gpu: Gpu, family: str, dtype: str) -> FamilyConstants:
    """Return the constants that stand nearest, as those of this GPU."""
    general = tuple(family.rsplit("_", cut)[0] for cut in range(family.count("_") + 1))
    found = known.find(gpu, (*general, "gemm"), dtype)
    return replace(found, gpu=gpu.name, family=family, dtype=dtype, event_s=0.0)


def _has_events(table: Table) -> bool:
    """Say whether timings hold more than the kernel: tables with a column ``op`` do."""
    return "op" in table.columns


def _own(measured: OperatorMeasurements, gpu: Gpu, skipped: list[Skipped]) -> OperatorMeasurements:
    """Return the rows of one GPU; note the others."""
    skipped += measured.skipped
    rows = [row for row, found in enumerate(measured.gpu) if found.name == gpu.name]
    other = set(range(len(measured))) - set(rows)
    skipped += [Skipped(measured.ids[row], f"ran on {measured.gpu[row].name}") for row in sorted(other)]
    return measured.select(rows)


def _residuals(sample: Sample, before: FamilyConstants, corrected: Sample, after: FamilyConstants) -> FamilyResiduals:
    return FamilyResiduals(
        family=after.family,
        dtype=after.dtype,
        before=statistics(predict(sample, before), sample.time_s_N),
        after=statistics(predict(corrected, after), sample.time_s_N),
    )
