"""What an operator costs: work of its family, constants of its GPU, the roofline over both."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from os import PathLike
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.operators.constants import (
    FamilyConstants,
    OperatorConstants,
    load_constants,
    shipped_constants,
)
from traincast.estimate.operators.families import FAMILIES, Work, operator_shape, work_of
from traincast.estimate.operators.roofline import Machine, Parts, WorkColumns, columns_of, least_s, roofline, tile_of
from traincast.hardware.clusters import gpu_named
from traincast.hardware.dtypes import ELEMENT_TYPES, PEAK_OF_DTYPE
from traincast.hardware.gpu import Gpu
from traincast.job.precision import check_gpu
from traincast.names import find_name
from traincast.registry import known_name
from traincast.units import format_time
from traincast.workload.ops import FloatArray, OperatorCall

DEFAULT_GPU = "h100"
_KEPT = 65536
"""Costs that are remembered; a forecast has a few hundred distinct ones."""
_CONFIDENCE = ("low", "medium", "high")


class OperatorTime(Struct, frozen=True, kw_only=True):
    """The cost of an operator and why."""

    time_s: float
    """Seconds on the device; what the host needs to launch it is not in it."""
    flops: float
    """FLOP that the result needs (causal attention: half)."""
    bytes_moved: float
    """Least traffic with the GPU's memory."""
    bound: str
    """``compute``, ``memory`` or ``latency``: which term is the largest."""
    utilisation: float
    """Share of the binding peak (FLOP/s or bytes/s) that is reached."""
    source: str
    """Where the constants come from."""
    confidence: str
    """``high``, ``medium`` or ``low``."""
    terms: tuple[tuple[str, float], ...] = ()
    """The explanation: name with its unit, value."""


class OperatorCost(Struct, frozen=True, kw_only=True):
    """An operator on a GPU with its cost, for those who ask for it by name."""

    call: OperatorCall
    gpu: str
    """Name of the accelerator."""
    cost: OperatorTime
    assumptions: tuple[Note, ...] = ()
    """What was not specified."""

    def __repr__(self) -> str:
        """Say what it costs, in a line."""
        took = f"{format_time(self.cost.time_s)}, bound by {self.cost.bound}"
        return f"<OperatorCost: {self.call.family} {self.call.shape} on {self.gpu}, {took}>"

    @property
    def price(self) -> OperatorTime:
        """Another name of `cost`."""
        return self.cost


def operator_cost(
    family: str,
    sizes: Mapping[str, int],
    *,
    gpu: str | PathLike[str] | Gpu | None = None,
    dtype: str = "bf16",
    direction: str = "forward",
    causal: bool = False,
    window: int = 0,
    options: Mapping[str, str] | None = None,
    constants: str | None = None,
) -> OperatorCost:
    """Return the cost of an operator that is described by names; on h100, as an assumption, where no GPU is given.

    Parameters
    ----------
    family, sizes : str, mapping
        ``gemm``, ``attention``, ``norm``, ..., and its sizes by name.
    gpu : str, path or Gpu, optional
        The accelerator: its name, a cluster file with its ``[gpu]``, or itself.
    dtype, direction, causal, window, options
        As of `OperatorCall`.
    constants : str, optional
        File of ``traincast calibrate --gpu``; its constants go before the shipped ones.

    Raises
    ------
    TraincastError
        If a name is unknown, a size is missing or wrong, or the file cannot be read.
    """
    family = known_name(FAMILIES.kind, family, FAMILIES.names())
    call = OperatorCall(
        family=family,
        shape=operator_shape(family, sizes),
        dtype=find_name(dtype, ELEMENT_TYPES) or dtype,
        direction=direction,
        causal=causal,
        window=window,
        options=tuple(sorted((options or {}).items())),
    )
    accelerator, known = gpu_named(gpu or DEFAULT_GPU), shipped_constants()
    if constants is not None:
        known = known.with_rows(tuple(load_constants(constants)))
    note = Note("gpu-default", f"no GPU was given; taken as {accelerator.name}")
    cost = estimate_operator(call, accelerator, known)
    return OperatorCost(call=call, gpu=accelerator.name, cost=cost, assumptions=() if gpu else (note,))


