"""The price of an operator: work of its family, constants of its GPU, the roofline over both."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.operators.attention import check_kernel
from traincast.estimate.operators.calls import element_bytes
from traincast.estimate.operators.constants import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.contract import FAMILIES, FloatArray, OperatorCall, OperatorTime, Work
from traincast.estimate.operators.corrections import Correction
from traincast.estimate.operators.roofline import Machine, Parts, WorkColumns, columns_of, least_s, roofline, tile_of
from traincast.hardware.gpu import PEAK_OF_DTYPE, Gpu
from traincast.job.feasible import check_gpu

_KEPT = 65536
"""Prices that are remembered; a forecast has a few hundred distinct ones."""
_RANK = ("low", "medium", "high")


def price_operator(call: OperatorCall, gpu: Gpu, constants: OperatorConstants | None = None) -> OperatorTime:
    """Return the time of an operator on a GPU, and why.

    Parameters
    ----------
    call : OperatorCall
        The operator.
    gpu : Gpu
        The accelerator.
    constants : OperatorConstants, optional
        What it sustains; the shipped constants by default.

    Returns
    -------
    OperatorTime

    Raises
    ------
    UnknownNameError
        If the family, direction, dtype or an option is unknown; the message lists the known ones.
    ConfigError
        If a size is wrong, the GPU has no peak or no matrix units for the dtype, or it does not run the
        attention kernel that is asked for.
    """
    return _remembered(call, gpu, None) if constants is None else _price(call, gpu, constants)


def price_calls(calls: Sequence[OperatorCall], gpu: Gpu, constants: OperatorConstants | None = None) -> FloatArray:
    """Return the seconds of many operators, computed as columns; each distinct call is priced once.

    Parameters
    ----------
    calls : sequence of OperatorCall
        The operators.
    gpu : Gpu
        The accelerator.
    constants : OperatorConstants, optional
        What it sustains; the shipped constants by default.

    Returns
    -------
    array of float
        Seconds, one per call, the same as of `price_operator`.

    Raises
    ------
    UnknownNameError, ConfigError
        As `price_operator`.
    """
    known = constants or shipped_constants()
    place = {call: position for position, call in enumerate(dict.fromkeys(calls))}
    times_U = np.zeros(len(place))
    groups: dict[tuple[object, ...], list[tuple[int, Work]]] = {}
    dtype_of: dict[tuple[object, ...], str] = {}
    for call, position in place.items():
        work = work_of(call)
        if work.parts:
            times_U[position] = price_calls(work.parts, gpu, known).sum()
            continue
        key = (work.constants, call.dtype, work.compute_dtype, work.tiling is None, len(work.coordinates))
        groups.setdefault(key, []).append((position, work))
        dtype_of[key] = call.dtype
    for group, members in groups.items():
        works = [work for _, work in members]
        machine, chosen = (
            machine_for(gpu, dtype_of[group], works[0]),
            known.find(gpu, works[0].constants, dtype_of[group]),
        )
        columns = columns_of(works)
        parts = roofline(columns, machine, chosen)
        corrected_N, _ = _corrected(columns, machine, parts.time_N, known.correction(chosen))
        times_U[[position for position, _ in members]] = corrected_N
    return times_U[[place[call] for call in calls]]


def work_of(call: OperatorCall) -> Work:
    """Return what an operator does, apart from any GPU.

    Raises
    ------
    UnknownNameError
        If the family, its direction, an option or the dtype is unknown; the message lists the known ones.
    ConfigError
        If a size is wrong.
    """
    element_bytes(call.dtype)
    return FAMILIES.get(call.family)(call)


@lru_cache(maxsize=_KEPT)
def _remembered(call: OperatorCall, gpu: Gpu, _: None) -> OperatorTime:
    return _price(call, gpu, shipped_constants())


def _price(call: OperatorCall, gpu: Gpu, constants: OperatorConstants) -> OperatorTime:
    work = work_of(call)
    check_kernel(call, gpu)
    if work.parts:
        return _sum([(part, price_operator(part, gpu, constants)) for part in work.parts])
    chosen = constants.find(gpu, work.constants, call.dtype)
    machine = machine_for(gpu, call.dtype, work)
    columns = columns_of([work])
    parts = roofline(columns, machine, chosen)
    time_N, factor_N = _corrected(columns, machine, parts.time_N, constants.correction(chosen))
    return _explained(work, columns, machine, chosen, parts, float(time_N[0]), float(factor_N[0]))


def _corrected(
    columns: WorkColumns, machine: Machine, time_N: FloatArray, correction: Correction | None
) -> tuple[FloatArray, FloatArray]:
    """Return the times after a correction, never below the peaks, and its factors."""
    if correction is None or columns.coordinates_ND.shape[1:] != (len(correction.axes),):
        return time_N, np.ones(len(time_N))
    factor_N = correction.factors(columns.coordinates_ND)
    return np.maximum(time_N * factor_N, least_s(columns, machine)), factor_N


def machine_for(gpu: Gpu, dtype: str, work: Work) -> Machine:
    """Return what the roofline needs of a GPU for some work; a peak of 0 where only memory can bind.

    Raises
    ------
    ConfigError
        If the work is a matrix product and the GPU has no peak for its type, or no units that take the type's
        scales.
    """
    asked = work.compute_dtype or dtype
    if work.tiling is None and not gpu.has_peak(asked):
        return Machine(0.0, gpu.memory_bytes_per_s, gpu.sms)
    if work.tiling is not None and asked in PEAK_OF_DTYPE:
        _check_products(asked, gpu)
    return Machine(gpu.peak_flops_per_s(asked), gpu.memory_bytes_per_s, gpu.sms)


def _check_products(dtype: str, gpu: Gpu) -> None:
    """Refuse products of a type by the rule that jobs are refused by: a peak of 8 bits takes no scales of blocks."""
    if gpu.has_peak(dtype):
        why = _refusal(dtype, gpu)
        if why:
            raise ConfigError(why, "dtype")
        return
    known = ", ".join(name for name in PEAK_OF_DTYPE if gpu.has_peak(name) and not _refusal(name, gpu))
    raise ConfigError(f"{gpu.name} has no known peak for {dtype}; it has one for {known}", "dtype")


@lru_cache(maxsize=1024)
def _refusal(dtype: str, gpu: Gpu) -> str:
    try:
        check_gpu(dtype, gpu)
    except InfeasibleError as error:
        return str(error)
    return ""


def _explained(
    work: Work,
    columns: WorkColumns,
    machine: Machine,
    constants: FamilyConstants,
    parts: Parts,
    time_s: float,
    factor: float,
) -> OperatorTime:
    compute_s, memory_s, latency_s = (float(each[0]) for each in (parts.compute_N, parts.memory_N, parts.latency_N))
    bound = max((compute_s, "compute"), (memory_s, "memory"), (latency_s, "latency"))[1]
    reached = work.bytes_moved / machine.bandwidth_bytes_per_s
    if bound == "compute":
        reached = work.flops / machine.peak_flops_per_s
    terms = [("compute s", compute_s), ("memory s", memory_s), ("latency s", latency_s)]
    if columns.tiled:
        terms += _tile_terms(columns, machine, parts)
    terms += [("sustained compute share", constants.compute), ("sustained memory share", constants.memory)]
    if factor != 1.0:
        terms.append(("measured correction", factor))
    return OperatorTime(
        time_s=time_s,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        bound=bound,
        utilisation=reached / time_s,
        source=constants.source or "datasheet",
        confidence=constants.confidence,
        terms=(*terms, *work.terms),
    )


def _tile_terms(columns: WorkColumns, machine: Machine, parts: Parts) -> list[tuple[str, float]]:
    tile_m, tile_n = tile_of(columns, int(parts.tile_N[0]))
    blocks, waves = float(parts.blocks_N[0]), float(parts.waves_N[0])
    return [
        ("tile rows", tile_m),
        ("tile columns", tile_n or float(columns.n_N[0])),
        ("parts of the reduction", float(parts.split_N[0])),
        ("blocks", blocks),
        ("waves", waves),
        ("wave efficiency", blocks / (machine.sms or 1) / waves),
    ]


def _sum(priced: Sequence[tuple[OperatorCall, OperatorTime]]) -> OperatorTime:
    """Return operators that follow each other as one; it is bound as the longest of them."""
    times = [time for _, time in priced]
    total = sum(time.time_s for time in times)
    if not total:
        raise ConfigError("an operator of no time has no price", "shape")
    longest = max(times, key=lambda time: time.time_s)
    return OperatorTime(
        time_s=total,
        flops=sum(time.flops for time in times),
        bytes_moved=sum(time.bytes_moved for time in times),
        bound=longest.bound,
        utilisation=sum(time.utilisation * time.time_s for time in times) / total,
        source=longest.source,
        confidence=min((time.confidence for time in times), key=_RANK.index),
        terms=tuple((f"{call.family} {'x'.join(map(str, call.shape))} s", time.time_s) for call, time in priced),
    )
