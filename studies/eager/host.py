"""What the host needs to launch kernels where a framework gives no floor of its own.

A GPU runs no faster than its host launches: a layer takes the longer of its kernels' device time and
``kernels * launch``.
"""

EAGER_LAUNCH_S = 5e-6
"""Per kernel launched by eager PyTorch: about 5 us of Python, dispatcher and driver (4-6 us on server CPUs of 2023 to
2025; TorchTitan and PyTorch CUDA-graph posts report 4-10 us); the launch itself takes about 2.5 us (CUDA launch
latency benchmarks of NVIDIA's CUDA Graphs posts)."""

AUTOGRAD_LAUNCH_S = 4e-6
"""Per kernel of a backward pass: the autograd engine runs in C++ without Python, the smaller part of the eager launch;
an estimate."""


def host_floor_s(kernels: int, *, backward: bool = False) -> float:
    """Return the host time to launch some kernels, in seconds; autograd launches those of a backward pass."""
    return kernels * (AUTOGRAD_LAUNCH_S if backward else EAGER_LAUNCH_S)
