"""How shipped constants are made of measured kernels: what is fitted to, in which order, and what is held out."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traincast.calibrate.operator_fit import (
    FEWEST,
    Key,
    Sample,
    fit_constants,
    fit_correction,
    free_constants,
    samples_of,
)
from traincast.calibrate.operator_measurements import OperatorMeasurements
from traincast.estimate.operators import FamilyConstants, OperatorCall, OperatorConstants, work_of
from traincast.estimate.operators.constants import ANY, Correction
from traincast.hardware.gpu import Gpu

NODES = {"bmm": (6, 7, 7, 7, 1), "gemm fp32": (9, 10, 10, 2), "gemm": (7, 8, 8, 1), "attention": (6, 8, 4)}
"""Nodes of the correction per size; others by their number of sizes."""
NODES_BY_SIZES = {1: (24,), 2: (12, 10)}
ROWS_FOR_CORRECTION = 100
LONG_S = 1e-4
"""Timings above it are hardly touched by events, launches and caches; memory rates are fitted to these alone."""
FEWEST_LEFT = 20
"""Rows that must be left for a fit without the held-out ones to stand for the shipped one."""
_NUMBERS = ("compute", "memory", "floor_s", "k_fill", "wave", "edge", "unhidden", "unaligned", "event_s")
_FIFTHS = 5


def usual(call: OperatorCall, gpu: Gpu, time_s: float) -> bool:
    """Say whether a measured attention kernel is of the kind that training uses.

    Left out: windows that the kernel does not exploit, head sizes it falls back for, and a second
    series of head size 256 on Blackwell at a seventh of the rate of the first.
    """
    if call.family != "attention" or call.direction != "forward":
        return True
    if call.options:
        return call.window == 0
    head_dim, seq = call.shape[5], call.shape[1]
    rate = 2 * call.shape[0] * call.shape[3] * seq * seq * head_dim / time_s / gpu.peak_flops_per_s(call.dtype)
    slow = gpu.architecture == "blackwell" and head_dim == 256 and rate < 0.15 and time_s > LONG_S
    return call.window in (0, 8192) and head_dim in (64, 128, 256) and not slow


def fitted(key: Key, sample: Sample, source: str, *, events: bool) -> tuple[FamilyConstants, Correction | None]:
    """Return the constants of a sample and their correction, None where the rows are too few.

    Parameters
    ----------
    key : tuple of str
        GPU, name of the constants, element type.
    sample : Sample
        Its measurements.
    source : str
        Who measured.
    events : bool
        Whether the timings hold more than the kernel.
    """
    gpu, family, dtype = key
    long = np.flatnonzero(sample.time_s_N >= LONG_S)
    plain = sample.columns.tiled or len(long) < 40
    base = FamilyConstants(gpu=gpu, family=family, dtype=dtype, source=f"fitted to {source}", confidence="high")
    if "attention" in family:
        base = replace(base, memory=0.8, floor_s=4e-6)
    constants = fit_constants(sample if plain else sample.select(long), base, free_constants(sample, events=events))
    if not plain and events:
        # The rate is that of long kernels; what an event takes shows in the short ones.
        constants = fit_constants(sample, constants, ("event_s",))
    if constants.rows < 50:
        constants = replace(constants, confidence="medium")
    if not sample.columns.tiled:
        constants = replace(constants, dtype=ANY)
    if len(sample) < ROWS_FOR_CORRECTION or len(sample.columns.flops_N) != len(sample):
        return constants, None
    sizes = sample.columns.coordinates_ND.shape[1]
    nodes = NODES.get(f"{family} {dtype}") or NODES.get(family) or NODES_BY_SIZES.get(sizes)
    return constants, None if nodes is None else fit_correction(sample, constants, nodes, smooth=0.1)


def held_out(sample: Sample) -> np.ndarray:
    """Return which measurements of a sample are held out: a fifth, by a hash of their size and work."""
    first = np.unique(sample.owner_C, return_index=True)[1]
    columns = sample.columns
    sizes = (columns.flops_N, columns.m_N, columns.n_N, columns.k_N, columns.bytes_N)
    return np.array([_is_held_out(each) for each in zip(*(size[first] for size in sizes), strict=True)])


def held_out_rows(measured: OperatorMeasurements) -> np.ndarray:
    """Return which rows are held out: those that `held_out` chooses in their samples."""
    return np.array([_is_held_out(_sizes(calls)) for calls in measured.calls], np.bool_)


def _sizes(calls: Sequence[OperatorCall]) -> tuple[float, ...]:
    works = [work_of(call) for call in calls]
    work = next((each for each in works if each.tiling is not None), works[0])
    tiling = (1.0, 1.0, 1.0) if work.tiling is None else (work.tiling.m, work.tiling.n, work.tiling.k)
    return (work.flops, *tiling, work.bytes_moved)


def _is_held_out(sizes: Sequence[float]) -> bool:
    digest = hashlib.sha256("x".join(f"{value:g}" for value in sizes).encode()).digest()
    return digest[0] % _FIFTHS == 0


@dataclass(frozen=True, slots=True)
class HeldOutFit:
    """Constants that never saw the held-out rows.

    Parameters
    ----------
    constants : OperatorConstants
        The given ones, with those of the measured GPUs fitted again.
    refitted : mapping
        GPU, name of the constants and type, to whether rows enough were left to fit.
    """

    constants: OperatorConstants
    refitted: Mapping[Key, bool]


def without_held_out(
    measured: OperatorMeasurements,
    known: OperatorConstants,
    *,
    events: bool,
    progress: Callable[[int, int], None] | None = None,
) -> HeldOutFit:
    """Fit constants and corrections again to what is not held out.

    Parameters
    ----------
    measured : OperatorMeasurements
        All rows.
    known : OperatorConstants
        Price what else a row covers, and what is not measured here.
    events : bool
        Whether the timings hold more than the kernel.
    progress : callable, optional
        Told how many samples are fitted, and of how many.
    """
    out = held_out_rows(measured)
    inside = measured.select(
        [
            row
            for row in np.flatnonzero(~out).tolist()
            if usual(measured.calls[row][0], measured.gpu[row], float(measured.time_s[row]))
        ]
    )
    rows: list[FamilyConstants] = []
    grids: list[Correction] = []
    refitted: dict[Key, bool] = {}
    samples = samples_of(inside, known)
    for done, (key, sample) in enumerate(samples.items()):
        refitted[key] = len(sample) >= max(FEWEST, FEWEST_LEFT)
        if refitted[key]:
            constants, grid = fitted(key, sample, "the rows that are not held out", events=events)
            rows.append(constants)
            grids += [] if grid is None else [replace(grid, dtype=constants.dtype)]
        if progress is not None:
            progress(done + 1, len(samples))
    return HeldOutFit(_with(known, rows, grids), refitted)


def _with(known: OperatorConstants, rows: Sequence[FamilyConstants], grids: Sequence[Correction]) -> OperatorConstants:
    plain = known.with_rows(tuple(rows))
    return OperatorConstants(plain.rows, (*plain.corrections, *grids))


def defaults(rows: Sequence[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants for all GPUs, per family and element type.

    Parameters
    ----------
    rows : sequence of FamilyConstants
        Those of the measured GPUs.

    Yields
    ------
    FamilyConstants
        Of bf16 once more for every other element type.
    """
    for family, dtype in sorted({(row.family, row.dtype) for row in rows}):
        of = [row for row in rows if (row.family, row.dtype) == (family, dtype)]
        medians: dict[str, Any] = {name: float(np.median([getattr(row, name) for row in of])) for name in _NUMBERS}
        source = f"median of {', '.join(row.gpu for row in of)}"
        yield FamilyConstants(gpu=ANY, family=family, dtype=dtype, source=source, **medians)
        if dtype == "bf16":
            yield FamilyConstants(gpu=ANY, family=family, dtype=ANY, source=source, **medians)


def without_gpu(constants: OperatorConstants, gpu: Gpu) -> OperatorConstants:
    """Return constants as they would be had a GPU never been measured.

    Its rows and corrections are gone, and the medians are taken over the others.
    """
    others = [row for row in constants.rows if row.gpu not in (gpu.name, ANY)]
    return OperatorConstants((*others, *defaults(others)), tuple(_of_others(constants, gpu)))


def _of_others(constants: OperatorConstants, gpu: Gpu) -> Iterator[Correction]:
    return (grid for grid in constants.corrections if grid.gpu != gpu.name)
