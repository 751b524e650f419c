"""The engine: durations in, times out. Knows arrays and errors only.

`traincast.engine.reference` says what the times mean; `traincast.engine.chains` finds the same from an order of visits
that it keeps, and `traincast.engine.kernel` in numba. Here one of them is chosen and run.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from traincast.engine.chains import chains_of, run_chains
from traincast.engine.graph import Graph, find_cycle
from traincast.engine.reference import FloatArray, Times, run_reference
from traincast.errors import DeadlockError, ProgramError

KERNEL_FROM_CHAINS = 4_000
"""Up to so many chains of a program pure Python ends a step, which runs some ten times at 1 to 2 us a chain, before
the kernel is loaded, which takes 50 ms or so. What ran before in the process does not matter."""

_COUNTED_TO = 40
"""Operations, in so many of these, from which on chains are not counted: long ones are no longer than that."""

_SEVERAL = 3
"""Steps as long as one that a process simulates at least where its engine is ``several``: others may be shorter."""

ENGINES = ("auto", "several", "fast", "reference", "kernel")
"""``auto`` goes by the program alone, for a process that simulates one step, ``several`` for one that simulates
some; ``fast`` is the kernel where numba is installed, which pays where a process simulates many. All agree bit
for bit."""


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
    ready_N, start_N, end_N, done = _engine(engine, graph)(graph, duration_s_N)
    if done < len(graph):
        raise DeadlockError(f"{len(graph) - done} of {len(graph)} operations wait for ever", find_cycle(graph))
    return ready_N, start_N, end_N


def _engine(name: str, graph: Graph) -> Callable[[Graph, FloatArray], Times]:
    if name not in ENGINES:
        raise ProgramError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    if compiled(name, graph):
        if not has_numba():
            raise ProgramError("the engine 'kernel' needs numba: pip install 'traincast[fast]'")
        from traincast.engine.kernel import run_kernel

        return run_kernel
    return run_reference if name == "reference" else run_chains


def compiled(name: str, graph: Graph) -> bool:
    """Return whether an engine runs a program in numba."""
    steps = {"auto": 1, "several": _SEVERAL}
    pays = name == "fast"
    if name in steps:
        least = KERNEL_FROM_CHAINS // steps[name]
        pays = len(graph) >= least and (len(graph) >= _COUNTED_TO * least or chains_of(graph) >= least)
    return name == "kernel" or (pays and has_numba())


def load(name: str) -> None:
    """Load the kernel where an engine is it whatever the program: copies of a process then have it, too."""
    if name in ("fast", "kernel") and has_numba():
        import_module("traincast.engine.kernel")


@cache
def has_numba() -> bool:
    """Return whether numba is installed."""
    return find_spec("numba") is not None
