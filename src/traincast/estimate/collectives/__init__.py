"""What a communication costs: algorithms as plug-ins over the links of a cluster."""

from traincast.estimate.collectives.algorithms import ALGORITHMS, Algorithm, Traffic
from traincast.estimate.collectives.cost import CollectiveCost, estimate_collective, estimate_collectives
from traincast.estimate.collectives.tuning import nccl_choice

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CollectiveCost",
    "Traffic",
    "estimate_collective",
    "estimate_collectives",
    "nccl_choice",
]
