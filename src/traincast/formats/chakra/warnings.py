"""Traps of execution traces: units that converters mix up, and what they leave out.

Sources: mlcommons/chakra, src/converter/text_converter.py; ASTRA-sim, issues 173, 207, 222 and 224.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from traincast.diagnostics import Notebook
from traincast.formats.chakra.grammar import PIECES, Body, Trace
from traincast.units import counted

_OF_TEXT_CONVERTER = re.compile(r"COMP_NODE_.*_(?:FWD|BWD|BWD_IG|BWD_WG|IG|WG)[^_]*", re.IGNORECASE)
"""Names that the converter of ASTRA-sim 1.0 texts gives to computations."""
_LONG_S = 600.0
"""Computation of a rank above which its unit is doubted: ten minutes, in a trace of some steps."""


def say_what_is_unusual(traces: Sequence[Trace], notes: Notebook) -> None:
    """Note what the nodes of a run show of these traps."""
    distinct = [trace.distinct() for trace in traces]
    nodes: Counter[Body] = Counter()
    for each in distinct:
        nodes.update({body: count for body, (_, count) in each.items()})
    _say_of_units(distinct, nodes, notes)
    if not any("is_cpu_op" in node.attributes for node in nodes):
        text = "no node says is_cpu_op; all are taken as work of the GPU (versions of ASTRA-sim disagree)"
        notes.warn("no-is-cpu-op", text, None)
    lacking = sum(count for node, count in nodes.items() if node.is_message and node.peer is None)
    if lacking:
        messages = counted(lacking, "message does", "messages do")
        text = f"{messages} not name the rank at the other end; nothing waits for it"
        notes.warn("message-without-peer", text, None)
    dims = sum(
        count
        for node, count in nodes.items()
        if isinstance(value := node.attributes.get("involved_dim"), list) and not all(value)
    )
    if dims:
        text = (
            f"{counted(dims, 'collective runs', 'collectives run')} over some dimensions of a network that is not in "
            "the file (involved_dim); taken as over their whole group"
        )
        notes.warn("involved-dim", text, None)
    unknown = [node for node in nodes if node.is_computation and not node.has_duration]
    counted_work = sum(nodes[node] for node in unknown if node.number("tensor_size"))
    if counted_work:
        shown = counted(counted_work, "computation says", "computations say")
        text = f"{shown} FLOP and bytes and no duration; estimated as kernels in bf16 at the rates of GEMMs"
        notes.assume("num-ops", text, None)
    zero = sum(nodes[node] for node in unknown) - counted_work
    if zero:
        text = f"{counted(zero, 'computation has', 'computations have')} no duration; taken as 0 s"
        notes.assume("duration-zero", text, None)


def _say_of_units(distinct: Sequence[Mapping[Body, tuple[object, int]]], nodes: Counter[Body], notes: Notebook) -> None:
    gathers = sum(count for node, count in nodes.items() if node.is_collective and node.collective in PIECES)
    if gathers:
        text = "comm_size is what one rank puts in, as in ASTRA-sim and PyTorch; taken times the ranks of the group"
        notes.assume(
            "gather-sizes", f"{counted(gathers, 'all-gather or gather', 'all-gathers and gathers')}: {text}", None
        )
    if any(_OF_TEXT_CONVERTER.fullmatch(node.name) for node in nodes):
        text = (
            "made by the converter of ASTRA-sim 1.0 texts, which copies times in cycles (1 ns) into microseconds: "
            "computation is then 1,000 times too long against communication"
        )
        notes.warn("cycles-as-microseconds", text, None)
    longest_s = max(
        sum(count * body.duration_s for body, (_, count) in each.items() if body.is_computation) for each in distinct
    )
    if longest_s > _LONG_S:
        text = f"a rank computes for {longest_s:,.0f} s; durations are microseconds, are these nanoseconds or cycles?"
        notes.warn("duration-unit", text, None)
