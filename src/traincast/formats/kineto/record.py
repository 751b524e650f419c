"""What one rank ran in a step, as a record of operations: its streams, its host, and who waited for whom.

* Work of the GPU is in order on its stream, and begins no earlier than the call that launched it.
* The host is one queue: from call to call it is busy for as long as it was measured to be, but where it waited for the
  GPU (a synchronisation, a copy that blocks) it waits for the work that ended last before it went on.
* A collective waits for what its thread last launched before it on another stream: PyTorch makes the stream of a
  collective wait for the current one (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, syncStream).
* Where a trace says which stream waited for which (events ``Stream Wait Event``), that holds. Otherwise a call of
  ``cudaStreamWaitEvent`` that prepares no collective is the wait for one (Work.wait): what the thread launches next on
  another stream waits for the last collective launched before, of those that had ended by then and were not waited
  for. And work that began later than all this explains, but shortly after something of another stream had ended,
  waited for that.

Letters: G pieces of work of the GPU, I instants of the host, E edges.
"""

import math
import re
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.formats.kineto.step import RankStep, Task
from traincast.workload.ops import BoolArray, FloatArray, IntArray

_EXPLAINED_US = 5.0
"""Pause before work of a GPU that needs no reason: launches and switches between kernels take a few microseconds."""
_NEAR_US = 20.0
"""Within so much of an end on another stream work that paused longer is taken to have waited for it."""
_RESOLUTION_US = 1.5
"""Clocks of host and GPU agree to about that."""
_MOST_OPEN = 64
"""Collectives, the last that were launched, among which the one that is waited for is looked for."""
_WAITS = re.compile(r"(?:Device|Stream|Event|Ctx|Context)_?Synchronize$", re.IGNORECASE)
_STREAM_WAITS = re.compile(r"StreamWaitEvent")
_BLOCKS = re.compile(r"Memcpy", re.IGNORECASE)


class Instant(NamedTuple):
    """When the host launched something, began to wait, ended to wait, or was done with the step."""

    time_us: float
    after_us: float = -math.inf
    """When what it waited for until then had ended."""
    waits_for: int = -1
    """That piece of work of the GPU; -1 where it did not wait."""
    call: int = -1
    """Index into `Trace.calls`, -1 for none."""


class Order(Struct, frozen=True):
    """Who follows whom in one rank's step; edges lead from the first to the second."""

    lane_G: IntArray
    """In-order queue of each piece of work, from 0: a stream, or a part of it where its kernels overlap."""
    lanes: int
    host: tuple[Instant, ...]
    """In the order of time."""
    launch_G: IntArray
    """Instant of the host that launched it, -1 for none."""
    edge_src_E: IntArray
    """Work of the GPU that other work waits for."""
    edge_dst_E: IntArray


def order_of(step: RankStep) -> Order:
    """Find out who follows whom."""
    lane_G, lanes = _lanes(step)
    host, launch_G = _host(step)
    source_E, target_E = _edges(step, lane_G)
    return Order(lane_G, lanes, host, launch_G, source_E, target_E)


def _lanes(step: RankStep) -> tuple[IntArray, int]:
    """Return the queue of each piece of work, and how many there are.

    Kernels of one stream follow each other, but newer GPUs begin one while the one before it ends (programmatic
    dependent launch): such a one is put on a stream of its own.
    """
    gpu = step.trace.gpu
    _, stream_G = np.unique(np.stack([gpu.device_G[step.at_G], gpu.stream_G[step.at_G]]), axis=1, return_inverse=True)
    ends_us: dict[int, list[tuple[int, float]]] = {}
    lanes, lane_G = 0, []
    columns = (stream_G.reshape(-1).tolist(), step.start_us_G.tolist(), step.stop_us_G.tolist())
    for stream, start_us, stop_us in zip(*columns, strict=True):
        own = ends_us.setdefault(stream, [])
        free = next((at for at, (_, end_us) in enumerate(own) if end_us <= start_us + _RESOLUTION_US), None)
        if free is None:
            free = len(own)
            own.append((lanes, stop_us))
            lanes += 1
        own[free] = own[free][0], max(stop_us, own[free][1])
        lane_G.append(own[free][0])
    return np.array(lane_G, dtype=np.int64), lanes


