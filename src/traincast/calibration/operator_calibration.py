"""Fit the operators' constants of one GPU to a few timings per family, as ``traincast calibrate --gpu`` does.

Twenty timings tell how fast a GPU is, hardly how its rate depends on the shape; a measured GPU with
the same kernels knows that, in its constants and its correction. So each measured GPU's are tried,
scaled by one factor, and the nearest also with a new balance of compute and memory, next to a fit of
all constants. Whichever predicts timings best that it was not given is taken: for one factor each timing
from all others (leave one out), for a fit a fifth from the others.
"""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray, IntArray
from traincast.calibration.operator_fit import (
    FEWEST,
    Timings,
    described,
    fit_constants,
    free_constants,
    predict,
    samples_of,
)
from traincast.calibration.operators import operators_of
from traincast.calibration.tables import Row, Skipped, read_table
from traincast.calibration.validate import Statistics, statistics
from traincast.errors import CalibrationError
from traincast.estimate.operators import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.constants import ANY, HOST_LAUNCH, write_constants
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
FEW = 100
"""Timings beyond which a GPU's own fit is all that is tried."""
FOLDS = 5
NEAREST = 2
"""Measured GPUs whose balance of compute and memory is fitted as well."""
_EVENTS_S = (0.0, 1e-5, 2e-5, 4e-5)
"""What an event may add to a timing; NeuSight's hold 10 to 70 us."""


class FamilyResiduals(Struct, frozen=True):
    """How far off the estimates of one family are with the constants before and after the fit; in sample."""

    family: str
    dtype: str
    before: Statistics
    after: Statistics
    held_out: Statistics | None = None
    """Each of `FOLDS` parts of the rows predicted by all that the others tell; None with rows too few for that."""


class OperatorCalibration(Struct, frozen=True, kw_only=True):
    """Constants of one GPU fitted to measurements, one row per family and element type."""

    files: tuple[str, ...]
    gpu: Gpu
    constants: tuple[FamilyConstants, ...]
    residuals: tuple[FamilyResiduals, ...]
    """In the same order."""
    skipped: tuple[Skipped, ...]
    """Rows and families that were left out, and why."""
    host: FamilyConstants | None = None
    """What the host takes to launch a GEMM, where that was measured."""

    def __repr__(self) -> str:
        """Say what was fitted to what, in a line."""
        families = counted(len(self.constants), "family", "families")
        return f"<OperatorCalibration: {families} of {self.gpu.name} fitted to {counted(len(self.files), 'file')}>"

    def profile(self) -> str:
        """Return the constants as a CSV file for ``traincast operator --constants``."""
        return write_constants([*self.constants, *([self.host] if self.host else [])])

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
        What the fit starts from and is pulled towards, and measured GPUs to be like; the shipped ones by default.

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
    launches_s: list[float] = []
    for path in paths:
        table = read_table(Path(path))
        launches_s += (row.number("host_s") for row in table.rows if {"host_s"} <= {*row.cells} and _is_gemm(row))
        every = operators_of(table, gpu)
        own = [row for row, ran_on in enumerate(every.gpu) if ran_on.name == gpu.name]
        others = [(every.ids[row], ran_on.name) for row, ran_on in enumerate(every.gpu) if ran_on.name != gpu.name]
        skipped += [*every.skipped, *(Skipped(row, f"ran on {name}") for row, name in others)]
        samples = sorted(samples_of(every.select(own), known).items())
        announce(f"fitting {counted(len(samples), 'family', 'families')} of operators: up to {_FAMILY_S} s each")
        for at, ((_, family, dtype), sample) in enumerate(samples):
            if at:
                advanced(at / len(samples))
            if len(sample) < FEWEST:
                skipped.append(Skipped(f"{table.path} {family} {dtype}", f"{len(sample)} rows; {FEWEST} are needed"))
                continue
            constants, errors = _fitted(sample, _start(known, gpu, family, dtype), known, every.events, table.path)
            fitted.append(constants)
            residuals.append(errors)
    if not fitted:
        raise CalibrationError(f"no family of {gpu.name} has {FEWEST} rows: {skipped[0].reason if skipped else 'none'}")
    return OperatorCalibration(
        files=tuple(map(str, paths)),
        gpu=gpu,
        constants=tuple(fitted),
        residuals=tuple(residuals),
        skipped=tuple(skipped),
        host=_host(gpu, launches_s, str(paths[0])),
    )


