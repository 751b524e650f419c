"""Measured collectives, against the estimates of the cluster they ran on."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

import numpy as np
from msgspec.structs import replace

from traincast.calibration.collectives import (
    CollectiveMeasurements,
    collectives_of,
    estimate_measured,
    holds_collectives,
    size_bands,
)
from traincast.calibration.fit_links import fit_links, from_others
from traincast.calibration.kind import KINDS, ClusterLike, Grouping, Labels, MeasurementKind, Predictions, Request
from traincast.calibration.tables import MeasurementTable, Skipped
from traincast.diagnostics import Note
from traincast.errors import CalibrationError, ConfigError
from traincast.estimate.collectives import CollectiveCost
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_names, load_cluster

RowsOf = Mapping[Cluster, Sequence[int]]
_Estimated = tuple[list[int], Cluster | str]
"""Rows with the cluster that predicts them, or why there is none."""
Plan = list[_Estimated]
_NO_OTHER = "there is no other GPU to learn from"
_OTHER_PARTS = {"pcie", "nvl"}
"""Words that make it another part than the one in the preset of that name."""


def predict(table: MeasurementTable, request: Request) -> Predictions:
    """Return measured collectives with their estimates.

    The cluster of the request is that of every row; else each row's own, by its ``gpu``, or by the name of the file
    where the row does not say its GPU; rows whose GPU is in no preset are skipped. It can leave out ``ranks``: each
    number of ranks is then predicted by a fit to the others; and ``gpu``, predicted by its datasheet and the others.
    """
    read = collectives_of([table])
    clusters, notes = _clusters(read.measurements, table.path if table.is_one_file else "", request.cluster)
    rows_of: dict[Cluster, list[int]] = {}
    for row, cluster in enumerate(clusters):
        if cluster is not None:
            rows_of.setdefault(cluster, []).append(row)
    nodes = read.measurements.nodes.copy()
    for cluster, rows in rows_of.items():
        nodes[rows] = read.measurements.select(rows).on(cluster).nodes
    measured = replace(read.measurements, nodes=nodes)
    plan = _plan(measured, rows_of, request.leave_out)
    estimates, reasons = _estimates(measured, plan)
    return Predictions(
        ids=read.ids,
        measured=measured.time_s,
        predicted=np.array([np.nan if estimate is None else estimate.time_s for estimate in estimates], np.float64),
        details=_details(measured, clusters, estimates),
        groupings=_groupings(measured, clusters),
        skipped=(*read.skipped, *(Skipped(read.ids[row], reason) for row, reason in sorted(reasons.items()))),
        rows=table.size,
        notes=notes,
    )


def _clusters(
    measured: CollectiveMeasurements, path: str, given: ClusterLike | None
) -> tuple[list[Cluster | None], tuple[Note, ...]]:
    """Return the cluster of each row, None where nobody knows, and what was assumed for it."""
    if given is not None:
        return [load_cluster(given)] * len(measured), ()
    names = cluster_names()
    of_file = preset_named_in(PurePath(path).stem, names) if path else None
    of_gpu = {gpu: of_file if gpu is None else preset_named_in(gpu, names) for gpu in set(measured.gpu)}
    loaded = {name: load_cluster(name) for name in set(of_gpu.values()) if name is not None}
    presets = (of_gpu[gpu] for gpu in measured.gpu)
    assumed = Note("cluster-from-name", f"rows do not say their GPU; cluster {of_file} from the file's name")
    notes = () if of_gpu.get(None) is None else (assumed,)
    return [None if preset is None else loaded[preset] for preset in presets], notes


def _plan(measured: CollectiveMeasurements, rows_of: RowsOf, leave_out: str | None) -> Plan:
    """Return which cluster estimates which rows.

    It is their own; for each number of ranks the fit to all others; or what the datasheet and the fits of the other
    clusters tell of theirs. Measured tables would know what is left out, and are not used there.
    """
    if leave_out is None:
        return [([*rows], cluster) for cluster, rows in rows_of.items()]
    if leave_out == "ranks":
        return [each for cluster, rows in rows_of.items() for each in _without_each_ranks(measured, cluster, rows)]
    fitted = {cluster: fit_links(measured.select(rows), cluster).cluster for cluster, rows in rows_of.items()}
    found: Plan = []
    for cluster, rows in rows_of.items():
        others = [each for other, each in fitted.items() if other != cluster]
        try:
            learnt = from_others(replace(cluster, measured=None), others) if others else _NO_OTHER
        except ConfigError as error:
            learnt = f"cannot be learnt from others: {error}"
        found.append(([*rows], learnt))
    return found


def _without_each_ranks(
    measured: CollectiveMeasurements, base: Cluster, of_base: Sequence[int]
) -> Iterator[_Estimated]:
    mine, bare = measured.select(of_base), replace(base, measured=None)
    for ranks in sorted(set(mine.ranks.tolist())):
        left_out = mine.ranks == ranks
        fitted: Cluster | str = "there is no other number of ranks to fit to"
        try:
            if not left_out.all():
                fitted = fit_links(mine.select(~left_out), bare).cluster
        except (ConfigError, CalibrationError) as error:
            fitted = f"cannot be fitted without these ranks: {error}"
        yield np.asarray(of_base)[left_out].tolist(), fitted


def _estimates(measured: CollectiveMeasurements, plan: Plan) -> tuple[list[CollectiveCost | None], dict[int, str]]:
    """Return the estimate of each row, and why a row has none."""
    estimates: list[CollectiveCost | None] = [None] * len(measured)
    reasons = {
        row: "the GPU is not specified; give a cluster"
        if gpu is None
        else f"no preset for the GPU {gpu!r}; give a cluster"
        for row, gpu in enumerate(measured.gpu)
    }
    for rows, cluster in plan:
        if isinstance(cluster, str):
            reasons |= dict.fromkeys(rows, cluster)
            continue
        for row, estimate in zip(rows, estimate_measured(measured.select(rows), cluster), strict=True):
            estimates[row] = estimate
            del reasons[row]
    return estimates, reasons


def _details(
    measured: CollectiveMeasurements, clusters: list[Cluster | None], estimates: list[CollectiveCost | None]
) -> dict[str, Labels]:
    return {
        "gpu": measured.gpu,
        "op": measured.op,
        "ranks": tuple(measured.ranks.tolist()),
        "nodes": tuple(nodes or None for nodes in measured.nodes.tolist()),
        "size_bytes": tuple(measured.size_bytes.tolist()),
        "cluster": tuple(None if cluster is None else cluster.name for cluster in clusters),
        "algorithm": tuple(None if estimate is None else estimate.algorithm for estimate in estimates),
        "protocol": tuple(None if estimate is None else estimate.protocol for estimate in estimates),
    }


def _groupings(measured: CollectiveMeasurements, clusters: list[Cluster | None]) -> tuple[Grouping, ...]:
    """Return the rows by GPU (or cluster, where no GPU is said), operation, ranks and size."""
    gpus = [
        gpu or ("not specified" if cluster is None else cluster.name)
        for gpu, cluster in zip(measured.gpu, clusters, strict=True)
    ]
    return (
        Grouping.from_labels("gpu", gpus),
        Grouping.from_labels("op", measured.op),
        Grouping.from_labels("ranks", measured.ranks.tolist()),
        size_bands(measured.size_bytes),
    )


def preset_named_in(text: str, presets: Sequence[str]) -> str | None:
    """Return the preset that a text names, ``NVIDIA A100-SXM4-80GB``, ``h100_sxm``; the longest where several fit.

    The words of a name must follow each other in the text. None where there is none.
    """
    words = _words(text)
    if _OTHER_PARTS & set(words):
        return None
    named = [preset for preset in presets if _contains(words, _words(preset))]
    return max(named, key=lambda preset: (len(_words(preset)), preset), default=None)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _contains(words: list[str], wanted: list[str]) -> bool:
    return any(words[start : start + len(wanted)] == wanted for start in range(len(words)))


KIND = KINDS.register("collectives")(
    MeasurementKind(
        name="collectives",
        title="measured collectives",
        quantity="time_s",
        fits=holds_collectives,
        predict=predict,
        by=("gpu", "op", "ranks", "size"),
        leaves_out=("ranks", "gpu"),
        commands="traincast calibrate and traincast validate take it",
    )
)
