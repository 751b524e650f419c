"""Describe a profiler trace: what wrote it, its GPU, steps, streams, kernels and groups."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traincast.diagnostics import Note, Notebook
from traincast.formats.contract import Inspection, Total
from traincast.formats.kineto.communication import Communication, world_size
from traincast.formats.kineto.grammar import US_PER_S, Trace, read_trace
from traincast.formats.kineto.match import Found, communications
from traincast.formats.kineto.operators import with_operators
from traincast.formats.kineto.ranks import named_rank, said_rank
from traincast.formats.kineto.read import recorded
from traincast.formats.kineto.step import RankStep, Task, chosen, cut, marks
from traincast.formats.values import shown
from traincast.job.options import LayoutOptions
from traincast.workload.recorded_groups import group_named
from traincast.workload.words import Group


def inspect_file(path: Path) -> Inspection:
    """Describe a trace; totals are those of one step (see `traincast.formats.kineto.step.chosen`)."""
    trace = read_trace(path)
    document, gpu = trace.document, trace.gpu
    said, named = said_rank(document), named_rank(path)
    found = marks(trace)
    rank = named or 0 if said is None else said
    step = with_operators(cut(trace, rank, chosen(trace, None))) if len(gpu) else None
    own = [] if step is None else communications(step)
    streams = len(np.unique(np.stack([gpu.device_G, gpu.stream_G]), axis=1).T)
    groups = {each.what.group for each in own} - {None}
    return Inspection(
        generation=_generation(trace),
        evidence=(f"schema version {document.schema_version}, {trace.events:,} events",),
        counts={
            "events": trace.events,
            "steps": len(found),
            "streams": streams,
            "kernels": int(np.sum(gpu.kind_G == 0)),
            "copies": int(np.sum(gpu.kind_G != 0)),
            "host_operators": len(trace.host.name_H),
            "process_groups": len(groups),
        },
        layout={
            "rank": named if said is None else said,
            "world_size": world_size(document) or None,
            "gpu": _gpu(trace),
            "steps": f"{found[0].number} to {found[-1].number}" if found else None,
        },
        totals=() if step is None else tuple(_totals(step, own)),
        oddities=tuple(_warnings(path, trace, step, own)),
        recorded=None if step is None else recorded([trace], (), LayoutOptions(), Notebook(str(path))),
    )


def _generation(trace: Trace) -> str:
    arguments = trace.communicated
    version = "of 2025 or later, with Seq and Comms Id" if trace.comms_ids else ""
    if not version and arguments:
        version = "of 2024 or later, whose collectives say their groups"
    return f"PyTorch profiler trace {version}".strip()


def _gpu(trace: Trace) -> str | None:
    names = {str(each.get("name")) for each in trace.document.devices if each.get("name")}
    return ", ".join(sorted(names)) or None


def _totals(step: RankStep, own: list[Found]) -> Iterator[Total]:
    """Yield what a step ran, by task and group, with the sum of its times."""
    time_s = step.trace.gpu.time_us_G[step.at_G] / US_PER_S
    what_of = {each.at: each.what for each in own}
    count: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for at, task in enumerate(step.task_G):
        key, size = ("compute", "copy" if task is Task.COPY else "kernel"), step.trace.gpu.size_bytes_G[step.at_G[at]]
        if task is Task.COMMUNICATION:
            said = what_of[at]
            key, size = (_named(said), said.operation.name.lower()), said.size_bytes or 0
        sizes[key] += max(int(size), 0)
        count[key] += 1
        seconds[key] += float(time_s[at])  # type: ignore[assignment]
    for group, what in sorted(count):
        key = group, what
        yield Total(group=group, what=what, count=count[key], size_bytes=sizes[key], time_s=seconds[key])


def _named(said: Communication) -> str:
    group = said.group
    if group is None:
        return "unknown" if said.kind is Group.NONE else said.kind.name.lower()
    kind = group_named(group.purpose)
    return shown(group.purpose or group.name)[1:-1] if kind is None else kind.name.lower()


def _warnings(path: Path, trace: Trace, step: RankStep | None, own: list[Found]) -> Iterator[Note]:
    place = str(path)
    if step is None:
        yield Note("no-gpu", "nothing ran on a GPU: only the host was profiled", place)
        return
    if said_rank(trace.document) is None:
        yield Note("rank-not-said", "no distributedInfo says the rank", place)
    if not marks(trace):
        yield Note("step-not-marked", "no ProfilerStep#n marks a step; the whole trace is one", place)
    silent = sum(each.what.group is None for each in own)
    if silent:
        yield Note("groups-not-said", f"{silent} of {len(own)} communications of a step say no process group", place)
    alone = int(np.sum(step.call_G < 0))
    if alone:
        text = f"{alone} of {len(step.call_G)} pieces of GPU work have no launch in the trace"
        yield Note("launch-missing", text, place)
