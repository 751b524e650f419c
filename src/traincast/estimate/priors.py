"""How far a factor may be from 1 before a run is seen: the prior of the fit.

Each number is a standard deviation of the factor's logarithm.
"""

from traincast.estimate.factors import Key

PRIORS = {
    "gemm": {"all": 0.10, "architecture": 0.08, "chip": 0.10},
    "grouped_gemm": {"all": 0.10, "architecture": 0.20, "framework": 0.20},
    "attention": {"all": 0.30, "architecture": 0.20},
    "memory": {"all": 0.20, "architecture": 0.10},
    "compute": {"all": 0.20, "framework": 0.08},
    "host": {"all": 0.50, "framework": 0.40},
    "fixed": {"all": 0.50, "framework": 0.40},
    "handover": {"all": 0.50},
    "unhidden": {"all": 0.30},
    "transfer": {"all": 0.12, "framework": 0.25},
}
"""By the first word of the class and the level. ``gemm``: two measurements of a product differ by 10 % between
libraries, and so does ``grouped_gemm`` over all GPUs; its generations of kernels, and ``attention``'s, differ by more.
``compute``: clocks fall by 15 to 25 % in long runs, and framework constants have a deviation of .125 together.
``host``: layers take .25 to 1.2 ms to launch. ``transfer``: bus bandwidths of the presets are fitted to measured
collectives within 10 to 15 %. With 0.30 for all grouped GEMMs and 0.20 for all transfers, runs of a source that is
left out were off by 11.3 instead of 11.2 % on average, those with experts by 21.4 instead of 20.2 %. Evidence:
docs/measured.md."""


MEANS = {
    "gemm fp8": 0.78,
    "gemm fp8_block": 0.78,
    "gemm mxfp8": 0.78,
    "grouped_gemm fp8": 0.78,
    "grouped_gemm fp8_block": 0.78,
    "grouped_gemm mxfp8": 0.78,
}
"""Factors expected over all GPUs where that is not 1. Products in 8 bits: training runs sustain .71 of the peak of an
H100 where the tables of inference kernels, which scale their inputs as they go, show .55
(docs/measured.md)."""


def prior_mean(key: Key) -> float:
    """Return the factor that is expected before a run is seen."""
    level, _, cost_class = key
    return MEANS.get(cost_class, 1.0) if level == "all" else 1.0


def prior_deviation(key: Key) -> float:
    """Return the prior deviation of the logarithm of a factor."""
    level, _, cost_class = key
    return PRIORS[cost_class.split(" ", maxsplit=1)[0]][level]
