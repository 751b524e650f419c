"""Fit the links of a cluster to measured collectives.

The form of an estimate is fixed (`traincast.estimate.collectives.links`); only the constants
of `Link`, and the copy rate of the GPU, are fitted, the same for all operations, sizes and
numbers of ranks. The fit lowers the error of the logarithm, which weighs all sizes alike.

Letters: N measurements, G distinct (operation, placement), A algorithms.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.collectives import CollectiveMeasurements, size_bands
from traincast.calibration.identifiability import (
    FILL,
    INTRA,
    NIC,
    NODE,
    Constants,
    Rates,
    hold_together,
    identifiable,
    not_told_apart,
    rates_shown,
    start_of,
    value_of,
)
from traincast.calibration.kind import FloatArray
from traincast.calibration.search import minimise, scan
from traincast.errors import ConfigError
from traincast.estimate.collective_table import spread
from traincast.estimate.collectives.algorithms import Traffic
from traincast.estimate.collectives.cost import candidates
from traincast.estimate.collectives.links import Curve, curve, evaluate
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.workload.words import Operation

_NO_WORSE = 1e-6
"""A constant that can go back to where it was for so much more error, as a fraction, does not show."""
_HELD = 4.0
"""What a band of sizes costs that gets worse, over what its rows can win elsewhere: more than they are worth there."""
_NOISE = 0.02
"""Error of a band that is as good as none: repeats of a collective differ by as much."""
_WORTH, _SMALL = 1.25, 0.005
"""How much more error in all, as a factor and as a logarithm, it may cost that no band gets worse."""
_FURTHEST = 10.0
"""How far a constant may go from where it starts, as a logarithm: one that does not show goes anywhere."""


class Fit(Struct, frozen=True):
    """A cluster with fitted constants."""

    cluster: Cluster
    """The given one with the fitted constants."""
    constants: Mapping[str, float]
    """By field path: ``"intra.hop_latency_s"``."""
    notes: tuple[str, ...] = ()
    """What the measurements cannot tell apart, and what was taken instead."""


def fit_links(
    measurements: CollectiveMeasurements,
    cluster: Cluster,
    fields: Sequence[str] | None = None,
    rounds: int = 4,
    *,
    no_band_worse: bool = False,
) -> Fit:
    """Fit the links of a cluster to measured collectives.

    Parameters
    ----------
    measurements : CollectiveMeasurements
        With one operation or several, on one node or on several.
    cluster : Cluster
        Where the search starts, and everything that is not fitted.
    fields : sequence of str, optional
        What is fitted; by default what the measurements can tell apart (`identifiable`).
    rounds : int, default 4
        Restarts of the search; it is deterministic.
    no_band_worse : bool, default False
        Give no band of sizes up for the others: where the form cannot have all of them, none gets worse than it
        is in `cluster`, if that costs little error in all. For those who start from estimates that already hold.

    Raises
    ------
    ConfigError
        If there is nothing to fit, or the cluster has no value where the search could start.
    """
    measured = measurements.on(cluster)
    rates = rates_shown(measured, cluster)
    fields = identifiable(measured, cluster) if fields is None else fields
    start = start_of(fields, cluster, rates.nics)
    lacking = [field for field, value in start.items() if value is None]
    if lacking or not fields or not len(measured):
        raise ConfigError(f"has no value to start a fit from: {', '.join(lacking) or 'no measurements'}", cluster.name)
    first = np.log([float(value or 0) for value in start.values()])
    times, loss = predictor(measured, cluster), _loss(measured)
    search = _Search(cluster, rates, tuple(fields), first, times, loss)
    best = search.least(rounds)
    if no_band_worse:
        held = replace(search, loss=_no_band_worse(loss, measured, times(cluster)))
        other = held.least(rounds)
        # A base that is wrong everywhere but in one band by chance holds nothing worth keeping.
        if search.at(other) <= _WORTH * search.at(best) + _SMALL:
            search, best = held, other
    found = search.without_unseen(search.constants(best))
    fitted = search.cluster_of(found)
    shown = {field: value for field, value in found.items() if value is not None}
    return Fit(fitted, shown, tuple(not_told_apart(fitted, cluster, rates)))


class _Search(Struct, frozen=True):
    """What is searched for constants: points are their logarithms."""

    cluster: Cluster
    rates: Rates
    fields: tuple[str, ...]
    first: FloatArray
    times: Callable[[Cluster], FloatArray]
    loss: Callable[[FloatArray], float]

    def least(self, rounds: int) -> FloatArray:
        """Return the best point that is found, from the start and from a scan around it."""
        points = (minimise(self.at, point, rounds) for point in (self.first, scan(self.at, self.first)))
        return min(points, key=self.at)

    def constants(self, point: FloatArray) -> Constants:
        """Return the constants of a point."""
        near = self.first + np.clip(point - self.first, -_FURTHEST, _FURTHEST)
        return dict(zip(self.fields, np.exp(near).tolist(), strict=True))

    def cluster_of(self, constants: Constants) -> Cluster:
        """Return the cluster with these constants."""
        return with_constants(self.cluster, hold_together(constants, self.cluster, self.rates))

    def error(self, constants: Constants) -> float:
        """Return how far off these constants are."""
        return self.loss(self.times(self.cluster_of(constants)))

    def at(self, point: FloatArray) -> float:
        """Return how far off a point is."""
        return self.error(self.constants(point))

    def without_unseen(self, constants: Constants) -> Constants:
        """Return constants without those changes that no measurement asks for: of a link that nothing waits for."""
        found = {**constants}
        least = self.error(found) * (1 + _NO_WORSE) + _NO_WORSE / 1000
        for field in constants:
            before = value_of(self.cluster, field)
            if self.error({**found, field: before}) <= least:
                found[field] = before
        if {NIC, NODE} <= set(constants) and found[NODE] != value_of(self.cluster, NODE):
            # Where the NICs are reached there is no telling how much more a node could do.
            nics = self.rates.nics * (found[NIC] or 0.0)
            if self.error({**found, NODE: nics}) <= least:
                found[NODE] = nics
        return found


def with_constants(cluster: Cluster, constants: Mapping[str, float | None]) -> Cluster:
    """Return the cluster with other constants, by field path.

    A new start inside a node holds between nodes too where the two are the same in the cluster,
    and nothing else is said of that between nodes.
    """
    changes: dict[str, dict[str, float | None]] = {"gpu": {}, "intra": {}, "inter": {}}
    for path, value in constants.items():
        section, _, field = path.partition(".")
        changes[section][field] = value
    if "base_latency_s" in changes["intra"] and cluster.intra.base_latency_s == cluster.inter.base_latency_s:
        # All-reduces of one operation cannot tell a start between nodes from the steps.
        changes["inter"].setdefault("base_latency_s", changes["intra"]["base_latency_s"])
    # The names are those of number fields: a wrong one is a TypeError of `replace`.
    numbers: dict[str, dict[str, Any]] = dict(changes)
    return replace(
        cluster,
        gpu=replace(cluster.gpu, **numbers["gpu"]),
        intra=replace(cluster.intra, **numbers["intra"]),
        inter=replace(cluster.inter, **numbers["inter"]),
    )


def predictor(measured: CollectiveMeasurements, cluster: Cluster) -> Callable[[Cluster], FloatArray]:
    """Return a function from a cluster to the estimate of every measurement, [N], whose number of nodes is known.

    `cluster` says which algorithms may run; the function must get clusters that agree on that.
    """
    keys = measured.groups
    groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group_N = np.array([groups[key] for key in keys])
    traffics = [_traffics(Operation[op.upper()], spread(ranks, nodes), cluster) for op, ranks, nodes in groups]
    most = max(map(len, traffics))
    size_N = measured.size_bytes.astype(np.float64)

    def times(trial: Cluster) -> FloatArray:
        curves = [[curve(traffic, trial) for traffic in found] for found in traffics]
        # A group with fewer algorithms repeats its last one.
        table_GAF = np.array([found + [found[-1]] * (most - len(found)) for found in curves])
        rows_AFN = table_GAF[group_N].transpose(1, 2, 0)
        best: FloatArray = np.min([evaluate(Curve(*fields), size_N) for fields in rows_AFN], axis=0)
        return best

    return times


def _traffics(operation: Operation, placement: Placement, cluster: Cluster) -> list[Traffic]:
    found = [traffic for _, traffic in candidates(operation, placement, cluster)]
    if not found:
        raise ConfigError(f"no algorithm can do {operation.name} over {placement.ranks} ranks", cluster.name)
    return found


def _loss(measured: CollectiveMeasurements) -> Callable[[FloatArray], float]:
    """Return the error to be lowered.

    Mean and root mean square of the logarithm's error, half each, so that the tail counts;
    the mean over operations with a push for the worst, so that none is given up for others.
    """
    log_time_N, op_N = np.log(measured.time_s), np.array(measured.op)
    masks = [op_N == name for name in sorted(set(measured.op))]

    def loss(predicted_N: FloatArray) -> float:
        error_N = np.abs(np.log(predicted_N) - log_time_N)
        each = [0.5 * float(e.mean()) + 0.5 * float(np.sqrt((e**2).mean())) for e in (error_N[m] for m in masks)]
        return sum(each) / len(each) + 0.15 * max(each)

    return loss


def _no_band_worse(
    loss: Callable[[FloatArray], float], measured: CollectiveMeasurements, before_N: FloatArray
) -> Callable[[FloatArray], float]:
    """Return an error that also counts how much worse each band of sizes is than with the estimates before."""
    log_time_N, bands = np.log(measured.time_s), size_bands(measured.size_bytes)
    masks = [bands.index == band for band in np.unique(bands.index)]

    def errors(predicted_N: FloatArray) -> list[float]:
        error_N = np.abs(np.log(predicted_N) - log_time_N)
        # The mean is smooth; the median is what is shown, and one bad row does not move it.
        return [0.5 * float(error_N[mask].mean()) + 0.5 * float(np.median(error_N[mask])) for mask in masks]

    limits = [max(limit, _NOISE) for limit in errors(before_N)]

    def held(predicted_N: FloatArray) -> float:
        worse = (max(0.0, now - limit) for now, limit in zip(errors(predicted_N), limits, strict=True))
        return loss(predicted_N) + _HELD * sum(worse)

    return held


def from_others(cluster: Cluster, others: Sequence[Cluster]) -> Cluster:
    """Return the cluster with constants from its datasheet and from other fitted clusters.

    Latencies and fills are the geometric means of those of its kind of links and row of NCCL's tables,
    or of all where there is none; rates are their usual share of the datasheet's link and
    memory. What only it may have, such as a rate for pairs, is dropped.

    Raises
    ------
    ConfigError
        If a datasheet rate is missing.
    """
    pcie = cluster.intra.kind == "pcie"
    # What PCIe gives is a matter of the host, which no GPU tells of another: its architecture says more.
    same = list(others) if pcie else [other for other in others if other.intra.kind == cluster.intra.kind]
    alike = [other for other in same if other.gpu.nccl_row == cluster.gpu.nccl_row] or same or list(others)

    def mean(value: Callable[[Cluster], float | None], what: str) -> float:
        known = [each for each in map(value, alike) if each]
        if not known or len(known) < len(alike):
            raise ConfigError(f"no {what} is known of the clusters to learn from", what)
        return float(np.exp(np.mean(np.log(known))))

    def rate(field: str, datasheet: str) -> float:
        own = value_of(cluster, datasheet)
        if own is None:
            raise ConfigError("is needed to scale the rates of other clusters", datasheet)
        return own * mean(lambda other: (value_of(other, field) or 0) / (value_of(other, datasheet) or inf), field)

    learnt = ["intra.base_latency_s", "intra.hop_latency_s", *([] if pcie else FILL)]
    learnt += ["intra.crowding"] * all(other.intra.crowding for other in alike)
    constants: dict[str, float | None] = dict.fromkeys(field for field in INTRA if field.startswith("intra."))
    constants |= {field: mean(lambda other, field=field: value_of(other, field), field) for field in learnt}  # type: ignore[misc]
    constants["intra.bandwidth_bytes_per_s"] = rate("intra.bandwidth_bytes_per_s", "gpu.link_bytes_per_s")
    if pcie:  # there the form has neither a fill nor a rate of copies
        constants |= {"intra.fill_latency_s": 0.0, "intra.fill_bytes": 1.0}
    else:
        constants["gpu.copy_bytes_per_s"] = rate("gpu.copy_bytes_per_s", "gpu.hbm_bytes_per_s")
    return with_constants(cluster, constants)