def estimate_operator(call: OperatorCall, gpu: Gpu, constants: OperatorConstants | None = None) -> OperatorTime:
    """Return the time of an operator on a GPU, and why; by the shipped constants where no others are given.

    Raises
    ------
    UnknownNameError
        If the family, direction, dtype or an option is unknown; the message lists the known ones.
    ConfigError
        If a size is wrong, the GPU has no peak or no matrix units for the dtype, or it does not run the
        attention kernel that is asked for.
    """
    return estimate_operators((call,), gpu, constants)[0]


def estimate_operators(
    calls: Sequence[OperatorCall], gpu: Gpu, constants: OperatorConstants | None = None
) -> list[OperatorTime]:
    """Return the times of several operators, as `estimate_operator` does; together they take less than one by one.

    Raises
    ------
    UnknownNameError, ConfigError
        As `estimate_operator`.
    """
    if constants is not None:
        return _estimated(calls, gpu, constants)
    kept = {call: _by_shipped_constants(call, gpu) for call in calls}
    new = [call for call, found in kept.items() if not found]
    for call, time in zip(new, _estimated(new, gpu, shipped_constants()), strict=True):
        kept[call].append(time)
    return [kept[call][0] for call in calls]


@lru_cache(maxsize=_KEPT)
def _by_shipped_constants(call: OperatorCall, gpu: Gpu) -> list[OperatorTime]:  # noqa: ARG001
    """Return what holds what shipped tables say of a call, once that is known: of no job, so that all jobs share it."""
    return []


def _estimated(calls: Sequence[OperatorCall], gpu: Gpu, constants: OperatorConstants) -> list[OperatorTime]:
    found: dict[int, OperatorTime] = {}
    groups: dict[tuple[object, ...], list[tuple[int, str, Work]]] = {}
    for place, call in enumerate(calls):
        work = work_of(call)
        FAMILIES.get(call.family).check(call, gpu)
        if work.parts:
            times = estimate_operators(work.parts, gpu, constants)
            found[place] = _sum(list(zip(work.parts, times, strict=True)))
        else:
            groups.setdefault(_alike(call, work), []).append((place, call.dtype, work))
    for members in groups.values():
        places, (dtype, *_), works = zip(*members, strict=True)
        timed = _timed(works, dtype, gpu, constants)
        found.update(zip(places, map(partial(_explained, timed), works, range(len(works))), strict=True))
    return [found[place] for place in range(len(calls))]


def _alike(call: OperatorCall, work: Work) -> tuple[object, ...]:
    """Return what calls have in common whose times are worked out together."""
    types = call.dtype, work.compute_dtype, work.bound_dtype
    return work.constants, types, work.tiling is None, len(work.coordinates)


def estimate_calls(calls: Sequence[OperatorCall], gpu: Gpu, constants: OperatorConstants | None = None) -> FloatArray:
    """Return the seconds of many operators, as `estimate_operator` gives them; each distinct call is worked out once.

    Raises
    ------
    UnknownNameError, ConfigError
        As `estimate_operator`.
    """
    known = constants or shipped_constants()
    place = {call: position for position, call in enumerate(dict.fromkeys(calls))}
    times_U = np.zeros(len(place))
    groups: dict[tuple[object, ...], list[tuple[int, OperatorCall, Work]]] = {}
    for call, position in place.items():
        work = work_of(call)
        if work.parts:
            times_U[position] = estimate_calls(work.parts, gpu, known).sum()
            continue
        groups.setdefault(_alike(call, work), []).append((position, call, work))
    for members in groups.values():
        positions, (call, *_), works = zip(*members, strict=True)
        times_U[list(positions)] = _timed(works, call.dtype, gpu, known).time_N
    return times_U[[place[call] for call in calls]]


class _Timed(NamedTuple):
    """Works of one family and type on a GPU."""

    time_N: FloatArray
    correction_N: FloatArray
    columns: WorkColumns
    machine: Machine
    constants: FamilyConstants
    parts: Parts


def _timed(works: Sequence[Work], dtype: str, gpu: Gpu, known: OperatorConstants) -> _Timed:
    """Return the corrected times of works, never below the peaks."""
    constants = known.find(gpu, works[0].constants, dtype)
    machine, columns = machine_for(gpu, dtype, works[0]), columns_of(works)
    parts, correction = roofline(columns, machine, constants), known.correction(constants)
    if correction is None or columns.coordinates_ND.shape[1:] != (len(correction.axes),):
        return _Timed(parts.time_N, np.ones(len(works)), columns, machine, constants, parts)
    factor_N = correction.factors(columns.coordinates_ND)
    time_N = np.maximum(parts.time_N * factor_N, least_s(columns, machine))
    return _Timed(time_N, factor_N, columns, machine, constants, parts)


