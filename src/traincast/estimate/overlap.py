"""How much slower an operation is while its rank computes and communicates at the same time.

    duration = time alone * (1 + overlap * slowdown)

with the overlap as the share of the operation's own time in which the other kind of work runs on its
rank. Letters: N operations, T template operations.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from traincast.workload.ops import FloatArray
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, OverlapClass

OVERLAP_SLOWDOWN: Mapping[str, float] = {
    "compute": 0.01,  # 57 kernels above 60 % of the SMs: 1.008 in time, taken as 1.00 to 1.02
    "memory": 0.125,  # 197 kernels above 60 % of DRAM: 1.127 in time, taken as 1.10 to 1.15
    "small": 0.35,  # 150 kernels below both, most under 10 us: 1.38 to 1.43, taken as 1.3 to 1.4
    "unknown": 0.10,  # all 404 overlapped kernels: 1.102 in time
    "communication": 0.13,
}
"""Slowdown at full overlap, by what an operation is bound by.

Sources: computation: 404 overlapped kernels of transformers on two A100-class GPUs with bucketed gradient
reductions, medians over noise (github.com/NetX-lab/Echo, Echo-slowdown); the classes are our reading of
them. Communication: the overlap coefficient that Galvatron measures for both sides (Miao et al., VLDB
2023), about 1.13; nobody publishes it by size or operation.
"""

_CLASS_NAMES = {
    OverlapClass.COMPUTE_BOUND: "compute",
    OverlapClass.MEMORY_BOUND: "memory",
    OverlapClass.SMALL: "small",
    OverlapClass.UNKNOWN: "unknown",
}


def slowdowns(program: Program, in_situ: bool, overrides: Mapping[str, float] | None = None) -> FloatArray:
    """Return the slowdown of each template operation at full overlap.

    Parameters
    ----------
    program : Program
        Its operations.
    in_situ : bool
        Whether times that the input gives already contain their overlap (`Workload.compute_is_in_situ`);
        these operations are then not slowed down again, while what is priced is.
    overrides : mapping, optional
        Slowdowns instead of `OVERLAP_SLOWDOWN`, by its keys.

    Returns
    -------
    float array [T]
        Zero for what is neither computation nor communication.
    """
    factors = {**OVERLAP_SLOWDOWN, **(overrides or {})}
    slowdown_T = np.zeros(len(program.ops))
    for name, share_T in _shares(program, in_situ):
        slowdown_T += factors[name] * share_T
    return slowdown_T


def classes_present(program: Program, in_situ: bool) -> tuple[str, ...]:
    """Return the classes of `OVERLAP_SLOWDOWN` that have operations in a program; the parameters are as in `slowdowns`.

    What is measured in its place is in no class.
    """
    return tuple(name for name, share_T in _shares(program, in_situ) if share_T.any())


def _shares(program: Program, in_situ: bool) -> Iterator[tuple[str, FloatArray]]:
    """Yield each class with the share of its time that each template operation belongs to it, [T]."""
    ops = program.ops
    slows_T = np.isnan(ops.duration_s_T) if in_situ else np.ones(len(ops), dtype=np.bool_)
    computes_T = slows_T & (ops.kind_T == Kind.COMPUTE)
    share_TC = np.eye(len(OverlapClass))[ops.overlap_class_T]
    for row, shares in enumerate(ops.overlap_shares_T):
        if shares is not None:
            share_TC[row] = shares
    for overlap_class, name in _CLASS_NAMES.items():
        yield name, computes_T * share_TC[:, overlap_class]
    yield "communication", 1.0 * (slows_T & ~(ops.kind_T == Kind.COMPUTE) & (ops.group_T != Group.NONE))
