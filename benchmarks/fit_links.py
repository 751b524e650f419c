"""Fit the link constants of the presets to measured collectives, and print the residuals.

    python benchmarks/fit_links.py [--data DIR]

Single-node constants come from `nccl_intranode_measured.csv` (all-reduce, all-gather,
reduce-scatter, all-to-all over 2 to 8 GPUs), network constants from
`nccl_allreduce_a100_azure.csv` (all-reduce over 2 to 16 nodes, rows marked suspect left
out). The fit lowers the mean absolute relative error, which weighs all sizes alike and
does not run after outliers; it is deterministic.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traincast.estimate.collectives import ALGORITHMS, transfer_time_s
from traincast.fabric.placement import Placement
from traincast.spec.cluster import Cluster
from traincast.spec.clusters import load_cluster
from traincast.workload.words import Operation

FloatArray = npt.NDArray[np.float64]
Constants = dict[str, float]

MEASURED = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm"}
OPERATIONS = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
}
BANDS = {"up to 64 KiB": (0, 2**16), "to 1 MiB": (2**16, 2**20), "to 16 MiB": (2**20, 2**24), "above": (2**24, 2**40)}
INTRA = ("base_latency_s", "hop_latency_s", "fill_latency_s", "fill_bytes", "bandwidth_bytes_per_s")
NETWORK = ("hop_latency_s", "fill_latency_s", "fill_bytes", "node_bandwidth_bytes_per_s")


@dataclass(frozen=True)
class Curve:
    """Measured times of one operation over one placement, one per size."""

    operation: Operation
    placement: Placement
    size_bytes: FloatArray
    time_s: FloatArray

    def errors(self, cluster: Cluster) -> FloatArray:
        """Return the relative error of the cheapest algorithm at each size."""
        traffics = [algorithm(self.operation, self.placement) for algorithm in ALGORITHMS.entries()]
        times = [transfer_time_s(traffic, self.size_bytes, cluster) for traffic in traffics if traffic is not None]
        cheapest: FloatArray = np.min(times, axis=0)
        return cheapest / self.time_s - 1.0


def curves(rows: Iterable[tuple[Operation, Placement, float, float]]) -> list[Curve]:
    """Return measured (operation, placement, bytes, seconds) rows as one curve per operation and placement."""
    found: dict[tuple[Operation, Placement], list[tuple[float, float]]] = {}
    for operation, placement, size_bytes, time_s in rows:
        found.setdefault((operation, placement), []).append((size_bytes, time_s))
    return [Curve(*key, *np.array(sorted(points)).T) for key, points in found.items()]


def single_node(file: Path, gpu: str) -> list[Curve]:
    """Return the measured curves of one kind of GPU inside one node."""
    with file.open(encoding="utf-8", newline="") as lines:
        return curves(
            (
                OPERATIONS[row["op"]],
                Placement((int(row["num_gpus"]),)),
                float(row["message_bytes"]),
                float(row["ms"]) / 1e3,
            )
            for row in csv.DictReader(lines)
            if row["gpu"] == gpu
        )


def azure(file: Path) -> list[Curve]:
    """Return the measured all-reduces of Azure ND A100 v4, without the suspect rows."""
    with file.open(encoding="utf-8", newline="") as lines:
        return curves(
            (
                Operation.ALL_REDUCE,
                Placement((int(row["gpus"]) // int(row["nodes"]),) * int(row["nodes"])),
                float(row["size_bytes"]),
                float(row["time_us"]) / 1e6,
            )
            for row in csv.DictReader(lines)
            if not row["suspect"]
        )


def fit(start: Constants, error: Callable[[Constants], float]) -> Constants:
    """Return the constants of least error: try each a step up and down, then halve the step."""
    best, least, step = dict(start), error(start), 0.5
    while step > 0.002:
        improved = False
        for name in start:
            for factor in (1 + step, 1 / (1 + step)):
                trial = {**best, name: best[name] * factor}
                if (value := error(trial)) < least * (1 - 1e-6):
                    best, least, improved = trial, value, True
        step = step if improved else step / 2
    return best


def with_intra(cluster: Cluster, constants: Constants) -> Cluster:
    """Return the cluster with other single-node constants."""
    link = {name: value for name, value in constants.items() if name != "copy_bytes_per_s"}
    gpu = replace(cluster.gpu, copy_bytes_per_s=constants["copy_bytes_per_s"])
    return replace(cluster, gpu=gpu, intra=replace(cluster.intra, **link))


def with_inter(cluster: Cluster, constants: Constants) -> Cluster:
    """Return the cluster with other network constants."""
    return replace(cluster, inter=replace(cluster.inter, **constants))


def mean_error(measured: list[Curve], cluster: Cluster) -> float:
    """Return the mean absolute relative error over all points."""
    return float(np.mean(np.abs(np.concatenate([curve.errors(cluster) for curve in measured]))))


def report(title: str, measured: list[Curve], cluster: Cluster) -> None:
    """Print median and 90th percentile of the absolute relative error, by size and operation."""
    sizes = np.concatenate([curve.size_bytes for curve in measured])
    errors = np.concatenate([curve.errors(cluster) for curve in measured])
    operations = np.concatenate([np.full(curve.size_bytes.size, int(curve.operation)) for curve in measured])
    masks = {"all": np.ones(sizes.size, dtype=bool), "above 1 MiB": sizes > 2**20}
    masks |= {band: (sizes > low) & (sizes <= high) for band, (low, high) in BANDS.items()}
    masks |= {
        name: operations == operation for name, operation in OPERATIONS.items() if (operations == operation).any()
    }
    print(f"\n{title}: {sizes.size} points")
    for name, mask in masks.items():
        absolute = np.abs(errors[mask])
        p50, p90 = np.quantile(absolute, (0.5, 0.9))
        print(f"  {name:15} median {p50:6.1%}  p90 {p90:6.1%}  bias {np.median(errors[mask]):+6.1%}")


def show(title: str, constants: Constants) -> None:
    """Print fitted constants as they stand in a cluster file."""
    print(f"\n{title}")
    for name, value in constants.items():
        print(f"  {name} = {value:.4g}")


def fit_node(name: str, measured: list[Curve]) -> None:
    """Fit the single-node constants of a preset and print them."""
    cluster = load_cluster(name)
    start = {key: float(getattr(cluster.intra, key)) for key in INTRA}
    start["copy_bytes_per_s"] = cluster.gpu.copy_bytes_per_s or 1e12
    fitted = fit(start, lambda trial: mean_error(measured, with_intra(cluster, trial)))
    show(f"{name}, inside a node (fitted)", fitted)
    report(f"{name} as fitted now", measured, with_intra(cluster, fitted))
    report(f"{name} as in its file", measured, cluster)


def fit_network(measured: list[Curve]) -> None:
    """Fit the network constants of the preset a100 and print them; its single-node ones stay."""
    cluster = load_cluster("a100")
    across = [curve for curve in measured if curve.placement.nodes > 1]
    start = {key: float(getattr(cluster.inter, key)) for key in NETWORK}
    fitted = fit(start, lambda trial: mean_error(across, with_inter(cluster, trial)))
    show("a100, between nodes (fitted, single-node constants as in the file)", fitted)
    report("a100 on Azure, 2 to 16 nodes, as fitted now", across, with_inter(cluster, fitted))
    report("a100 on Azure, 2 to 16 nodes, as in its file", across, cluster)
    one = [curve for curve in measured if curve.placement.nodes == 1 and curve.placement.ranks > 1]
    report("a100 on Azure, one node, as in its file (another NCCL than the constants)", one, cluster)


def main() -> int:
    """Fit and print; return the exit code."""
    parser = argparse.ArgumentParser(description="fit link constants to measured collectives")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the measured CSV files")
    folder: Path = parser.parse_args().data
    one_node, many_nodes = folder / "nccl_intranode_measured.csv", folder / "nccl_allreduce_a100_azure.csv"
    for file in (one_node, many_nodes):
        if not file.is_file():
            print(f"{file} is missing; say with --data where the measured collectives are", file=sys.stderr)
            return 1
    for name, gpu in MEASURED.items():
        fit_node(name, single_node(one_node, gpu))
    fit_network(azure(many_nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
