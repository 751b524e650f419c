"""Bands of message size, in which collectives behave alike."""

import numpy as np

from traincast.calibrate.contract import Grouping
from traincast.calibrate.measurements import IntArray
from traincast.units import format_size, parse_size

_EDGES = ("64KiB", "1MiB", "16MiB")


def size_bands(size_bytes: IntArray) -> Grouping:
    """Return sizes grouped by band: up to 64 KiB, 1 MiB, 16 MiB, and above."""
    edges = [parse_size(edge) for edge in _EDGES]
    names = (*(f"<= {format_size(edge)}" for edge in edges), f"> {format_size(edges[-1])}")
    return Grouping(by="size", names=names, index=np.searchsorted(edges, size_bytes, side="left"))
