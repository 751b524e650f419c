"""What a row of training runs says of its network cards."""

import re

from traincast.calibrate.tables import Row

_GIGABIT = 1e9 / 8

_PER_GPU = re.compile(r"(\d+) ?gb/s(?: rdma)? per gpu", re.IGNORECASE)
_PER_NODE = re.compile(r"(\d+) ?gb(?:/s|ps) (?:per node|node-node)", re.IGNORECASE)
_CARDS = re.compile(r"(\d+) ?x[^;,+]*?(\d+) ?gb(?:/s|/sec|ps)", re.IGNORECASE)
_CARDS_BYTES = re.compile(r"(\d+)x(\d+) gb/s ib")
_NO_CARDS = re.compile(r"storage|management|nvlink|ethernet nic|25gb/s|10g", re.IGNORECASE)
_LEAST_CARD_GBIT = 100
"""Slower cards are for management and storage, not for training."""


def nic_bytes_per_s(row: Row) -> float | None:
    """Return the line rate of the network cards per GPU; None where the row does not say it.

    Parameters
    ----------
    row : Row
        With the column ``nic_gbit_per_gpu``, or ``interconnect`` (in words) and ``gpus_per_node``.

    Returns
    -------
    float or None
        Bytes per second and direction.
    """
    if "nic_gbit_per_gpu" in row.cells:
        return row.number("nic_gbit_per_gpu") * _GIGABIT
    text = row.cells.get("interconnect", "")
    per_node = row.count("gpus_per_node") if "gpus_per_node" in row.cells else 8
    if found := _PER_GPU.search(text):
        return float(found[1]) * _GIGABIT
    if found := _CARDS_BYTES.search(text.lower()) if "GB/s IB" in text else None:
        return int(found[1]) * int(found[2]) * 1e9 / per_node
    if found := _PER_NODE.search(text):
        return float(found[1]) * _GIGABIT / per_node
    return _from_cards(text, per_node)


def _from_cards(text: str, per_node: int) -> float | None:
    """Add up the cards of a list such as ``Compute: 8x ConnectX-7 IB NDR 400Gb/s``."""
    for part in re.split(r"[;,+]", text):
        if _NO_CARDS.search(part) and "compute" not in part.lower():
            continue
        found = _CARDS.search(part)
        if found and int(found[2]) >= _LEAST_CARD_GBIT and int(found[1]) <= 2 * per_node:
            return int(found[1]) * int(found[2]) * _GIGABIT / per_node
    return None
