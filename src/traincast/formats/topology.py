"""Files that describe a network: SimAI's topology file and the network file of ASTRA-sim's analytical back ends.

They hold no workload; a cluster names one as ``[fabric] file = ...``. Latencies are left to the cluster's links.

**SimAI** (the input of its NS3 back end). Line 1: vertices, GPUs of a node, NVSwitches, other switches, links, GPU
type. Line 2: ids of all switches. Then a line per link, which goes both ways: two ids, rate, latency, error rate.
GPUs have the first ids, then NVSwitches, then the others. Source: aliyun/SimAI, the generator of its topologies.

**ASTRA-sim**. YAML, of which only this much is read: four lists of one length, a place per dimension, in brackets
or as ``- item`` lines. Source: astra-sim/astra-network-analytical, the parser of its network files. ::

    topology: [ Switch, Ring ]
    npus_count: [ 8, 4 ]
    bandwidth: [ 400, 50 ]    # GB/s of each link and direction; a GB is 2^30 bytes here
    latency: [ 936.25, 500 ]  # ns
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.files import MOST_BYTES, read_text
from traincast.formats.contract import FORMATS, FileKind, Inspection, Reader, Sniff
from traincast.formats.values import number, shown
from traincast.hardware.network import SHAPES, Dimension, Network, bisection_bytes_per_s
from traincast.units import RANGES, format_rate, parse_rate

MOST_LINKS = 2**19
"""Links of a file; the largest published one, Alibaba's HPN with 15,360 GPUs, has some 100,000."""
MOST_GPUS = 2**20
GB = 2**30
"""What ASTRA-sim means by a gigabyte."""

_HEADER = "vertices, GPUs per node, NVSwitches, other switches, links, GPU type"
_HEADER_FIELDS = 6
_LINK_FIELDS = 5
_LONGEST_ID = 9
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_SHOWN = 8
"""GPUs that are named."""

_IntArray = npt.NDArray[np.int64]


def read_topology(path: Path) -> Network | tuple[Dimension, ...]:
    """Read either kind of file: a network from SimAI's, dimensions from ASTRA-sim's, the first joining nearby ranks.

    Raises
    ------
    FormatError
        If the file cannot be read or is neither; with the line of what cannot be read or contradicts the header.
    """
    text = _load(path)
    is_astra = _looks_like_astra(text).confidence > _looks_like_simai(text).confidence
    return _read_dimensions(path, text) if is_astra else _read_network(path, text)


def network_layout(network: Network) -> dict[str, int | str | None]:
    """Return what is said of a network in addition to its counts: size of a node, bisection, oversubscription."""
    ratios = network.oversubscription.items()
    return {
        "gpus_per_node": network.gpus_per_node,
        "bisection": format_rate(network.bisection_bytes_per_s),
        "oversubscription": ", ".join(f"{name} {ratio:.4g}:1" for name, ratio in ratios) or None,
    }


def _load(path: Path) -> str:
    return read_text(path, MOST_BYTES, encoding="utf-8-sig")


# --- SimAI


def _looks_like_simai(head: str) -> Sniff:
    lines = head.splitlines()
    header = lines[0].split() if lines else []
    if len(header) != _HEADER_FIELDS or not all(map(_is_id, header[:5])):
        return Sniff(0.0, "the first line is not five counts and a GPU type")
    if len(lines) > 1 and all(map(_is_id, lines[1].split())):
        return Sniff(0.95, "five counts and a GPU type, then ids of switches")
    return Sniff(0.3, "five counts and a word on the first line")


def _read_network(path: Path, text: str) -> Network:
    """Read SimAI's file; tiers are GPU, NVSwitch, leaf (has a link to a GPU), spine (has none)."""
    lines = text.splitlines()
    vertices, per_node, nvswitches, others, links = _header(path, lines)
    gpus = vertices - nvswitches - others
    if links > MOST_LINKS:
        raise FormatError(f"the header says {links:,} links, above the limit of {MOST_LINKS:,}", str(path), 1)
    if gpus < 1 or per_node < 1:
        raise FormatError(f"says {vertices} vertices of which none is a GPU ({_HEADER})", str(path), 1)
    rows = [(place, line.split()) for place, line in enumerate(lines[2:], start=3) if line.strip()]
    if len(rows) != links:
        raise FormatError(f"the header says {links} links, the file has {len(rows)}", str(path), 1)
    if vertices > 2 * links:
        raise FormatError(f"{links} links cannot join {vertices} vertices", str(path), 1)
    found = [_link(path, place, fields, vertices) for place, fields in rows]
    pair_L2 = np.array([(low, high) for low, high, _ in found], dtype=np.int64)
    pair_L2, rate_L = np.concatenate([pair_L2, pair_L2[:, ::-1]]), np.array([rate for *_, rate in found] * 2)
    return Network(
        tier_names=("GPU", "NVSwitch", "leaf", "spine"),
        tier_V=_tiers(pair_L2, vertices, gpus, nvswitches),
        source_L=pair_L2[:, 0],
        target_L=pair_L2[:, 1],
        capacity_L=rate_L,
        gpus_per_node=per_node,
    )


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_ID


