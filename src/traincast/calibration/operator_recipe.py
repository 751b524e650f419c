"""How shipped constants are made of measured kernels: what is fitted to, in which order, and what is held out."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray, IntArray
from traincast.calibration.operator_fit import (
    NOISE,
    Key,
    Timings,
    fit_constants,
    free_constants,
    key_of,
    predict,
    samples_of,
)
from traincast.calibration.operators import (
    LONG_S,
    Estimated,
    OperatorMeasurements,
    estimate_measurements,
    is_plain_gemm,
)
from traincast.estimate.clocks import held_back
from traincast.estimate.operators import (
    FamilyConstants,
    OperatorCall,
    OperatorConstants,
    shipped_constants,
    work_of,
)
from traincast.estimate.operators.constants import ANY, LIMIT, Correction, corners
from traincast.hardware.gpu import Gpu

NODES = {
    "bmm": (6, 7, 7, 7, 1),
    "gemm fp32": (9, 10, 10, 2),
    "gemm": (7, 8, 8, 1),
    "attention": (6, 8, 4),
    **dict.fromkeys(("attention_backward_cudnn", "attention_backward_fa2"), (4, 4, 4)),
}
"""Nodes of the correction per size; others by their number of sizes."""
NODES_BY_SIZES = {1: (24,), 2: (12, 10)}
ROWS_FOR_CORRECTION = 100
FEWEST_LEFT = 20
"""Rows that must be left for a fit without the held-out ones to stand for the shipped one."""
_NUMBERS = ("compute", "memory", "floor_s", "k_fill", "wave", "edge", "unhidden", "unaligned", "event_s")
_FIFTHS = 5


def usual(call: OperatorCall, gpu: Gpu, time_s: float) -> bool:
    """Say whether a measured kernel is of the kind that training uses, at the clock that timings are taken to have.

    Left out: GEMMs so long that the power limit lowered the clock in their own loop, as `gemm_slowdown` does it in a
    step; of attention windows that the kernel does not exploit, head sizes it falls back for, and a second
    series of head size 256 on Blackwell at a seventh of the rate of the first.
    """
    if is_plain_gemm(call):
        return not held_back(gpu, time_s)
    if call.family != "attention" or call.direction != "forward":
        return True
    if call.options:
        return call.window == 0
    head_dim, seq = call.shape[5], call.shape[1]
    rate = 2 * call.shape[0] * call.shape[3] * seq * seq * head_dim / time_s / gpu.peak_flops_per_s(call.dtype)
    slow = gpu.architecture == "blackwell" and head_dim == 256 and rate < 0.15 and time_s > LONG_S
    return call.window in (0, 8192) and head_dim in (64, 128, 256) and not slow


def fitted(key: Key, sample: Timings, source: str, *, events: bool) -> tuple[FamilyConstants, Correction | None]:
    """Return the constants of a sample and their correction, None where the rows are too few.

    `source` is who measured; `events` says whether the timings hold more than the kernel.
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


def held_out_rows(measured: OperatorMeasurements) -> np.ndarray:
    """Return which rows are held out: a fifth, by a hash of their size and work."""
    return np.array([is_held_out(_sizes(calls)) for calls in measured.calls], np.bool_)


def _sizes(calls: Sequence[OperatorCall]) -> tuple[float, ...]:
    works = list(map(work_of, calls))
    work = next((each for each in works if each.tiling is not None), works[0])
    tiling = (1.0, 1.0, 1.0) if work.tiling is None else (work.tiling.m, work.tiling.n, work.tiling.k)
    return (work.flops, *tiling, work.bytes_moved)


def is_held_out(sizes: Sequence[float]) -> bool:
    """Say by their hash whether a measurement of these sizes, FLOP, tiling and bytes, is held out."""
    digest = hashlib.sha256("x".join(f"{value:g}" for value in sizes).encode()).digest()
    return digest[0] % _FIFTHS == 0


def _fitted_again(
    inside: OperatorMeasurements, known: OperatorConstants, events: bool, progress: Callable[[int, int], None] | None
) -> tuple[OperatorConstants, set[Key]]:
    """Return constants and corrections with those fitted again that have rows enough, and which these are."""
    rows: list[FamilyConstants] = []
    grids: list[Correction] = []
    refitted: set[Key] = set()
    samples = samples_of(inside, known)
    for done, (key, sample) in enumerate(samples.items()):
        if len(sample) >= FEWEST_LEFT:
            constants, grid = fitted(key, sample, "the rows that are not held out", events=events)
            refitted.add(key)
            rows.append(constants)
            grids += [] if grid is None else [replace(grid, dtype=constants.dtype)]
        if progress is not None:
            progress(done + 1, len(samples))
    plain = known.with_rows(tuple(rows))
    return OperatorConstants(plain.rows, (*plain.corrections, *grids)), refitted


