"""Read a SimAI topology file (the input of its NS3 back end).

Line 1: vertices, GPUs of a node, NVSwitches, other switches, links, GPU type. Line 2: ids of all
switches. Then a line per link, which goes both ways: two ids, rate, latency, error rate. GPUs have
the first ids, then NVSwitches, then the others. Latencies are left to the cluster's links.

Source: aliyun/SimAI, the generator of topologies of its NS3 back end.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from traincast.errors import ConfigError, FormatError
from traincast.files import MOST_BYTES, read_text
from traincast.formats.contract import Sniff
from traincast.formats.values import shown
from traincast.hardware.network import Network
from traincast.units import parse_rate

_HEADER = "vertices, GPUs per node, NVSwitches, other switches, links, GPU type"
_HEADER_FIELDS = 6
_LINK_FIELDS = 5
_LONGEST_ID = 9
MOST_LINKS = 2**19
"""Links of a file; the largest published one, Alibaba's HPN with 15,360 GPUs, has some 100,000."""

IntArray = npt.NDArray[np.int64]


def looks_like(head: str) -> Sniff:
    """Tell from the header and the list of switches."""
    lines = head.splitlines()
    header = lines[0].split() if lines else []
    if len(header) != _HEADER_FIELDS or not all(_is_id(field) for field in header[:5]):
        return Sniff(0.0, "the first line is not five counts and a GPU type")
    if len(lines) > 1 and all(_is_id(field) for field in lines[1].split()):
        return Sniff(0.95, "five counts and a GPU type, then ids of switches")
    return Sniff(0.3, "five counts and a word on the first line")


def load_text(path: Path) -> str:
    """Return the text of a small file, or raise FormatError."""
    return read_text(path, MOST_BYTES, encoding="utf-8-sig")


def read_network(path: Path) -> Network:
    """Read the network.

    Parameters
    ----------
    path : Path
        SimAI topology file.

    Returns
    -------
    Network
        Tiers: GPU, NVSwitch, leaf (has a link to a GPU), spine (has none).

    Raises
    ------
    FormatError
        With the line of what cannot be read or contradicts the header.
    """
    lines = load_text(path).splitlines()
    vertices, per_node, nvswitches, others, links = _header(path, lines)
    if links > MOST_LINKS:
        raise FormatError(f"the header says {links:,} links, above the limit of {MOST_LINKS:,}", str(path), 1)
    if vertices - nvswitches - others < 1 or per_node < 1:
        raise FormatError(f"says {vertices} vertices of which none is a GPU ({_HEADER})", str(path), 1)
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], start=3) if line.strip()]
    if len(rows) != links:
        raise FormatError(f"the header says {links} links, the file has {len(rows)}", str(path), 1)
    if vertices > 2 * links:
        raise FormatError(f"{links} links cannot join {vertices} vertices", str(path), 1)
    ends, rates = [], []
    for number, fields in rows:
        low, high, rate = _link(path, number, fields, vertices)
        ends.append((low, high))
        rates.append(rate)
    pair_L2 = np.array(ends, dtype=np.int64)
    pair_L2, rate_L = np.concatenate([pair_L2, pair_L2[:, ::-1]]), np.array(rates * 2)
    tier_V = _tiers(pair_L2, vertices, vertices - nvswitches - others, nvswitches)
    return Network(
        tier_names=("GPU", "NVSwitch", "leaf", "spine"),
        tier_V=tier_V,
        source_L=pair_L2[:, 0],
        target_L=pair_L2[:, 1],
        capacity_L=rate_L,
        gpus_per_node=per_node,
    )


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_ID


def _header(path: Path, lines: list[str]) -> list[int]:
    header = lines[0].split() if lines else []
    if len(header) != _HEADER_FIELDS or not all(_is_id(field) for field in header[:5]):
        raise FormatError(f"the first line must be: {_HEADER}", str(path), 1)
    counts = [int(field) for field in header[:5]]
    gpus = counts[0] - counts[2] - counts[3]
    switches = lines[1].split() if len(lines) > 1 else []
    if sorted(switches) != sorted(map(str, range(max(gpus, 0), counts[0]))):
        raise FormatError(f"the second line must list the switches {gpus} to {counts[0] - 1}", str(path), 2)
    return counts


def _link(path: Path, number: int, fields: list[str], vertices: int) -> tuple[int, int, float]:
    if len(fields) != _LINK_FIELDS or not all(_is_id(field) for field in fields[:2]):
        raise FormatError("a link must be two ids, rate, latency and error rate", str(path), number)
    low, high = int(fields[0]), int(fields[1])
    if max(low, high) >= vertices or low == high:
        raise FormatError(f"a link joins {low} and {high} of {vertices} vertices", str(path), number)
    try:
        return low, high, parse_rate(fields[2])
    except ConfigError:
        raise FormatError(f"{shown(fields[2])} is not a rate such as 400Gbps", str(path), number) from None


def _tiers(pair_L2: IntArray, vertices: int, gpus: int, nvswitches: int) -> IntArray:
    tier_V = np.full(vertices, 3)
    tier_V[pair_L2[pair_L2[:, 0] < gpus, 1]] = 2
    tier_V[gpus : gpus + nvswitches] = 1
    tier_V[:gpus] = 0
    return tier_V
