"""How much longer steps are with each doubling of the nodes than is simulated (`traincast.hardware.cluster.SKEW`).

    python studies/skew.py

Systems that ran at several sizes, the fastest run of each, are forecast as if nodes waited no longer than is
simulated: what a forecast speed-up is above the measured one, over the doublings of the nodes between the sizes, is the
skew. Printed are the medians over systems, weighted by their doublings, of GPUs and TPUs, with each source left out.
"""

from collections.abc import Sequence
from itertools import chain
from math import log, log2
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from forecasts import MLPERF, PUBLISHED, shipped_forecasts, timed_rows
from judges.scaling import Curve, curves_of
from traincast.calibration.runs import MeasuredRun

LEAST_DOUBLINGS = 0.5
"""Of nodes, from the smallest to the largest size, of a system that says something."""


class Skew(NamedTuple):
    """What one system shows."""

    source: str
    is_tpu: bool
    doublings: float
    per_doubling: float


def main() -> None:
    """Print the skew of GPUs and TPUs."""
    runs = map(without_skew, (*timed_rows(MLPERF), *timed_rows(PUBLISHED)))
    found = skews_of(curves_of(runs))
    for name, is_tpu in (("GPUs", False), ("TPUs", True)):
        kind = [each for each in found if each.is_tpu == is_tpu]
        print(f"{name}: {100 * middle(kind):.2f} % a doubling of the nodes, {len(kind)} systems")
        for source in sorted({each.source for each in kind}):
            own, others = ([each for each in kind if (each.source == source) == same] for same in (True, False))
            rest = f", without it {100 * middle(others):.2f} %" if others else ""
            print(f"  {source}: {100 * middle(own):.2f} % of {len(own)}{rest}")


def without_skew(run: MeasuredRun) -> MeasuredRun:
    """Return a run on the same cluster, whose nodes wait no longer than is simulated."""
    return replace(run, cluster=replace(run.cluster, inter=replace(run.cluster.inter, skew=0.0)))


def skews_of(curves: Sequence[Curve]) -> list[Skew]:
    """Return what each system shows that runs on more nodes at its largest size."""
    runs = {run.id: run for run in chain(*curves)}
    step_s = {name: each.step_s for name, each in zip(runs, shipped_forecasts(list(runs.values())), strict=True)}
    found = []
    for curve in curves:
        forecast = curve.speed_up(lambda run: step_s[run.id])
        measured = curve.speed_up(lambda run: run.measured_s)
        doublings = log2(nodes_of(curve.largest) / nodes_of(curve.smallest))
        if forecast and measured and doublings >= LEAST_DOUBLINGS:
            groups = curve.smallest.groups
            found.append(Skew(groups.source, "TPU" in groups.gpu, doublings, log(forecast / measured) / doublings))
    return found


def nodes_of(run: MeasuredRun) -> float:
    """Return the nodes that a run fills, at least one."""
    return max(1.0, (run.request.gpus or 1) / run.cluster.ranks_per_node)


def middle(skews: Sequence[Skew]) -> float:
    """Return the median per doubling, weighted by doublings."""
    ordered = sorted(skews, key=lambda each: each.per_doubling)
    weight = np.cumsum([each.doublings for each in ordered])
    return ordered[int(np.searchsorted(weight, weight[-1] / 2))].per_doubling


if __name__ == "__main__":
    main()