def defaults(rows: Sequence[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants for all GPUs of those of measured ones, by family and type; of bf16 once more for all types."""
    for family, dtype in sorted({(row.family, row.dtype) for row in rows}):
        of = [row for row in rows if (row.family, row.dtype) == (family, dtype)]
        medians: dict[str, Any] = {name: float(np.median([getattr(row, name) for row in of])) for name in _NUMBERS}
        source = f"median of {', '.join(row.gpu for row in of)}"
        yield FamilyConstants(gpu=ANY, family=family, dtype=dtype, source=source, **medians)
        if dtype == "bf16":
            yield FamilyConstants(gpu=ANY, family=family, dtype=ANY, source=source, **medians)


def estimate_held_out_shapes(
    measured: OperatorMeasurements, progress: Callable[[int, int], None] | None = None
) -> Estimated:
    """Return the costs of the held-out fifth by constants that never saw it, and why other rows have none."""
    out = held_out_rows(measured)
    rows, others = np.flatnonzero(out).tolist(), np.flatnonzero(~out).tolist()
    kept = [row for row in others if usual(measured.calls[row][0], measured.gpu[row], float(measured.time_s[row]))]
    constants, refitted = _fitted_again(measured.select(kept), shipped_constants(), measured.events, progress)
    predicted = np.full(len(measured), np.nan)
    reasons = dict.fromkeys(others, "its shape is in the four fifths that are fitted to")
    estimated, why = estimate_measurements(measured.select(rows), constants)
    reasons |= {rows[position]: reason for position, reason in why.items()}
    for position, row in enumerate(rows):
        if key_of(measured.gpu[row], measured.calls[row]) in refitted:
            predicted[row] = estimated[position]
        else:
            reasons.setdefault(row, "too few rows are left to fit its family to")
    return predicted, reasons


def estimate_without_each_gpu(measured: OperatorMeasurements) -> Estimated:
    """Return the estimates of each GPU by its datasheet, the constants of its kin, and the medians of the others."""
    predicted = np.full(len(measured), np.nan)
    reasons: dict[int, str] = {}
    for gpu, rows in measured.by_gpu().items():
        part, why = estimate_measurements(measured.select(rows), without_gpu(shipped_constants(), gpu))
        predicted[rows] = part
        reasons |= {rows[position]: reason for position, reason in why.items()}
    return predicted, reasons


def without_gpu(constants: OperatorConstants, gpu: Gpu) -> OperatorConstants:
    """Return constants as they would be had a GPU never been measured.

    Its rows and corrections are gone, and the medians are taken over the others.
    """
    others = [row for row in constants.rows if row.gpu not in (gpu.name, ANY)]
    corrections = tuple(grid for grid in constants.corrections if grid.gpu != gpu.name)
    return OperatorConstants((*others, *defaults(others)), corrections)


def fit_correction(
    sample: Timings,
    constants: FamilyConstants,
    nodes: Sequence[int],
    smooth: float = 0.3,
    ridge: float = 0.02,
    rounds: int = 4,
) -> Correction:
    """Return the grid that brings predictions by some constants nearest to measurements and stays smooth.

    Parameters
    ----------
    nodes : sequence of int
        Nodes per size, spread evenly between the least and greatest measured one.
    smooth, ridge : float
        Weights of the squared differences between neighbours and of the squares themselves, against one measurement.
    rounds : int
        Rounds of reweighting, which turn squared errors into absolute ones.
    """
    octaves_ND = np.log2(sample.columns.coordinates_ND)
    axes = tuple(
        (float(low), float(high), count if high > low else 1)
        for low, high, count in zip(octaves_ND.min(axis=0), octaves_ND.max(axis=0), nodes, strict=True)
    )
    kernel_N = np.maximum(sample.time_s_N - constants.event_s, 0.1 * sample.time_s_N)
    target_N = np.clip(np.log(kernel_N / (predict(sample, constants) - constants.event_s)), -LIMIT, LIMIT)
    nodes_NC, weights_NC = corners(octaves_ND, axes)
    penalty = _penalty(axes, smooth, ridge)
    values_V = np.zeros(len(penalty))
    trust_N = np.ones(len(target_N))
    for _ in range(rounds):
        values_V = _solve(nodes_NC, weights_NC, target_N, trust_N, penalty)
        left_N = target_N - (values_V[nodes_NC] * weights_NC).sum(axis=1)
        trust_N = 1.0 / np.maximum(np.abs(left_N) / NOISE, 0.2)
    return Correction(
        gpu=constants.gpu,
        family=constants.family,
        dtype=constants.dtype,
        axes=axes,
        log_factor_V=np.clip(values_V, -LIMIT, LIMIT),
        rows=len(sample),
    )


def _solve(
    nodes_NC: IntArray,
    weights_NC: FloatArray,
    target_N: FloatArray,
    trust_N: FloatArray,
    penalty: FloatArray,
) -> FloatArray:
    """Return the node values of least weighted squares with a penalty."""
    matrix, right = penalty.copy(), np.zeros(len(penalty))
    for column in range(nodes_NC.shape[1]):
        weight_N = trust_N * weights_NC[:, column]
        np.add.at(right, nodes_NC[:, column], weight_N * target_N)
        for other in range(nodes_NC.shape[1]):
            np.add.at(matrix, (nodes_NC[:, column], nodes_NC[:, other]), weight_N * weights_NC[:, other])
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


def _penalty(axes: Sequence[tuple[float, float, int]], smooth: float, ridge: float) -> FloatArray:
    counts = [count for _, _, count in axes]
    index = np.arange(int(np.prod(counts))).reshape(counts)
    matrix = np.eye(index.size) * ridge
    for axis in range(len(counts)):
        lower, upper = np.delete(index, -1, axis).ravel(), np.delete(index, 0, axis).ravel()
        for a, b, sign in ((lower, lower, 1), (upper, upper, 1), (lower, upper, -1), (upper, lower, -1)):
            np.add.at(matrix, (a, b), sign * smooth)
    return matrix
