"""The engine: durations in, times out. Knows arrays and errors only.

`traincast.engine.reference` says what the times mean; `traincast.engine.chains` finds the same from an order of visits
that it keeps, and `traincast.engine.kernel` in numba. Here one of them is chosen and run.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from traincast.engine.chains import run_chains
from traincast.engine.graph import Graph, find_cycle
from traincast.engine.reference import FloatArray, Times, run_reference
from traincast.errors import DeadlockError, ProgramError

KERNEL_FROM_OPS = 500_000
"""Up to so many operations in a process pure Python ends before numba is imported and its cache loaded."""

ENGINES = ("auto", "reference", "kernel")


def run(graph: Graph, duration_s_N: FloatArray, engine: str = "auto") -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turn durations into times.

    Returns
    -------
    ready_s_N, start_s_N, end_s_N : float array [N]
        Seconds from the start of the step.

    Raises
    ------
    ProgramError
        If a duration is unknown (NaN), infinite or negative.
    DeadlockError
        If operations wait for each other for ever.
    """
    bad = np.flatnonzero(~((duration_s_N >= 0) & np.isfinite(duration_s_N)))
    if len(bad):
        raise ProgramError(f"operation {bad[0]} has a duration of {duration_s_N[bad[0]]} s")
    ready_N, start_N, end_N, done = _engine(engine, len(graph))(graph, duration_s_N)
    if done < len(graph):
        raise DeadlockError(f"{len(graph) - done} of {len(graph)} operations wait for ever", find_cycle(graph))
    return ready_N, start_N, end_N


def _engine(name: str, ops: int) -> Callable[[Graph, FloatArray], Times]:
    if name not in ENGINES:
        raise ProgramError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    if name == "kernel" or (name == "auto" and _pays(ops)):
        if not find_spec("numba"):
            raise ProgramError("the engine 'kernel' needs numba: pip install 'traincast[fast]'")
        from traincast.engine.kernel import run_kernel

        return run_kernel
    return run_chains if name == "auto" else run_reference


def _pays(ops: int) -> bool:
    """Return whether loading the kernel pays: for a large program, or where a process simulates on and on.

    All engines agree bit for bit, so what ran before changes no result.
    """
    if "traincast.engine.kernel" in sys.modules:
        return True
    _simulated[0] += ops
    return _simulated[0] >= KERNEL_FROM_OPS and find_spec("numba") is not None


_simulated = [0]
"""Operations that this process has run without the kernel."""
