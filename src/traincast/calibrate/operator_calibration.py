"""Fit the operators' constants of one GPU to a few timings per family, as ``traincast calibrate --gpu`` does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.operator_fit import FEWEST, Sample, predict, samples_of
from traincast.calibrate.operator_measurements import OperatorMeasurements, operators_of
from traincast.calibrate.operator_transfer import constants_from_few
from traincast.calibrate.statistics import Statistics, statistics
from traincast.calibrate.tables import Table, read_table
from traincast.errors import CalibrationError
from traincast.estimate.operators import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.constants import write_constants
from traincast.spec.gpus import GpuSpec


@dataclass(frozen=True, slots=True)
class FamilyResiduals:
    """How far off the prices of one family are.

    Parameters
    ----------
    family, dtype : str
        Which.
    before, after : Statistics
        With the roofline's constants before and after the fit, over the same rows; in sample.
    """

    family: str
    dtype: str
    before: Statistics
    after: Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCalibration:
    """Constants of one GPU fitted to measurements.

    Parameters
    ----------
    files : tuple of str
        What was read.
    gpu : GpuSpec
        The accelerator.
    constants : tuple of FamilyConstants
        One per family and element type.
    residuals : tuple of FamilyResiduals
        In the same order.
    skipped : tuple of Skipped
        Rows and families that were left out, and why.
    """

    files: tuple[str, ...]
    gpu: GpuSpec
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
    paths: Sequence[str | PathLike[str]], gpu: GpuSpec, base: OperatorConstants | None = None
) -> OperatorCalibration:
    """Fit the constants of a GPU to measured operators.

    Parameters
    ----------
    paths : sequence of paths
        CSV files as `operators_of` reads them; about 20 timings per family suffice. Large shapes
        tell the sustained rates, small ones the rest.
    gpu : GpuSpec
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
        for (_, family, dtype), sample in sorted(samples_of(measured, known).items()):
            if len(sample) < FEWEST:
                skipped.append(Skipped(f"{table.path} {family} {dtype}", f"{len(sample)} rows; {FEWEST} are needed"))
                continue
            start = _start(known, gpu, family, dtype)
            constants = constants_from_few(sample, start, known, events=_has_events(table))
            lent = f" with the corrections of {constants.grid_of}" if constants.grid_of else ""
            constants = replace(
                constants,
                source=f"fitted by traincast calibrate to {table.path}{lent}",
                confidence="high" if len(sample) >= 20 else "medium",
            )
            fitted.append(constants)
            after = sample.corrected(known.correction(constants) if constants.grid_of else None)
            residuals.append(_residuals(sample, start, after, constants))
    if not fitted:
        raise CalibrationError(f"no family of {gpu.name} has {FEWEST} rows: {skipped[0].reason if skipped else 'none'}")
    return OperatorCalibration(
        files=tuple(map(str, paths)),
        gpu=gpu,
        constants=tuple(fitted),
        residuals=tuple(residuals),
        skipped=tuple(skipped),
    )


def _start(known: OperatorConstants, gpu: GpuSpec, family: str, dtype: str) -> FamilyConstants:
    """Return the constants that stand nearest, as those of this GPU."""
    general = tuple(family.rsplit("_", cut)[0] for cut in range(family.count("_") + 1))
    found = known.find(gpu, (*general, "gemm"), dtype)
    return replace(found, gpu=gpu.name, family=family, dtype=dtype, event_s=0.0)


def _has_events(table: Table) -> bool:
    """Say whether timings hold more than the kernel: NeuSight's tables do."""
    return "op" in table.columns


def _own(measured: OperatorMeasurements, gpu: GpuSpec, skipped: list[Skipped]) -> OperatorMeasurements:
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


def residual_lines(calibration: OperatorCalibration) -> Iterator[tuple[str, ...]]:
    """Yield a line per family: name, dtype, rows, median error before and after, p90 after."""
    for each in calibration.residuals:
        errors = (each.before.median_abs_error, each.after.median_abs_error, each.after.p90_abs_error)
        shown = ("-" if error is None else f"{100 * error:.1f} %" for error in errors)
        yield each.family, each.dtype, f"{each.after.rows:,}", *shown