def _host(step: RankStep) -> tuple[tuple[Instant, ...], IntArray]:
    """Return the host's instants, and which of them launched each piece of work, [G]."""
    calls = step.trace.calls
    launching, first_G = np.unique(step.call_G, return_inverse=True)
    found = [Instant(float(calls.start_us_C[call]), call=call) for call in launching[launching >= 0].tolist()]
    found += [instant for call in _waiting(step, launching) for instant in _wait(step, call)]
    host = (*sorted(found), Instant(max(step.end_us, *(each.time_us for each in found), step.begin_us)))
    host = tuple(each._replace(time_us=max(each.time_us, step.begin_us)) for each in host)
    first_of: dict[int, int] = {}
    for at, instant in enumerate(host):
        if instant.waits_for < 0:
            first_of.setdefault(instant.call, at)
    launch_of = np.array([first_of[call] if call >= 0 else -1 for call in launching.tolist()], dtype=np.int64)
    return host, launch_of[first_G.reshape(-1)]


def _waiting(step: RankStep, launching: IntArray) -> list[int]:
    """Return the calls in which the host may wait for the GPU: synchronisations, and copies."""
    calls, names = step.trace.calls, step.trace.names
    waits = [at for at, name in enumerate(names) if _WAITS.search(name)]
    copies = {at for at, name in enumerate(names) if _BLOCKS.search(name)}
    copying = [call for call in launching.tolist() if call >= 0 and calls.name_C[call] in copies]
    return [*np.flatnonzero(during(step) & np.isin(calls.name_C, waits)).tolist(), *copying]


def _wait(step: RankStep, call: int) -> tuple[Instant, ...]:
    """Return the begin and end of the wait in a call: for what ended last of all that was launched before it.

    Nothing where nothing ended while it lasted.
    """
    begin_us = float(step.trace.calls.start_us_C[call])
    end_us = begin_us + float(step.trace.calls.time_us_C[call])
    ended = np.flatnonzero(
        (step.stop_us_G > begin_us) & (step.stop_us_G <= end_us + _RESOLUTION_US) & (step.launch_us_G <= begin_us)
    )
    if not len(ended):
        return ()
    last = int(ended[np.argmax(step.stop_us_G[ended])])
    return Instant(begin_us, call=call), Instant(end_us, min(float(step.stop_us_G[last]), end_us), last, call)


def during(step: RankStep) -> BoolArray:
    """Tell which calls of the runtime the host made in a step."""
    calls = step.trace.calls
    found: BoolArray = (calls.start_us_C >= step.begin_us) & (calls.start_us_C < step.end_us)
    return found


def _edges(step: RankStep, lane_G: IntArray) -> tuple[IntArray, IntArray]:
    """Return which work of other streams each piece of work waits for."""
    found = {**_inferred(step, lane_G), **_told(step)}
    pairs = sorted({(source, target) for target, sources in found.items() for source in sources})
    pairs += _before_collectives(step, lane_G)
    if not len(step.trace.waits.stream_W):
        pairs += _awaited(step, lane_G)
    pairs = sorted(set(pairs))
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    kept = step.stop_us_G[edges[:, 0]] <= step.start_us_G[edges[:, 1]]
    return edges[kept, 0], edges[kept, 1]


def _before_collectives(step: RankStep, lane_G: IntArray) -> list[tuple[int, int]]:
    """Return what each collective waits for: what its thread launched last on another stream before it."""
    thread_G = step.thread_G
    last: dict[int, int] = {}
    found = []
    for at in np.lexsort((np.arange(len(lane_G)), step.launch_us_G)).tolist():
        thread = int(thread_G[at])
        if step.task_G[at] is not Task.COMMUNICATION:
            last[thread] = at
        elif thread in last and lane_G[last[thread]] != lane_G[at]:
            found.append((last[thread], at))
    return found