def _is_gemm(row: Row) -> bool:
    """Say whether a row is of a GEMM that ran: what else is launched goes through more or less of PyTorch."""
    return row.cells.get("family") == "gemm" and "time_s" in row.cells


def _host(gpu: Gpu, launches_s: Sequence[float], path: str) -> FamilyConstants | None:
    """Return the median of what the host took to launch; None of too few."""
    if len(launches_s) < FEWEST:
        return None
    rows, source = len(launches_s), f"median of {path}, column host_s"
    found = FamilyConstants(gpu=gpu.name, family=HOST_LAUNCH, dtype=ANY, floor_s=median(launches_s), rows=rows)
    return replace(found, source=source, confidence="medium")


def _fitted(
    sample: Timings, start: FamilyConstants, known: OperatorConstants, events: bool, path: str
) -> tuple[FamilyConstants, FamilyResiduals]:
    constants = constants_from_few(sample, start, known, events=events)
    held_out = _held_out(sample, start, known, events=events)
    lent = f" with the corrections of {constants.grid_of}" if constants.grid_of else ""
    constants = replace(
        constants,
        source=f"fitted by traincast calibrate to {path}{lent}",
        confidence=_confidence(len(sample), held_out),
    )
    before = statistics(predict(sample, start), sample.time_s_N)
    after = statistics(predict(_lent(sample, constants, known), constants), sample.time_s_N)
    return constants, FamilyResiduals(start.family, start.dtype, before, after, held_out)


def _confidence(rows: int, held_out: Statistics | None) -> str:
    """Return the confidence in constants fitted to so many rows: never by their error in sample."""
    median = None if held_out is None else held_out.median_abs_error
    if median is None or median > _LOW_ABOVE:
        return "low"
    return "high" if rows >= _ROWS_OF_HIGH else "medium"


def _held_out(sample: Timings, start: FamilyConstants, known: OperatorConstants, *, events: bool) -> Statistics | None:
    """Return the errors of rows by constants chosen and fitted without them, the choice of a like GPU included."""
    sample = sample.thinned()
    if len(sample) < FEWEST + FOLDS:
        return None
    predicted_N = np.full(len(sample), np.nan)
    for inside, outside in _folds(sample):
        fitted = constants_from_few(sample.select(inside), start, known, events=events)
        predicted_N[outside] = predict(_lent(sample.select(outside), fitted, known), fitted)
    return statistics(predicted_N, sample.time_s_N)


