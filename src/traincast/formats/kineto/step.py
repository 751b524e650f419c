"""One step of one rank: what it ran on the GPU, who launched it, and when.

The profiler marks steps on the host (``ProfilerStep#n``, torch.profiler.profile.step). Work of the GPU belongs to the
step in whose mark it was launched, for the host runs ahead. A step begins with its mark, or, where the GPU was still
busy with what was launched before, when that ended; so steps follow each other without gap or overlap. Without marks
the whole trace is one step.

Letters: G pieces of work of the GPU, C calls of the runtime, H operators of the host.
"""

import re
from enum import StrEnum

import numpy as np
from msgspec import Struct

from traincast.errors import ConfigError, FormatError
from traincast.formats.kineto.communication import library_kernel
from traincast.formats.kineto.events import Work
from traincast.formats.kineto.grammar import Trace
from traincast.workload.ops import BoolArray, FloatArray, IntArray
from traincast.workload.words import Phase

_MARK = re.compile(r"ProfilerStep#[0-9]{1,15}")
_COPIES = re.compile(r"__amd_rocclr_(?:copy|fill)Buffer|^(?:hip|cuda)?Mem(?:cpy|set)", re.IGNORECASE)
"""Kernels that are copies and sets: older versions of ROCm run them as kernels (TraceLens/util.py)."""
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_MARKED = (
    (Phase.FORWARD, re.compile(r"\(F\)$|^(?:forward|fwd)(?:[-_ ]|$)", re.IGNORECASE)),
    (Phase.BACKWARD, re.compile(r"\(B\)$|^(?:backward|bwd)(?:[-_ ]|$)", re.IGNORECASE)),
    (Phase.WEIGHT_GRADIENT, re.compile(r"\(W\)$|^(?:wgrad|weight[-_ ]grad)", re.IGNORECASE)),
)
"""What annotations of a program call its passes: ``attn(F)``, ``mlp(B)`` and ``mlp(W)`` where a schedule overlaps two
microbatches (deepseek-ai/profile-data, train.json), ``forward_step`` and ``backward_step`` of Megatron-LM."""
_OPTIMIZER = re.compile(r"Optimizer\.step#|optimizer\.step|clip_grad")


