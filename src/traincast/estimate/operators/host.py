"""What the host needs to launch kernels, as documented constants. Operator prices are device time only.

A GPU runs no faster than its host launches: a layer takes the longer of its kernels' device time
and ``kernels * launch``. These are priors for frameworks that give no floor of their own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostConstant:
    """A constant of the host with its source.

    Parameters
    ----------
    value : float
        In the unit of its name.
    source : str
        Where it comes from.
    """

    value: float
    source: str


EAGER_LAUNCH_S = HostConstant(
    5e-6,
    "PyTorch eager: about 5 us of Python, dispatcher and driver per kernel (4-6 us on 2023-2025 server CPUs; "
    "TorchTitan and PyTorch CUDA-graph posts report 4-10 us); the launch itself takes about 2.5 us "
    "(CUDA launch latency benchmarks of NVIDIA's CUDA Graphs posts)",
)
"""Seconds of host time per kernel launched by eager PyTorch."""

AUTOGRAD_LAUNCH_S = HostConstant(
    4e-6, "the autograd engine runs in C++ without Python: the smaller part of the eager launch; an estimate"
)
"""Seconds of host time per kernel of a backward pass."""

GRAPH_LAUNCH_S = HostConstant(
    1.5e-6,
    "CUDA graphs: 1-2 us between the kernels of a replayed graph (NVIDIA blog, Constant-time launch for "
    "straight-line CUDA graphs, 2024, and Getting started with CUDA graphs, 2019: 3.4 us falls to about 1.3 us)",
)
"""Seconds per kernel of a replayed CUDA graph."""

DEVICE_FLOOR_S = HostConstant(
    3e-6,
    "fits of three constants to bf16 products of five GPUs: 3 to 4 us (docs/measured.md, kernels); "
    "timings with CUDA events show 20 to 60 us, which is the timing and no part of a step",
)
"""Seconds that a kernel takes on the device however little it does."""


def host_floor_s(kernels: int, *, backward: bool = False, cuda_graphs: bool = False) -> float:
    """Return the host time to launch some kernels.

    Parameters
    ----------
    kernels : int
        How many.
    backward : bool
        They are launched by the autograd engine.
    cuda_graphs : bool
        They are replayed as a CUDA graph.

    Returns
    -------
    float
        Seconds.
    """
    if cuda_graphs:
        return kernels * GRAPH_LAUNCH_S.value
    return kernels * (AUTOGRAD_LAUNCH_S if backward else EAGER_LAUNCH_S).value