def _folds(sample: Timings) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the timings inside and outside of each fit, by rising time: each part has small and large shapes."""
    rank_N = np.argsort(np.argsort(sample.time_s_N, kind="stable"), kind="stable")
    for fold in range(FOLDS):
        yield np.flatnonzero(rank_N % FOLDS != fold), np.flatnonzero(rank_N % FOLDS == fold)


def _start(known: OperatorConstants, gpu: Gpu, family: str, dtype: str) -> FamilyConstants:
    """Return the constants that stand nearest, as those of this GPU."""
    general = tuple(family.rsplit("_", cut)[0] for cut in range(family.count("_") + 1))
    found = known.find(gpu, (*general, "gemm"), dtype)
    return replace(found, gpu=gpu.name, family=family, dtype=dtype, event_s=0.0)


class _Candidate(NamedTuple):
    """Constants and the error that they are expected to have, as a mean absolute logarithm."""

    error: float
    constants: FamilyConstants


def constants_from_few(
    sample: Timings, start: FamilyConstants, known: OperatorConstants, *, events: bool = False
) -> FamilyConstants:
    """Return the constants that predict timings best which they were not fitted to.

    `grid_of` of them names the GPU whose correction holds as well, if any.

    Parameters
    ----------
    start : FamilyConstants
        Where a fit of all constants starts; names GPU, family and type.
    known : OperatorConstants
        Constants and corrections of measured GPUs.
    events : bool
        Whether the timings hold more than the kernel.

    Raises
    ------
    CalibrationError
        If there are too few timings.
    """
    free = free_constants(sample, events=events)
    start = replace(start, grid_of="")
    if not FEWEST + FOLDS <= len(sample) <= FEW:
        return fit_constants(sample, start, free)
    candidates = [_Candidate(_fold_error(sample, start, free), fit_constants(sample, start, free))]
    scaled = sorted(_scaled_from_others(sample, start, known, events=events), key=lambda each: each.error)
    candidates += scaled[:1]
    balance = tuple(name for name in ("compute", "memory", "event_s") if name in free)
    for near in scaled[:NEAREST]:
        corrected = _lent(sample, near.constants, known)
        error = _fold_error(corrected, near.constants, balance)
        candidates.append(_Candidate(error, fit_constants(corrected, near.constants, balance)))
    return min(candidates, key=lambda each: each.error).constants


def _lent(sample: Timings, constants: FamilyConstants, known: OperatorConstants) -> Timings:
    """Return a sample with the correction that its constants take over from another GPU."""
    return sample.corrected(known.correction(constants) if constants.grid_of else None)


def _scaled_from_others(
    sample: Timings, start: FamilyConstants, known: OperatorConstants, *, events: bool
) -> Iterator[_Candidate]:
    for row in known.rows:
        if row.gpu == ANY or row.family != start.family or row.dtype not in (start.dtype, ANY) or not row.rows:
            continue
        like = replace(row, gpu=start.gpu, dtype=start.dtype, event_s=0.0, floor_s=start.floor_s, grid_of="")
        events_s = _EVENTS_S if events else _EVENTS_S[:1]
        yield _scaled(sample, like, events_s)
        grid = known.correction(row)
        if grid is not None:
            yield _scaled(sample.corrected(grid), replace(like, grid_of=grid.gpu), events_s)


def _scaled(sample: Timings, like: FamilyConstants, events_s: Sequence[float]) -> _Candidate:
    """Return constants slowed down by one factor, and the error of each timing by the factor of the others."""
    estimate_N = predict(sample, like)
    measured_N = sample.time_s_N
    left_out = []
    for at in range(len(sample)):
        factor, event_s = _factor(np.delete(estimate_N, at), np.delete(measured_N, at), events_s)
        left_out.append(abs(np.log((estimate_N[at] * factor + event_s) / measured_N[at])))
    factor, event_s = _factor(estimate_N, measured_N, events_s)
    constants = replace(
        like, compute=min(like.compute / factor, 1.0), memory=min(like.memory / factor, 1.0), event_s=event_s
    )
    return _Candidate(float(np.mean(left_out)), described(constants, sample))


def _factor(estimate_N: FloatArray, measured_N: FloatArray, events_s: Sequence[float]) -> tuple[float, float]:
    """Return the factor and the event time of least mean absolute logarithm."""
    found = []
    for event_s in events_s:
        factor = float(np.exp(np.median(np.log(np.maximum(measured_N - event_s, 0.1 * measured_N) / estimate_N))))
        error = float(np.mean(np.abs(np.log((estimate_N * factor + event_s) / measured_N))))
        found.append((error, factor, event_s))
    _, factor, event_s = min(found)
    return factor, event_s


def _fold_error(sample: Timings, start: FamilyConstants, free: Sequence[str]) -> float:
    """Return the mean absolute logarithm over fifths of the timings, each predicted by a fit to the others."""
    errors: list[FloatArray] = []
    for inside, outside in _folds(sample):
        fitted, left = fit_constants(sample.select(inside), start, free), sample.select(outside)
        errors.append(np.abs(np.log(predict(left, fitted) / left.time_s_N)))
    return float(np.mean(np.concatenate(errors)))
