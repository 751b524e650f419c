"""Fit the links of the presets to measured collectives, and print constants and residuals.

    python studies/fit_links.py [--data DIR]

Constants inside a node come from `nccl_intranode_measured.csv` (all-reduce, all-gather,
reduce-scatter, all-to-all over 2 to 8 GPUs), those between nodes and the preset a100-azure
from `nccl_allreduce_a100_azure.csv` (all-reduce over 2 to 128 GPUs). Each fit is repeated
with something left out: a kind of GPU, whose constants then come from its datasheet and the
others, or a number of GPUs.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datafiles import DATA, table_path
from traincast.calibration.collectives import CollectiveMeasurements, read_collectives
from traincast.calibration.fit_links import Fit, fit_links, from_others, predictor
from traincast.calibration.kind import FloatArray
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster

MEASURED = {
    "a100": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Preset to the name of its GPU in the table."""
ERRATIC = {"l40s": "l40s"}
"""Fitted too, and neither held to the others nor learnt from: the same timing differs by up to 70 %."""
BANDS = (("up to 64 KiB", 0, 2**16), ("to 1 MiB", 2**16, 2**20), ("to 16 MiB", 2**20, 2**24), ("above", 2**24, 2**63))
AZURE = "a100-azure"
ONE_NODE, MANY_NODES = "nccl_intranode_measured.csv", "nccl_allreduce_a100_azure.csv"


@dataclass(frozen=True, slots=True)
class Residual:
    """Errors of some of the measurements, as fractions of the measured time."""

    of: str
    """What they have in common: a band of sizes, an operation, or all."""
    rows: int
    median: float
    p95: float
    bias: float
    """Signed median: positive where the estimate is too high."""


def of_gpu(table: CollectiveMeasurements, gpu: str) -> CollectiveMeasurements:
    """Return the rows of one kind of GPU."""
    return table.select(np.array([name == gpu for name in table.gpu]))


def as_estimated(measured: CollectiveMeasurements, cluster: Cluster) -> tuple[Residual, ...]:
    """Return the residuals of a cluster as it stands."""
    known = measured.on(cluster)
    return residuals(known, predictor(known, cluster)(cluster))


def without_each_gpu(fits: Mapping[str, Fit], table: CollectiveMeasurements) -> dict[str, tuple[Residual, ...]]:
    """Return for each GPU the residuals of constants from its datasheet and the fits of the others."""
    found = {}
    for name in fits:
        others = [fit.cluster for other, fit in fits.items() if other != name]
        found[name] = as_estimated(of_gpu(table, MEASURED[name]), from_others(load_cluster(name), others))
    return found


def without_each_size(measured: CollectiveMeasurements, cluster: Cluster) -> dict[int, tuple[Residual, ...]]:
    """Return for each number of GPUs the residuals of a fit to the others."""
    found = {}
    for ranks in sorted(set(measured.ranks.tolist())):
        kept = measured.ranks != ranks
        fitted = fit_links(measured.select(kept), cluster).cluster
        found[ranks] = as_estimated(measured.select(~kept), fitted)
    return found


def residuals(measured: CollectiveMeasurements, predicted_N: FloatArray) -> tuple[Residual, ...]:
    """Return the errors of predictions: of all rows, by band of sizes, by operation."""
    errors_N, size_N, op_N = predicted_N / measured.time_s - 1.0, measured.size_bytes, np.array(measured.op)
    masks = {"all": np.ones(len(size_N), dtype=bool)}
    masks |= {band: (size_N > low) & (size_N <= high) for band, low, high in BANDS}
    masks |= {name: op_N == name for name in sorted(set(measured.op))}
    found = []
    for name, mask in masks.items():
        if mask.any():
            median, p95 = np.quantile(np.abs(errors_N[mask]), (0.5, 0.95)).tolist()
            found.append(Residual(name, int(mask.sum()), median, p95, float(np.median(errors_N[mask]))))
    return tuple(found)


def show(title: str, found: Sequence[Residual], constants: Mapping[str, float] | None = None) -> None:
    """Print constants as they stand in a cluster file, and residuals."""
    print(f"\n{title}")
    for path, value in (constants or {}).items():
        print(f"  {path} = {value:.4g}")
    for each in found:
        print(
            f"  {each.of:15} {each.rows:4} rows  median {each.median:5.1%}  p95 {each.p95:5.1%}  bias {each.bias:+5.1%}"
        )


def main() -> int:
    """Fit and print; return the exit code."""
    parser = argparse.ArgumentParser(description="fit link constants to measured collectives")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the measured CSV files")
    folder: Path = parser.parse_args().data
    try:
        one_node, many_nodes = (table_path(name, folder) for name in (ONE_NODE, MANY_NODES))
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    table, azure = read_collectives([one_node]).measurements, read_collectives([many_nodes]).measurements
    fits = {name: fit_links(of_gpu(table, gpu), load_cluster(name)) for name, gpu in MEASURED.items()}
    for name, fit in fits.items():
        show(f"{name}, fitted now", as_estimated(of_gpu(table, MEASURED[name]), fit.cluster), fit.constants)
        show(f"{name}, as in its file", as_estimated(of_gpu(table, MEASURED[name]), load_cluster(name)))
    for name, gpu in ERRATIC.items():
        fit = fit_links(of_gpu(table, gpu), load_cluster(name))
        show(f"{name}, fitted now", as_estimated(of_gpu(table, gpu), fit.cluster), fit.constants)
        show(f"{name}, as in its file", as_estimated(of_gpu(table, gpu), load_cluster(name)))
    for name, found in without_each_gpu(fits, table).items():
        show(f"{name}, from its datasheet and the other GPUs", found)
    preset = load_cluster(AZURE)
    fit = fit_links(azure, preset)
    show(f"{AZURE}, fitted now", as_estimated(azure, fit.cluster), fit.constants)
    show(f"{AZURE}, as in its file", as_estimated(azure, preset))
    for ranks, found in without_each_size(azure, preset).items():
        show(f"{AZURE}, {ranks} GPUs from a fit to the others", found[:1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
