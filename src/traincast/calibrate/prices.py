"""What the models say to measured collectives."""

from functools import lru_cache

from traincast.calibrate.measurements import CollectiveMeasurements, spread
from traincast.estimate.collectives import Price, price_collective
from traincast.hardware.cluster import Cluster
from traincast.workload.words import operation_named

_spread = lru_cache(maxsize=None)(spread)


def price_measured(measurements: CollectiveMeasurements, cluster: Cluster) -> list[Price]:
    """Return the price of each measured collective on a cluster."""
    rows = zip(
        measurements.op,
        measurements.ranks.tolist(),
        measurements.on(cluster).nodes.tolist(),
        measurements.size_bytes.tolist(),
        strict=True,
    )
    return [
        price_collective(operation_named(op), size_bytes, _spread(ranks, nodes), cluster)
        for op, ranks, nodes, size_bytes in rows
    ]
