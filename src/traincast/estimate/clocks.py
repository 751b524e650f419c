"""How long GEMMs take in a step beside their timings alone, by the clock that the power limit allows.

Long GEMMs draw more than most GPUs may: the limiter lowers the clock until the mean over some milliseconds is within
the limit. A kernel is timed alone for less than that, a step runs for seconds. At voltages near their least, a FLOP
takes the same energy at every clock, and so::

    clock    = min(1, limit / (energy of a FLOP * peak))       share of the clock at which the peak is stated
    slowdown = clock of the timings / clock

The energy is that of all a GPU draws while it runs long GEMMs, one value a generation, of bf16; in 8 and 4 bits it is
as much less as the peak is higher. The clock is that of all GEMMs of a step, small ones too, as a layer is shorter than
what the limiter averages over. Values and what they rest on: `data/gpus/generations.csv`, docs/measured.md.
"""

from traincast.hardware.gpu import Gpu

_PICO = 1e-12


def gemm_slowdown(gpu: Gpu) -> float:
    """Return how much longer GEMMs take in a step than timed alone; 1 where power or energy of a GPU are not known."""
    generation = gpu.generation
    if generation.gemm_pj_per_flop is None or gpu.tdp_w is None or gpu.bf16_dense_flops_per_s is None:
        return 1.0
    full_w = generation.gemm_pj_per_flop * _PICO * gpu.bf16_dense_flops_per_s
    return generation.timed_clock / min(1.0, gpu.tdp_w / full_w)
