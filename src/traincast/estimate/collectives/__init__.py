"""What a communication costs: algorithms as plug-ins over the links of a cluster."""

from traincast.estimate.collectives.contract import ALGORITHMS, Algorithm, Traffic, transfer_time_s
from traincast.estimate.collectives.price import Price, price_collective, price_message

__all__ = ["ALGORITHMS", "Algorithm", "Price", "Traffic", "price_collective", "price_message", "transfer_time_s"]
