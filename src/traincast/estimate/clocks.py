"""How long GEMMs take in a step compared with their timings alone, by the clock that the power limit allows.

Long GEMMs draw more than most GPUs may: the limiter lowers the clock until the mean over some milliseconds is within
the limit. A kernel is timed alone for less than that, a step runs for seconds. At voltages near their least, a FLOP
takes the same energy at every clock, and so::

    limited rate = limit / energy of a FLOP                    that the power limit sustains
    clock        = min(1, limited rate / datasheet's peak)     share of the clock at which the peak is stated, smoothed
    slowdown     = clock of the timings / clock

The energy is that of all a GPU draws while it runs long GEMMs, one value a generation, of bf16; in 8 and 4 bits it is
as much less as the peak of the datasheet is higher. The clock is that of all GEMMs of a step, small ones too, and of
the attention between them, as a layer is shorter than what the limiter averages over. Values and what they rest on:
`data/gpus/generations.csv`, docs/published-runs.md.

Another peak than the datasheet's leaves the energy of a FLOP and the clock of the rest as they are: GEMMs reach it up
to the limited rate of their own type, or to what the part reaches by its datasheet (`power_limited`). So a higher peak
may gain nothing, and never loses.
"""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from msgspec.structs import replace

from traincast.hardware.dtypes import PEAK_OF_DTYPE
from traincast.hardware.gpu import Gpu, find_gpu, gpu_names, load_gpu
from traincast.workload.ops import FloatArray

_PICO, _TERA = 1e-12, 1e12
_BF16 = "bf16_dense_flops_per_s"
_SHARPNESS = 8
"""How sharply the limit sets in: what it just allows at the full clock takes 9 % longer, what it allows with a fifth to
spare 2 %. Assumed."""
_ALONE_S, _HELD_S = 7e-4, 2e-3
"""Longest GEMM whose loop runs at the full clock, and from which on the limiter has lowered it as far as it does.
Source: timings of GEMMs on five GPUs, and on two that are not held back (docs/published-runs.md)."""
_TURNS = 6
_FREE = 1.005
"""Slowdown up to which the power limit holds nothing back."""
_PEAKS = tuple(dict.fromkeys(f"{each}_dense_flops_per_s" for each in PEAK_OF_DTYPE.values()))


def gemm_slowdown(gpu: Gpu) -> float:
    """Return how much longer GEMMs take in a step than timed alone; 1 where power or energy of a GPU are not known."""
    return slowdown_of(gpu, gpu.generation.gemm_pj_per_flop, gpu.generation.timed_clock)


def slowdown_of(gpu: Gpu, energy_pj_per_flop: float | None, timed_clock: float) -> float:
    """Return how much longer GEMMs take in a step than timed alone, at an energy and a clock of their timings.

    Kernels of a step differ in what they draw: near the limit some are held back already.
    """
    limited = _limited_rates(gpu, energy_pj_per_flop)
    if _BF16 not in limited:
        return 1.0
    sheet = find_gpu(gpu.name)
    full = limited[_BF16] if sheet is None else sheet.bf16_dense_flops_per_s
    asked: float = ((full or 0.0) / limited[_BF16]) ** _SHARPNESS
    return float(timed_clock * (1.0 + asked) ** (1 / _SHARPNESS))


def loop_slowdown(gpu: Gpu, time_s_N: FloatArray) -> FloatArray:
    """Return how much longer GEMMs take where a benchmark runs each again and again, by their times at the full clock.

    The limiter averages over some milliseconds: a loop of a short GEMM is over before, one of a long GEMM is not.
    """
    held_N = np.log(np.maximum(time_s_N, _ALONE_S) / _ALONE_S) / np.log(_HELD_S / _ALONE_S)
    found_N: FloatArray = 1.0 + (_most_in_a_loop(gpu) - 1.0) * np.minimum(held_N, 1.0)
    return found_N


def at_full_clock(gpu: Gpu, time_s_N: FloatArray) -> FloatArray:
    """Return what GEMMs take at the full clock of which a benchmark timed each in a loop of its own."""
    found_N = time_s_N
    # A step changes the slowdown by an eighth of what it changes the time.
    for _ in range(_TURNS):
        found_N = time_s_N / loop_slowdown(gpu, found_N)
    return found_N


def held_back(gpu: Gpu, time_s: float) -> bool:
    """Say whether a loop of a GEMM that took so long ran at a lower clock than those of shorter ones."""
    return _most_in_a_loop(gpu) > 1.0 and time_s > _ALONE_S


def _most_in_a_loop(gpu: Gpu) -> float:
    """Return the slowdown of the longest GEMMs in a loop; 1 of a part whose limit is far from what they draw."""
    limited = gemm_slowdown(gpu) > gpu.generation.timed_clock * _FREE
    return gpu.generation.loop_slowdown if limited else 1.0


def slowest_of(gpu: Gpu, count: int) -> float:
    """Return how much longer the slowest of so many GPUs is expected to take than one of them: 1 of a single one.

    The largest of normal values is expected near this quantile (Blom 1958).
    """
    quantile = (count - 0.375) / (count + 0.25)
    return 1.0 + gpu.generation.chip_deviation * NormalDist().inv_cdf(quantile)


def power_limited(gpu: Gpu) -> Gpu:
    """Return a GPU with the peaks that its GEMMs reach before `gemm_slowdown`; that of a datasheet has its own."""
    sheet, found = find_gpu(gpu.name), {}
    for name, limited in _limited_rates(gpu, gpu.generation.gemm_pj_per_flop).items():
        stated, peak = (None if sheet is None else getattr(sheet, name)), getattr(gpu, name)
        if sheet is None:
            found[name] = min(peak, limited)
        elif stated is not None and peak != stated:
            found[name] = max(stated, limited) if peak >= limited else peak * max(1.0, stated / limited)
    return replace(gpu, **found) if found else gpu


def power_notes(gpu: Gpu) -> Iterator[str]:
    """Say of each peak that is higher than the datasheet's what the power limit leaves of it in GEMMs of a step."""
    sheet = find_gpu(gpu.name)
    for name, limited in _limited_rates(gpu, gpu.generation.gemm_pj_per_flop).items():
        peak, stated = getattr(gpu, name), (None if sheet is None else getattr(sheet, name))
        if peak > max(limited, stated or 0.0):
            kind = name.removesuffix("_dense_flops_per_s")
            yield (
                f"the power limit of {gpu.tdp_w:g} W holds {kind} GEMMs of a step to {limited / _TERA:.4g} of the "
                f"{peak / _TERA:.4g} TFLOP/s that gpu.{name} says; a higher gpu.tdp_w allows more"
            )


def _limited_rates(gpu: Gpu, energy: float | None) -> dict[str, float]:
    """Return the FLOP per second that the power limit sustains, by the name of each peak that the GPU has."""
    like = find_gpu(gpu.name) or _of_generation(gpu.architecture)
    if energy is None or gpu.tdp_w is None or like is None or gpu.bf16_dense_flops_per_s is None:
        return {}
    bf16 = gpu.tdp_w / (energy * _PICO)
    base = like.bf16_dense_flops_per_s or gpu.bf16_dense_flops_per_s
    return {name: bf16 * (getattr(like, name) or getattr(gpu, name)) / base for name in _PEAKS if getattr(gpu, name)}


def _of_generation(architecture: str) -> Gpu | None:
    """Return the first GPU of a generation, for what a FLOP takes in each type other than bf16."""
    return next((each for each in map(load_gpu, gpu_names()) if each.architecture == architecture), None)