class Task(StrEnum):
    """What the GPU does, as a breakdown tells it."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    """Memory is copied or set."""


class Mark(Struct, frozen=True):
    """A step that the profiler marked; times are those of the file."""

    number: int
    begin_us: float
    end_us: float


class RankStep(Struct, frozen=True, kw_only=True):
    """A step of one rank; work of the GPU is sorted by its begin, times are those of the file."""

    trace: Trace
    rank: int
    begin_us: float
    end_us: float
    """When the host was done with it."""
    at_G: IntArray
    """Indices into the columns of `Trace.gpu`."""
    task_G: tuple[Task, ...]
    phase_G: IntArray
    call_G: IntArray
    """Call of the runtime that launched it, index into `Trace.calls`; -1 where none is in the trace."""
    launch_us_G: FloatArray
    """Begin of that call; that of the work itself without one."""
    operator_G: IntArray
    """Operator of the host that says what it communicates, index into `Trace.host`; -1 where it says so itself."""

    @property
    def start_us_G(self) -> FloatArray:
        """When the work began."""
        return self.trace.gpu.start_us_G[self.at_G]

    @property
    def stop_us_G(self) -> FloatArray:
        """When the work ended."""
        return self.start_us_G + self.trace.gpu.time_us_G[self.at_G]

    @property
    def thread_G(self) -> IntArray:
        """Thread of the host that launched each piece of work; -1 where that is not known."""
        thread_G = np.full(len(self.call_G), -1)
        launched = self.call_G >= 0
        thread_G[launched] = self.trace.calls.thread_C[self.call_G[launched]]
        return thread_G

    @property
    def stop_us(self) -> float:
        """When host and GPU were done."""
        return max(self.end_us, float(self.stop_us_G.max(initial=-np.inf)))


def marks(trace: Trace) -> list[Mark]:
    """Return the steps that the profiler marked, in their order; of those with one number the longest."""
    number_of = {at: int(name.partition("#")[2]) for at, name in enumerate(trace.names) if _MARK.fullmatch(name)}
    host = trace.host
    rows = np.flatnonzero(np.isin(host.name_H, list(number_of)))
    found: dict[int, Mark] = {}
    for name, begin_us, time_us in zip(
        host.name_H[rows].tolist(), host.start_us_H[rows].tolist(), host.time_us_H[rows].tolist(), strict=True
    ):
        mark = Mark(number_of[name], begin_us, begin_us + time_us)
        known = found.get(mark.number)
        if known is None or known.end_us - known.begin_us < time_us:
            found[mark.number] = mark
    return sorted(found.values(), key=lambda each: each.begin_us)


def steady(found: list[Mark]) -> Mark:
    """Return the step that is most like the others: the one of median time, without the first and, of many, the last.

    The first one bears what the profiler needs to begin, the last may be cut off.
    """
    rest = found[1:-1] or found[1:] or found
    return sorted(rest, key=lambda each: (each.end_us - each.begin_us, each.number))[(len(rest) - 1) // 2]


def chosen(trace: Trace, number: int | None) -> Mark | None:
    """Return the step to take; None where the trace marks none and none is asked for.

    Raises
    ------
    ConfigError
        If the trace has no step of that number.
    """
    found = marks(trace)
    if number is None:
        # A step that the profiler opened when the last one was over has nothing in it.
        launch_us_G = _launch_us(trace, _launches(trace))
        ran = [each for each in found if ((launch_us_G >= each.begin_us) & (launch_us_G < each.end_us)).any()]
        return steady(ran) if ran else None
    for mark in found:
        if mark.number == number:
            return mark
    known = f"{found[0].number} to {found[-1].number}" if found else "none is marked"
    raise ConfigError(f"{trace.path} has no ProfilerStep#{number}; its steps: {known}", "step")


def cut(trace: Trace, rank: int, mark: Mark | None) -> RankStep:
    """Return what a rank ran in a step; without a mark all of it.

    Raises
    ------
    FormatError
        If nothing ran on the GPU.
    """
    gpu = trace.gpu
    call_G = _launches(trace)
    launch_us_G = _launch_us(trace, call_G)
    stop_us_G = gpu.start_us_G + gpu.time_us_G
    begin_us, end_us = (-np.inf, np.inf) if mark is None else (mark.begin_us, mark.end_us)
    at = np.flatnonzero((launch_us_G >= begin_us) & (launch_us_G < end_us))
    if not len(at):
        where = "" if mark is None else f" in ProfilerStep#{mark.number}"
        text = f"the list 'traceEvents' has no work of a GPU{where} (was only the host profiled?)"
        raise FormatError(text, str(trace.path))
    at = at[np.lexsort((gpu.event_G[at], gpu.start_us_G[at]))]
    first_us = float(gpu.start_us_G[at[0]])
    if mark is None:
        begin_us = min(first_us, float(launch_us_G[at].min()))
        end_us = float((trace.calls.start_us_C + trace.calls.time_us_C).max(initial=begin_us))
    else:
        busy_us = float(stop_us_G[launch_us_G < begin_us].max(initial=-np.inf))
        begin_us = max(begin_us, min(busy_us, first_us))
    return RankStep(
        trace=trace,
        rank=rank,
        begin_us=begin_us,
        end_us=end_us,
        at_G=at,
        task_G=_tasks(trace, at),
        phase_G=_phases(trace, call_G[at]),
        call_G=call_G[at],
        launch_us_G=launch_us_G[at],
        operator_G=np.full(len(at), -1),
    )


def _launches(trace: Trace) -> IntArray:
    """Return the call that launched each piece of work, [G]: that of the same correlation; -1 for none."""
    calls, wanted_G = trace.calls.correlation_C, trace.gpu.correlation_G
    known = np.flatnonzero(calls > 0)
    known = known[np.argsort(calls[known], kind="stable")]
    if not len(known):
        return np.full(len(wanted_G), -1)
    at_G = np.minimum(np.searchsorted(calls[known], wanted_G), len(known) - 1)
    return np.where((calls[known][at_G] == wanted_G) & (wanted_G > 0), known[at_G], -1)


def _launch_us(trace: Trace, call_G: IntArray) -> FloatArray:
    launch_us_G = trace.gpu.start_us_G.copy()
    launch_us_G[call_G >= 0] = trace.calls.start_us_C[call_G[call_G >= 0]]
    return launch_us_G


def _tasks(trace: Trace, at: IntArray) -> tuple[Task, ...]:
    kind_of = {name: _task(trace.names[name]) for name in np.unique(trace.gpu.name_G[at]).tolist()}
    pairs = zip(trace.gpu.kind_G[at].tolist(), trace.gpu.name_G[at].tolist(), strict=True)
    return tuple(
        Task.COPY if kind != Work.KERNEL and kind_of[name] is Task.COMPUTE else kind_of[name] for kind, name in pairs
    )


def _task(kernel: str) -> Task:
    if library_kernel(kernel) is not None:
        return Task.COMMUNICATION
    return Task.COPY if _COPIES.search(kernel) else Task.COMPUTE


def _phases(trace: Trace, call_G: IntArray) -> IntArray:
    """Return the phase of each piece of work, by the operators inside which the host launched it.

    What PyTorch's engine of gradients launches is of the backward pass, whoever annotates it as what, but for weight
    gradients, which run apart from it only where a program says so.
    """
    phase_G = _annotated(trace, call_G)
    for phase, pattern in ((Phase.BACKWARD, _BACKWARD), (Phase.STEP, _OPTIMIZER)):
        inside_G = _inside(trace, call_G, _rows_named(trace, pattern))
        phase_G[inside_G & ((phase_G != Phase.WEIGHT_GRADIENT) | (phase == Phase.STEP))] = phase
    return phase_G


def _annotated(trace: Trace, call_G: IntArray) -> IntArray:
    """Return the phase of each piece of work by the innermost annotation of a pass that was open at its launch.

    Annotations of any thread count: the host's main thread waits in its annotation while another one runs the pass.
    """
    calls, host = trace.calls, trace.host
    order = np.argsort(calls.start_us_C, kind="stable")
    start_us = calls.start_us_C[order]
    phase_C = np.full(len(start_us), Phase.FORWARD)
    found = [(int(row), phase) for phase, pattern in _MARKED for row in _rows_named(trace, pattern)]
    # Annotations nest, so that of those open at a launch the innermost began last.
    for row, phase in sorted(found, key=lambda each: (host.start_us_H[each[0]], -host.time_us_H[each[0]])):
        begin_us = host.start_us_H[row]
        first, last = np.searchsorted(start_us, (begin_us, begin_us + host.time_us_H[row]))
        phase_C[order[first:last]] = phase
    phase_G = np.full(len(call_G), Phase.FORWARD)
    phase_G[call_G >= 0] = phase_C[call_G[call_G >= 0]]
    return phase_G


def _rows_named(trace: Trace, pattern: re.Pattern[str]) -> IntArray:
    """Return the operators of the host whose names a pattern finds."""
    names = [at for at, name in enumerate(trace.names) if pattern.search(name)]
    return np.flatnonzero(np.isin(trace.host.name_H, names))


def _inside(trace: Trace, call_G: IntArray, rows: IntArray) -> BoolArray:
    """Return which calls the host made inside of some of its operators, on their thread."""
    host, calls = trace.host, trace.calls
    found = np.zeros(len(call_G), dtype=np.bool_)
    if not len(calls.start_us_C):
        return found
    for thread in np.unique(host.thread_H[rows]).tolist():
        own = rows[host.thread_H[rows] == thread]
        own = own[np.argsort(host.start_us_H[own], kind="stable")]
        until_us = np.maximum.accumulate(host.start_us_H[own] + host.time_us_H[own])
        begun = np.searchsorted(host.start_us_H[own], calls.start_us_C[call_G], side="right") - 1
        inside = (begun >= 0) & (calls.start_us_C[call_G] <= until_us[np.maximum(begun, 0)])
        found |= inside & (call_G >= 0) & (calls.thread_C[call_G] == thread)
    return found
