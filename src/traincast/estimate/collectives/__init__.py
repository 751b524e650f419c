"""What a communication costs: algorithms as plug-ins over the links of a cluster."""

from traincast.estimate.collectives.contract import ALGORITHMS, Algorithm, Traffic, transfer_time_s
from traincast.estimate.collectives.many import price_many
from traincast.estimate.collectives.price import Price, price_collective, price_message
from traincast.estimate.collectives.tuning import nccl_choice

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Price",
    "Traffic",
    "nccl_choice",
    "price_collective",
    "price_many",
    "price_message",
    "transfer_time_s",
]
