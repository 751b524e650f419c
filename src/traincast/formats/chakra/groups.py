"""Communication groups of execution traces: ASTRA-sim's comm-group file, and process groups that PyTorch wrote down.

A collective names its group by the attribute ``pg_name``; none, or ``"0"``, is all ranks. Who is in a group is said by

* a JSON object ``{"1": [0, 1], "2": [2, 3]}``, ASTRA-sim's ``--comm-group-configuration``, whose keys must be integers;
* METADATA nodes, whose input values hold ``[{"pg_name": "1", "pg_desc": "...", "ranks": [0, 1]}, ...]``, perhaps as a
  text in a list; no ranks are all of them. They go before the file.

Source: ASTRA-sim, astra-sim/workload/Workload.cc (initialize_comm_groups, issue_pytorch_pg_metadata,
extract_comm_group); PyTorch, torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from traincast.errors import FormatError
from traincast.files import parse_json, read_text
from traincast.formats.chakra.grammar import Node, NodeType, Trace

DEFAULT = "0"
"""Name of the group of all ranks."""
DESCRIPTIONS = "pg_desc"
"""Attribute of our own metadata: what each group is, as JSON."""
DEGREES = ("tp", "cp", "pp", "ep", "etp", "dp")
"""Attributes of our own metadata: the layout."""
_MOST_BYTES = 2**26
_MOST_DIGITS = 18


class Groups(Struct):
    """What is known of groups by their names."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Empty for all ranks."""
    descriptions: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, ranks: tuple[int, ...], description: str = "") -> None:
        """Take a group; all files of a run say the same of it, and what is said last counts."""
        self.members[name] = ranks
        if description:
            self.descriptions[name] = description


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Read a comm-group file.

    Raises
    ------
    FormatError
        If it is none, with the group.
    """
    document, shown = parse_json(read_text(path, _MOST_BYTES), str(path)), str(path)
    if not isinstance(document, dict) or not document:
        raise FormatError('the file holds no object of groups: {"1": [0, 1], ...}', shown)
    found = {}
    for name, ranks in document.items():
        if not name.isdecimal() or len(name) > _MOST_DIGITS:
            raise FormatError(f"the object names a group {name[:40]!r}; names must be integers", shown)
        found[str(int(name))] = _ranks(ranks, f"entry [{int(name)}]", shown)
        if not found[str(int(name))]:
            raise FormatError(f"entry [{int(name)}] has no ranks", shown)
    return found


def _ranks(value: object, what: str, shown: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in value):
        raise FormatError(f"{what} is not a list of ranks", shown)
    ranks = tuple(value)
    if len(set(ranks)) < len(ranks) or any(not 0 <= rank < 2**31 for rank in ranks):
        raise FormatError(f"{what} has ranks that are negative, too large or there twice", shown)
    return ranks


def groups_of(traces: Iterable[Trace], files: Iterable[Path]) -> Groups:
    """Return the groups that comm-group files and traces tell of."""
    groups = Groups()
    for path in files:
        for name, ranks in read_groups(path).items():
            groups.add(name, ranks)
    for trace in traces:
        for node in trace.nodes:
            if node.body.type == NodeType.METADATA and node.body.inputs:
                _add_process_groups(groups, node, trace.path)
        said = trace.metadata.get(DESCRIPTIONS)
        if isinstance(said, str):
            known = _object(said)
            groups.descriptions.update({str(name): str(text) for name, text in known.items()})
    return groups


def _object(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _add_process_groups(groups: Groups, node: Node, shown: str) -> None:
    """Take the process groups of a METADATA node; one that holds none is left alone."""
    inputs = node.body.inputs
    begin, end = inputs.find("[{"), inputs.rfind("}]")
    if begin < 0 or end < begin:
        return
    try:
        entries = json.loads(inputs[begin : end + 2])
    except (ValueError, RecursionError):
        return
    for entry in entries:
        if isinstance(entry, dict) and "pg_name" in entry and "ranks" in entry:
            name = str(entry["pg_name"])
            what = f"the process group {name[:40]!r} of node {node.id}, at byte {node.byte},"
            groups.add(name, _ranks(entry["ranks"], what, shown), str(entry.get("pg_desc", "")))


def groups_file(members: Mapping[int, Iterable[int]]) -> bytes:
    """Return a comm-group file, a group on each line."""
    lines = [f'"{name}": [{", ".join(map(str, ranks))}]' for name, ranks in members.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
