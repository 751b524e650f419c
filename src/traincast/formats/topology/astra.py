"""Read the network file of ASTRA-sim's analytical back ends.

It is YAML with four lists of one length, a place per dimension, in brackets or as ``- item`` lines::

    topology: [ Switch, Ring ]
    npus_count: [ 8, 4 ]
    bandwidth: [ 400, 50 ]    # GB/s of each link and direction; a GB is 2^30 bytes here
    latency: [ 936.25, 500 ]  # ns

Only that much of YAML is read. Latencies are left to the cluster's links.

Source: astra-sim/astra-network-analytical, the parser of its network files.
"""

import math
from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.contract import Sniff
from traincast.formats.topology.simai import load_text
from traincast.formats.values import number, shown
from traincast.hardware.network import SHAPES, Dimension
from traincast.units import RANGES

GB = 2**30
"""What that simulator means by a gigabyte."""
MOST_GPUS = 2**20
KEYS = ("topology", "npus_count", "bandwidth", "latency")

_Item = tuple[str, int]
"""A text and its line."""


def looks_like(head: str) -> Sniff:
    """Tell from the keys."""
    keys = {line.split(":")[0].strip() for line in head.splitlines() if ":" in line}
    missing = [key for key in KEYS if key not in keys]
    if missing:
        return Sniff(0.0, f"there is no key {missing[0]!r}")
    return Sniff(0.95, f"the keys {', '.join(KEYS)}")


def read_dimensions(path: Path) -> tuple[Dimension, ...]:
    """Read the dimensions.

    Parameters
    ----------
    path : Path
        ASTRA-sim network file.

    Returns
    -------
    tuple of Dimension
        The first one joins consecutive ranks.

    Raises
    ------
    FormatError
        With the line of what cannot be read.
    """
    lists = _lists(path)
    for key in KEYS:
        if not lists.get(key):
            raise FormatError(f"the list {key!r} is missing or empty", str(path))
        if len(lists[key]) != len(lists["topology"]):
            raise FormatError(
                f"{key!r} has {len(lists[key])} values for {len(lists['topology'])} dimensions",
                str(path),
                lists[key][0][1],
            )
    found = []
    for (shape, line), size, rate in zip(lists["topology"], lists["npus_count"], lists["bandwidth"], strict=True):
        if shape not in SHAPES:
            raise FormatError(f"the shape {shown(shape)} is unknown; known: {', '.join(SHAPES)}", str(path), line)
        link_bytes_per_s = _positive(path, rate) * GB
        if not (least := RANGES["rate"].lowest) <= link_bytes_per_s <= (most := RANGES["rate"].highest):
            side = f"below {least / GB:.4g}" if link_bytes_per_s < least else f"above {most / GB:.4g}"
            raise FormatError(f"the bandwidth {shown(rate[0])} is {side} GB/s", str(path), rate[1])
        found.append(Dimension(shape, int(_positive(path, size, whole=True)), link_bytes_per_s))
    gpus = math.prod(each.size for each in found)
    if gpus > MOST_GPUS:
        raise FormatError(f"{gpus} GPUs are more than the {MOST_GPUS} that are looked at", str(path), 1)
    return tuple(found)


def _lists(path: Path) -> dict[str, list[_Item]]:
    found: dict[str, list[_Item]] = {}
    key, opened = "", False
    for line, raw in enumerate(load_text(path).splitlines(), start=1):
        text = raw.split("#")[0].strip()
        if not text or text == "---":
            continue
        if not opened and not text.startswith("-"):
            key, colon, text = (part.strip() for part in text.partition(":"))
            if not colon or key in found:
                raise FormatError(
                    f"{shown(raw.strip())} is no key with a list, or its key stands twice", str(path), line
                )
            found[key] = []
        opened = (opened or "[" in text) and "]" not in text
        items = text.removeprefix("- ").strip("[]").split(",")
        found.setdefault(key, []).extend((item.strip(" \"'[]"), line) for item in items if item.strip(" \"'[]"))
    return found


def _positive(path: Path, item: _Item, *, whole: bool = False) -> float:
    text, line = item
    try:
        value = number(text)
    except ValueError as error:
        raise FormatError(str(error), str(path), line) from None
    if value <= 0 or (whole and not isinstance(value, int)):
        raise FormatError(f"{shown(text)} must be a positive {'whole ' if whole else ''}number", str(path), line)
    return value