def machine_for(gpu: Gpu, dtype: str, work: Work) -> Machine:
    """Return what the roofline needs of a GPU for some work; a peak of 0 where only memory can bind.

    Raises
    ------
    ConfigError
        If the work is a GEMM and the GPU has no peak for its type, or no units that take the type's
        scales.
    """
    asked = work.compute_dtype or dtype
    if work.tiling is None and not gpu.has_peak(asked):
        return Machine(0.0, gpu.memory_bytes_per_s, gpu.sms)
    if work.tiling is not None and asked in PEAK_OF_DTYPE:
        _check_products(asked, gpu)
    bound = work.bound_dtype
    return Machine(
        gpu.peak_flops_per_s(asked),
        gpu.memory_bytes_per_s,
        gpu.sms,
        gpu.generation.matrix_width,
        gpu.generation.group_rows,
        gpu.peak_flops_per_s(bound) if bound is not None and gpu.has_peak(bound) else None,
    )


def _check_products(dtype: str, gpu: Gpu) -> None:
    """Refuse GEMMs of a type by the rule that jobs are refused by: a peak of 8 bits takes no scales of blocks."""
    if gpu.has_peak(dtype):
        why = _refusal(dtype, gpu)
        if why:
            raise ConfigError(why, "dtype")
        return
    known = ", ".join(name for name in PEAK_OF_DTYPE if gpu.has_peak(name) and not _refusal(name, gpu))
    raise ConfigError(f"{gpu.name} has no known peak for {dtype}; it has one for {known}", "dtype")


def _refusal(dtype: str, gpu: Gpu) -> str:
    try:
        check_gpu(dtype, gpu)
    except InfeasibleError as error:
        return str(error)
    return ""


def _explained(timed: _Timed, work: Work, place: int) -> OperatorTime:
    """Return the time of one of some works, and why."""
    parts, machine, constants = timed.parts, timed.machine, timed.constants
    time_s, factor = float(timed.time_N[place]), float(timed.correction_N[place])
    compute_s, memory_s, latency_s = (float(each[place]) for each in (parts.compute_N, parts.memory_N, parts.latency_N))
    bound = max((compute_s, "compute"), (memory_s, "memory"), (latency_s, "latency"))[1]
    reached = work.bytes_moved / machine.bandwidth_bytes_per_s
    if bound == "compute":
        reached = work.flops / machine.bound_flops_per_s
    terms = [("compute s", compute_s), ("memory s", memory_s), ("latency s", latency_s)]
    if timed.columns.tiled:
        terms += _tile_terms(timed.columns, machine, parts, place)
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


def _tile_terms(columns: WorkColumns, machine: Machine, parts: Parts, place: int) -> list[tuple[str, float]]:
    tile_m, tile_n = tile_of(columns, int(parts.tile_N[place]))
    blocks, waves = float(parts.blocks_N[place]), float(parts.waves_N[place])
    again = (machine.group_rows or 0) * float(columns.batch_N[place] - 1) * columns.ragged_N2[place].any()
    return [
        *([("rows computed twice", again)] if again else []),
        ("tile rows", tile_m),
        ("tile columns", tile_n or float(columns.n_N[place])),
        ("parts of the reduction", float(parts.split_N[place])),
        ("blocks", blocks),
        ("waves", waves),
        ("wave efficiency", blocks / (machine.sms or 1) / waves),
    ]


def _sum(timed: Sequence[tuple[OperatorCall, OperatorTime]]) -> OperatorTime:
    """Return operators that follow each other as one; it is bound as the longest of them."""
    times = [time for _, time in timed]
    total = sum(time.time_s for time in times)
    if not total:
        raise ConfigError("an operator that takes no time has no cost", "shape")
    longest = max(times, key=lambda time: time.time_s)
    return OperatorTime(
        time_s=total,
        flops=sum(time.flops for time in times),
        bytes_moved=sum(time.bytes_moved for time in times),
        bound=longest.bound,
        utilisation=sum(time.utilisation * time.time_s for time in times) / total,
        source=longest.source,
        confidence=min((time.confidence for time in times), key=_CONFIDENCE.index),
        terms=tuple((f"{call.family} {'x'.join(map(str, call.shape))} s", time.time_s) for call, time in timed),
    )
