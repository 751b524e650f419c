"""Tell an execution trace from other files, and describe one."""

from collections import Counter
from pathlib import Path

from traincast.diagnostics import Note
from traincast.formats.chakra.files import is_groups_file
from traincast.formats.chakra.grammar import NodeType, load
from traincast.formats.chakra.groups import groups_of, read_groups
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.workload.recorded_groups import group_named
from traincast.workload.words import Group, Operation

_MOST_SHOWN = 80


def inspect_file(path: Path) -> Inspection:
    """Describe a trace, or a comm-group file (errors as `load` and `read_groups`)."""
    if is_groups_file(path):
        groups = read_groups(path)
        ranks = {rank for members in groups.values() for rank in members}
        return Inspection(
            generation="ASTRA-sim comm groups",
            confidence=0.8,
            evidence=("lists of ranks by number",),
            counts={"groups": len(groups), "ranks": len(ranks)},
        )
    trace = load(path)
    kinds = Counter(node.body.type for node in trace.nodes)
    distinct = trace.distinct()
    names = {each.value: each.name.lower() for each in NodeType}
    unknown = [node for node in trace.nodes if node.body.type not in names]
    found, descriptions = [], groups_of([trace], ()).descriptions
    for node, (_, count) in distinct.items():
        time_s = count * node.duration_s if node.has_duration else None
        size = max(node.number("comm_size") or 0, 0)
        if node.is_collective:
            kind = group_named(descriptions.get(node.text("pg_name"), "")) or Group.WORLD
            what = node.collective.name.lower() if node.collective is not None else "barrier"
            found.append(Counted(kind, what, count, count * size, time_s))
        elif node.is_message:
            found.append(Counted(Group.PP, Operation.SEND_RECV, count, count * size, time_s))
        elif node.type == NodeType.COMP:
            what = "computation" if node.is_computation else "host"
            found.append(Counted(Group.NONE, what, count, time_s=count * node.duration_s))
    warnings = [
        Note(
            "unknown-node",
            f"node {node.id} is of the unknown type {node.body.type}",
            f"{path}:{1 + trace.nodes.index(node)}",
        )
        for node in unknown[:1]
    ]
    old = "0.0.3" if any(body.old for body in distinct) else "not specified"
    return Inspection(
        generation=f"Chakra execution trace, schema {trace.version or old}",
        confidence=0.95,
        evidence=(f"{len(trace.nodes)} nodes after their lengths, to the last byte",),
        counts={"nodes": len(trace.nodes), **{names.get(kind, f"type_{kind}"): n for kind, n in sorted(kinds.items())}},
        layout={
            name: value
            for name, value in trace.metadata.items()
            if isinstance(value, int | str) and len(str(value)) < _MOST_SHOWN
        },
        totals=tuple(totals_of(found)),
        oddities=tuple(warnings),
    )
