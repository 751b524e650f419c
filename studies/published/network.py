"""Network cards of a public run, from what its column ``interconnect`` says in words."""

import re
from collections.abc import Mapping

from traincast.units import is_number, plain_number

_PER_GPU = re.compile(r"(?<!\d)(\d{1,6}) ?gb/s(?: rdma)? per gpu", re.IGNORECASE)
_PER_NODE = re.compile(r"(?<!\d)(\d{1,6}) ?gb(?:/s|ps) (?:per node|node-node)", re.IGNORECASE)
_CARDS = re.compile(r"(?<!\d)(\d{1,6}) ?x[^;,+]*?(?<!\d)(\d{1,6}) ?gb(?:/s|/sec|ps)", re.IGNORECASE)
_CARDS_BYTES = re.compile(r"(?<!\d)(\d{1,6})x(?<!\d)(\d{1,6}) gb/s ib")
_NO_CARDS = re.compile(r"storage|management|nvlink|ethernet nic|25gb/s|10g", re.IGNORECASE)
_LEAST_CARD_GBIT = 100
"""Slower cards are for management and storage, not for training."""


def card_gbit_per_gpu(cells: Mapping[str, str]) -> float | None:
    """Return the line rate of the network cards per GPU, in Gbit/s and direction; None where the words do not say it.

    They say it of a node of ``gpus_per_node`` GPUs.
    """
    text = cells.get("interconnect", "")
    written = cells.get("gpus_per_node", "")
    per_node = (plain_number(written) if is_number(written) else 0) or 8
    if found := _PER_GPU.search(text):
        return float(found[1])
    if found := _CARDS_BYTES.search(text.lower()) if "GB/s IB" in text else None:
        return int(found[1]) * int(found[2]) * 8 / per_node
    if found := _PER_NODE.search(text):
        return float(found[1]) / per_node
    # Cards of a list such as "Compute: 8x ConnectX-7 IB NDR 400Gb/s".
    for part in re.split(r"[;,+]", text):
        if _NO_CARDS.search(part) and "compute" not in part.lower():
            continue
        found = _CARDS.search(part)
        if found and int(found[2]) >= _LEAST_CARD_GBIT and int(found[1]) <= 2 * per_node:
            return int(found[1]) * int(found[2]) / per_node
    return None
