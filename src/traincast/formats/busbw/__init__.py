"""Read the bus bandwidths that a user of SimAI-Analytical wrote down (``busbw.yaml``).

A line that says nothing, then sections ``TP:``, ``DP:``, ``EP:`` and ``PP:``. In the first three a line
``allreduce,: 300`` gives an operation its rate in GB/s, or ``null`` where there is none; in ``PP`` it is
``busbw: 47.5``. Comments begin with ``#``. In ``EP`` only the all-to-all is that of the expert parallel
group; the others are those of its replicas (SimAI's DP_EP).

Source: aliyun/SimAI up to 2025-08, ``example/busbw.yaml``, ``docs/Tutorial.md``, ``UserParam::parseYaml`` in
``astra-sim/system/AstraParamParse.hh`` and ``Layer::compute_time`` in ``astra-sim/workload/Layer.cc``.
"""

from pathlib import Path

from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.values import number, shown
from traincast.formats.writer import WRITERS
from traincast.units import GIGA

_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
SECTIONS: dict[str, dict[str, str]] = {
    **{name: {key: f"{name.lower()}.{op}" for key, op in _OPERATIONS.items()} for name in ("TP", "DP")},
    "EP": {key: f"{'ep' if key == 'alltoall' else 'edp'}.{op}" for key, op in _OPERATIONS.items()},
    "PP": {"busbw": "pp"},
}
"""Section and key to what it is the rate of, as ``--busbw`` names it."""
_LONGEST_BYTES = 1 << 16
_MOST_GB_PER_S = 1e6


WRITERS.registered_in("traincast.formats.busbw.write", "busbw")


def looks_like_busbw(head: str) -> bool:
    """Tell whether a text is such a file: nothing but a title, sections and their lines, and at least one of each."""
    lines = [line for _, line in _lines(head)]
    title = bool(lines) and lines[0].removesuffix(":") not in SECTIONS
    sections = [line for line in lines[title:] if line.removesuffix(":") in SECTIONS and line.endswith(":")]
    keys = [line.partition(":")[0].split(",")[0].strip() for line in lines[title:] if line not in sections]
    return bool(sections) and bool(keys) and all(key in ("busbw", *_OPERATIONS) for key in keys)


def read_busbw(path: Path) -> dict[str, float]:
    """Return the bytes per second of groups, or of groups and operations (``"tp.all_reduce"``); ``null`` is left out.

    Raises
    ------
    FormatError
        With the line of what cannot be read: an unknown section or key, one that is given twice, no rate.
    """
    shown_path = str(path)
    data = read_bytes(path, _LONGEST_BYTES)
    rates: dict[str, float | None] = {}
    section = None
    for place, (line, text) in enumerate(_lines(data.decode("utf-8", errors="replace"))):
        key, colon, value = (part.strip() for part in text.partition(":"))
        if colon and not value and key in SECTIONS:
            section = key
        elif section is not None:
            _take(rates, section, key.split(",")[0].strip(), value, (shown_path, line))
        elif place:
            raise FormatError(f"{shown(text)} stands in no section; known: {', '.join(SECTIONS)}", shown_path, line)
    found = {name: rate for name, rate in rates.items() if rate is not None}
    if not found:
        text = "holds no bus bandwidth; sections such as 'TP:' with lines such as 'allreduce,: 300'"
        raise FormatError(text, shown_path)
    return found


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that say something, without comments, with their numbers."""
    plain = (
        (place, line.partition("#")[0].strip()) for place, line in enumerate(text.lstrip("\ufeff").splitlines(), 1)
    )
    return [(place, line) for place, line in plain if line]


def _take(rates: dict[str, float | None], section: str, key: str, value: str, place: tuple[str, int]) -> None:
    """Read one line of a section."""
    known = SECTIONS[section]
    if key not in known:
        what = f"section {shown(key)}" if not value else f"{shown(key)} in section {section}"
        options = ", ".join(SECTIONS) if not value else ", ".join(known)
        raise FormatError(f"unknown {what}; known: {options}", *place)
    if known[key] in rates:
        raise FormatError(f"{key} is given twice in section {section}", *place)
    rates[known[key]] = _rate(value, f"{key} of {section}", place)


def _rate(text: str, what: str, place: tuple[str, int]) -> float | None:
    if text in ("null", "~"):
        return None
    try:
        rate = number(text)
    except ValueError as problem:
        raise FormatError(f"{what}: {problem}; give GB/s, or null", *place) from None
    if not 0 < rate <= _MOST_GB_PER_S:
        raise FormatError(f"{what} is {shown(text)} GB/s; it must be above 0 and at most {_MOST_GB_PER_S:.0f}", *place)
    return rate * GIGA
