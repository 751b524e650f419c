"""What a communication costs: algorithms as plug-ins over the links of a cluster."""

from traincast.estimate.collectives.algorithms import ALGORITHMS, Algorithm, Traffic
from traincast.estimate.collectives.cost import CollectiveCost, price_collective, price_many
from traincast.estimate.collectives.tuning import nccl_choice

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CollectiveCost",
    "Traffic",
    "nccl_choice",
    "price_collective",
    "price_many",
]
