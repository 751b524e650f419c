"""Predict each group of measured collectives by link constants that were not fitted to it.

What all clusters share (`data/nccl/fitted.toml`) is not fitted again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincast.calibrate.fit import fit_links, from_others
from traincast.calibrate.measurements import CollectiveMeasurements
from traincast.errors import CalibrationError, ConfigError
from traincast.hardware.cluster import Cluster

Unseen = tuple[list[int], Cluster | str]
"""Rows with the cluster that predicts them, or why there is none."""


def without_each_size_of_group(measured: CollectiveMeasurements, cluster: Cluster) -> list[Unseen]:
    """Return for each number of ranks the cluster fitted to all others.

    Parameters
    ----------
    measured : CollectiveMeasurements
        All of this cluster.
    cluster : Cluster
        Where each fit starts; its measured tables would know what is left out, and are not used.
    """
    found: list[Unseen] = []
    for ranks in sorted(set(measured.ranks.tolist())):
        left_out = measured.ranks == ranks
        rows = left_out.nonzero()[0].tolist()
        others = measured.select(~left_out)
        if not len(others):
            found.append((rows, "there is no other number of ranks to fit to"))
            continue
        try:
            found.append((rows, fit_links(others, replace(cluster, measured=None)).cluster))
        except (ConfigError, CalibrationError) as error:
            found.append((rows, f"cannot be fitted without these ranks: {error}"))
    return found


def without_each_gpu(measured: CollectiveMeasurements, rows_of: Mapping[Cluster, Sequence[int]]) -> list[Unseen]:
    """Return for each cluster the constants of its datasheet and of the other clusters, each fitted to its rows.

    `from_others` says which of them are learnt from.

    Parameters
    ----------
    measured : CollectiveMeasurements
        Of all clusters.
    rows_of : mapping
        Rows of each cluster.
    """
    fitted = {cluster: fit_links(measured.select(rows), cluster).cluster for cluster, rows in rows_of.items()}
    found: list[Unseen] = []
    for cluster, rows in rows_of.items():
        others = [each for other, each in fitted.items() if other != cluster]
        if not others:
            found.append(([*rows], "there is no other GPU to learn from"))
            continue
        try:
            found.append(([*rows], from_others(replace(cluster, measured=None), others)))
        except ConfigError as error:
            found.append(([*rows], f"cannot be learnt from others: {error}"))
    return found