def _awaited(step: RankStep, lane_G: IntArray) -> list[tuple[int, int]]:
    """Return the collectives that the host made a stream wait for, and the work that waits."""
    calls, names = step.trace.calls, step.trace.names
    waiting = [at for at, name in enumerate(names) if _STREAM_WAITS.search(name)]
    waits = np.flatnonzero(during(step) & np.isin(calls.name_C, waiting))
    moments = [(float(calls.start_us_C[call]), int(calls.thread_C[call]), -1) for call in waits.tolist()]
    launches = zip(step.launch_us_G.tolist(), step.thread_G.tolist(), strict=True)
    moments += [(launch_us, thread, at) for at, (launch_us, thread) in enumerate(launches) if thread >= 0]
    open_waits: dict[int, int] = {}
    launched: list[int] = []
    found = []
    start_us, stop_us = step.start_us_G, step.stop_us_G
    for _, thread, at in sorted(moments):
        if at < 0:
            open_waits[thread] = open_waits.get(thread, 0) + 1
            continue
        count = open_waits.pop(thread, 0)
        if step.task_G[at] is Task.COMMUNICATION:
            launched.append(at)
            continue
        if count:
            recent = [each for each in launched[-_MOST_OPEN:] if lane_G[each] != lane_G[at]]
            for each in [each for each in recent if stop_us[each] <= start_us[at]][-count:]:
                launched.remove(each)
                found.append((each, at))
    return found


def _told(step: RankStep) -> dict[int, list[int]]:
    """Return by work what the trace says that its stream waited for before it."""
    waits, gpu, calls = step.trace.waits, step.trace.gpu, step.trace.calls
    start_of = dict(zip(calls.correlation_C.tolist(), calls.start_us_C.tolist(), strict=True))
    stream_G = gpu.stream_G[step.at_G]
    by_launch = np.argsort(step.launch_us_G, kind="stable")
    found: dict[int, list[int]] = {}
    for stream, other, wait, recorded in zip(
        *(column.tolist() for column in (waits.stream_W, waits.for_stream_W, waits.correlation_W, waits.recorded_by_W)),
        strict=True,
    ):
        waited_us, recorded_us = start_of.get(wait), start_of.get(recorded)
        if waited_us is None or recorded_us is None or other < 0 or other == stream:
            continue
        before = by_launch[(step.launch_us_G[by_launch] <= recorded_us) & (stream_G[by_launch] == other)]
        after = by_launch[(step.launch_us_G[by_launch] >= waited_us) & (stream_G[by_launch] == stream)]
        if len(before) and len(after):
            found.setdefault(int(after[0]), []).append(int(before[-1]))
    return found


def _inferred(step: RankStep, lane_G: IntArray) -> dict[int, list[int]]:
    """Return by work that paused without another reason what had ended on another stream just before it began."""
    start_us, stop_us = step.start_us_G, step.stop_us_G
    free_us: dict[int, float] = {}
    by_end = np.argsort(stop_us, kind="stable")
    ends_us: FloatArray = stop_us[by_end]
    found: dict[int, list[int]] = {}
    for at, lane in enumerate(lane_G.tolist()):
        reason_us = max(free_us.get(lane, step.begin_us), float(step.launch_us_G[at]))
        free_us[lane] = max(free_us.get(lane, -np.inf), float(stop_us[at]))
        if start_us[at] - reason_us <= _EXPLAINED_US:
            continue
        last = int(np.searchsorted(ends_us, start_us[at], side="right")) - 1
        while last >= 0 and (lane_G[by_end[last]] == lane or by_end[last] == at):
            last -= 1
        if last >= 0 and ends_us[last] > reason_us and start_us[at] - ends_us[last] <= _NEAR_US:
            found[at] = [int(by_end[last])]
    return found