def _header(path: Path, lines: list[str]) -> list[int]:
    header = lines[0].split() if lines else []
    if len(header) != _HEADER_FIELDS or not all(map(_is_id, header[:5])):
        raise FormatError(f"the first line must be: {_HEADER}", str(path), 1)
    counts = list(map(int, header[:5]))
    gpus = counts[0] - counts[2] - counts[3]
    switches = lines[1].split() if len(lines) > 1 else []
    if sorted(switches) != sorted(map(str, range(max(gpus, 0), counts[0]))):
        raise FormatError(f"the second line must list the switches {gpus} to {counts[0] - 1}", str(path), 2)
    return counts


def _link(path: Path, line: int, fields: list[str], vertices: int) -> tuple[int, int, float]:
    if len(fields) != _LINK_FIELDS or not all(map(_is_id, fields[:2])):
        raise FormatError("a link must be two ids, rate, latency and error rate", str(path), line)
    low, high = int(fields[0]), int(fields[1])
    if max(low, high) >= vertices or low == high:
        raise FormatError(f"a link joins {low} and {high} of {vertices} vertices", str(path), line)
    try:
        return low, high, parse_rate(fields[2])
    except ConfigError:
        raise FormatError(f"{shown(fields[2])} is not a rate such as 400Gbps", str(path), line) from None


def _tiers(pair_L2: _IntArray, vertices: int, gpus: int, nvswitches: int) -> _IntArray:
    tier_V = np.full(vertices, 3)
    tier_V[pair_L2[pair_L2[:, 0] < gpus, 1]] = 2
    tier_V[gpus : gpus + nvswitches] = 1
    tier_V[:gpus] = 0
    return tier_V


def _describe_network(path: Path) -> Inspection:
    network = _read_network(path, _load(path))
    return Inspection(
        generation="SimAI topology file",
        evidence=("five counts and a GPU type, then ids of switches",),
        counts=network.counts,
        layout=network_layout(network),
        oddities=_cut_off(path, network),
    )


def _cut_off(path: Path, network: Network) -> tuple[Note, ...]:
    """Say which GPUs cannot send out of their node."""
    gpus = network.cut_off_gpus.tolist()
    if not gpus:
        return ()
    named = ", ".join(map(str, gpus[:_SHOWN])) + (f" and {len(gpus) - _SHOWN} more" if len(gpus) > _SHOWN else "")
    text = (
        f"no link leads out of its node from {'GPU' if len(gpus) == 1 else 'GPUs'} {named}; a step that needs it fails"
    )
    return (Note("gpu-cut-off", text, str(path)),)


# --- ASTRA-sim

_Item = tuple[str, int]
"""A text and its line."""


def _looks_like_astra(head: str) -> Sniff:
    keys = {line.split(":")[0].strip() for line in head.splitlines() if ":" in line}
    missing = [key for key in _KEYS if key not in keys]
    if missing:
        return Sniff(0.0, f"there is no key {missing[0]!r}")
    return Sniff(0.95, f"the keys {', '.join(_KEYS)}")


def _read_dimensions(path: Path, text: str) -> tuple[Dimension, ...]:
    lists = _lists(path, text)
    for key in _KEYS:
        if not lists.get(key):
            raise FormatError(f"the list {key!r} is missing or empty", str(path))
        if len(lists[key]) != len(lists["topology"]):
            message = f"{key!r} has {len(lists[key])} values for {len(lists['topology'])} dimensions"
            raise FormatError(message, str(path), lists[key][0][1])
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


def _lists(path: Path, text: str) -> dict[str, list[_Item]]:
    found: dict[str, list[_Item]] = {}
    key, opened = "", False
    for line, raw in enumerate(text.splitlines(), start=1):
        rest = raw.split("#")[0].strip()
        if not rest or rest == "---":
            continue
        if not opened and not rest.startswith("-"):
            key, colon, rest = (part.strip() for part in rest.partition(":"))
            if not colon or key in found:
                message = f"{shown(raw.strip())} is not a key with a list, or its key stands twice"
                raise FormatError(message, str(path), line)
            found[key] = []
        opened = (opened or "[" in rest) and "]" not in rest
        items = rest.removeprefix("- ").strip("[]").split(",")
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


def _describe_dimensions(path: Path) -> Inspection:
    dimensions = _read_dimensions(path, _load(path))
    gpus = math.prod(each.size for each in dimensions)
    switches = sum(gpus // each.size for each in dimensions if each.shape == "Switch" and each.size > 1)
    links = sum(gpus // each.size * each.links for each in dimensions)
    shapes = " x ".join(f"{each.shape} {each.size} at {format_rate(each.link_bytes_per_s)}" for each in dimensions)
    bisection = format_rate(bisection_bytes_per_s(dimensions))
    return Inspection(
        generation="ASTRA-sim network file, analytical",
        evidence=("lists of topology, npus_count, bandwidth and latency",),
        counts={"dimensions": len(dimensions), "GPUs": gpus, "switches": switches, "links": links},
        # Nothing in dimensions is oversubscribed by tier.
        layout={"dimensions": shapes, "bisection": bisection, "oversubscription": None},
    )


for _name, _title, _looks_like, _describe in (
    ("simai-topology", "SimAI topology file", _looks_like_simai, _describe_network),
    ("astra-network", "ASTRA-sim network file", _looks_like_astra, _describe_dimensions),
):
    FORMATS.register(_name)(
        FileKind(
            name=_name,
            title=_title,
            looks_like=_looks_like,
            reader=Reader(describe=_describe),
            instead="a network, not a workload; name it in a cluster file ([fabric] with file = {name!r}) and give "
            "that with --cluster",
        )
    )
