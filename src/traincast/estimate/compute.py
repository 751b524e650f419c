"""Put a time on computations that say which operators they run.

A computation takes as long as its operators take one after the other; what the host needs to launch them
is an operation of its own beside it. What end-to-end runs teach beyond single kernels is a factor for each
class of work (`CostFactors`).

Letters: T template operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traincast.estimate.factors import CostFactors
from traincast.estimate.operators.cost import OperatorTime, price_operator
from traincast.estimate.operators.families import FAMILIES
from traincast.hardware.gpu import Gpu
from traincast.workload.ops import OperatorCall, OpTable
from traincast.workload.words import OverlapClass, Provenance


@dataclass(frozen=True, slots=True)
class PricedCompute:
    """Computations with durations, and what each consists of."""

    ops: OpTable
    shares_T: tuple[Mapping[str, float], ...]
    """Seconds by class of work of each template operation; empty where it was not priced here."""


def price_compute(ops: OpTable, gpu: Gpu, factors: CostFactors, compute_factor: float = 1.0) -> PricedCompute:
    """Price the computations of a table that carry operator calls.

    Parameters
    ----------
    ops : OpTable
        Template operations.
    gpu : Gpu
        What runs them.
    factors : CostFactors
        Factors on classes of work.
    compute_factor : float
        Factor of the framework on all of them.

    Returns
    -------
    PricedCompute
    """
    duration_T, provenance_T = ops.duration_s_T.copy(), ops.provenance_T.copy()
    flops_T, bytes_T, overlap_T = ops.flops_T.copy(), ops.bytes_moved_T.copy(), list(ops.overlap_shares_T)
    shares: list[Mapping[str, float]] = []
    known: dict[OperatorCall, tuple[OperatorTime, str]] = {}
    for row, calls in enumerate(ops.calls_T):
        if calls is None:
            shares.append({})
            continue
        of_class: dict[str, float] = {}
        bound: dict[str, float] = {}
        flops = moved = 0.0
        for call, count in calls:
            if call not in known:
                known[call] = price_operator(call, gpu), FAMILIES.get(call.family).cost_class(call)
            priced, name = known[call]
            time_s = count * priced.time_s * factors.of(name) * compute_factor
            of_class[name] = of_class.get(name, 0.0) + time_s
            bound[priced.bound] = bound.get(priced.bound, 0.0) + time_s
            flops += count * priced.flops
            moved += count * priced.bytes_moved
        duration_T[row] = sum(of_class.values())
        provenance_T[row] = Provenance.PRICED
        flops_T[row], bytes_T[row] = flops, moved
        overlap_T[row] = _overlap_shares(bound)
        shares.append(of_class)
    priced_ops = replace(
        ops,
        duration_s_T=duration_T,
        provenance_T=provenance_T,
        flops_T=flops_T,
        bytes_moved_T=bytes_T,
        overlap_shares_T=tuple(overlap_T),
    )
    return PricedCompute(priced_ops, tuple(shares))


_BOUND_OF = {
    OverlapClass.COMPUTE_BOUND: "compute",
    OverlapClass.MEMORY_BOUND: "memory",
    OverlapClass.SMALL: "latency",
}


def _overlap_shares(time_s_by_bound: Mapping[str, float]) -> tuple[float, ...] | None:
    """Return the share of the time that kernels of each class take, in the order of `OverlapClass`.

    Not the class of most of it: that would jump where kernels change sides, and a faster GPU could take longer.
    """
    total_s = sum(time_s_by_bound.values())
    if not total_s:
        return None
    return tuple(time_s_by_bound.get(_BOUND_OF.get(each, ""), 0.0) / total_s for each in OverlapClass)
