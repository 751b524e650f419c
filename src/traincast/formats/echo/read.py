"""Read rank traces of one run into the intermediate form, and the loads of experts that they show.

A full run is replayed: every rank has a template of its own. From fewer ranks the run is rebuilt:
ranks that were not traced get the template of a traced rank of their stage, and stages that were
not traced that of another stage. Flags extrapolate: see `traincast.formats.echo.layout`.

Letters: Q virtual stages (stages: traces have one chunk each), M microbatches, D directions, W ranks.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note, Notebook
from traincast.errors import ConfigError, FormatError
from traincast.files import InputFile, input_of
from traincast.formats.echo import experts
from traincast.formats.echo.clocks import align
from traincast.formats.echo.files import MANY_RANKS, Run, only_run
from traincast.formats.echo.inspection import trace_warnings
from traincast.formats.echo.layout import Layouts, decide_layouts
from traincast.formats.echo.lines import MESSAGES
from traincast.formats.echo.recorded import recorded_workload
from traincast.formats.echo.rendezvous import Messages, Rendezvous, measured_run
from traincast.formats.echo.stages import Stages
from traincast.formats.echo.work import BUCKET, Conversion, RankWork, Splitter
from traincast.formats.layout import warn_single_microbatch
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.progress import told
from traincast.schedules.slots import SlotKind
from traincast.units import counted, format_size
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.clocks import Alignment
from traincast.workload.experts import ExpertLoads, describe, expert_loads, expert_rank_W, load_of_rank
from traincast.workload.groups import rank_groups
from traincast.workload.ops import FloatArray, IntArray, Op
from traincast.workload.words import Group
from traincast.workload.workload import MeasuredStep, Workload

_CHANGES_THE_FORECAST = frozenset({"unknown-operation", "unknown-group", "unknown-communication"})
"""What is unusual in a trace and worth a warning of its simulation."""


class _Opened(NamedTuple):
    """The traces of one run, and how they are to be read."""

    run: Run
    layouts: Layouts
    alignment: Alignment
    inputs: tuple[InputFile, ...]
    notes: Notebook

    @property
    def is_another_run(self) -> bool:
        """Whether the run to simulate is not the one that was traced."""
        return self.layouts.target != replace(self.layouts.traced, microbatches=self.run.microbatches)


def _opened(paths: Sequence[Path], name: str, options: LayoutOptions) -> _Opened:
    run = only_run(paths)
    for op in run.ops:
        if op.scope == "stage":
            text = "is a scheduling plan: it gives an order without times; give the traces of ranks"
            raise FormatError(text, op.path, op.line)
    run = replace(run, is_profile=all(op.is_simulated for op in run.ops))
    if run.is_profile and options.comm == "measured":
        raise ConfigError("has no meaning for a single-GPU profile: its communication ran on a world of one", "--comm")
    notes = Notebook(str(run.first.path))
    layouts = decide_layouts(run, options, notes)
    alignment = align(run, layouts.traced.world_size, layouts.traced.pp)
    if run.is_forecast:
        alignment = Alignment(dict.fromkeys(run.traces, 0.0), (), ())
    notes.assumptions += alignment.notes
    inputs = tuple(input_of(trace.path, name) for trace in run.traces.values())
    return _Opened(run, layouts, alignment, inputs, notes)


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run (see `traincast.formats.contract.Format.read`)."""
    opened = _opened(paths, name, options)
    return _as_it_was(opened, options) if opened.run.is_forecast else _templates(opened, options)


def read_recorded(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the traces of one run as they are (see `traincast.formats.contract.Reader.recorded`)."""
    opened = _opened(paths, name, options)
    changes = (options.comm == "model", options.expert_imbalance is not None, options.expert_loads is not None)
    if opened.run.is_forecast or not (opened.is_another_run or any(changes)):
        return _as_it_was(opened, options)
    return _templates(opened, options)


def _as_it_was(opened: _Opened, options: LayoutOptions) -> Workload:
    run, parallel = opened.run, opened.layouts.target
    if opened.is_another_run:
        text = "a simulated run is taken as it was; leave out the flags that would make another run of it"
        raise ConfigError(text, str(run.first.path))
    if run.is_forecast:
        text = "the times are those of a simulated run: nothing in it was measured"
        opened.notes.assume("simulated-run", text, None)
    if max(run.traces) >= parallel.world_size:
        parallel = Parallel(dp=max(run.traces) + 1)  # one GPU played ranks of a world that the files do not tell
    offset_s, measured = opened.alignment.offset_s, options.comm != "model"
    found = recorded_workload(run, parallel, offset_s, opened.inputs, opened.notes, measured=measured)
    return replace(found, measured=None) if run.is_forecast else found


def _templates(opened: _Opened, options: LayoutOptions) -> Workload:
    run, layouts, alignment, inputs, notes = opened
    builder = WorkloadBuilder(run.first.path.name, layouts.target, options.schedule or "1f1b", notes, inputs)
    rendezvous = Rendezvous(run, rank_groups(layouts.traced, list(Group)), alignment.offset_s)
    measured = (options.comm or ("model" if run.is_profile else "measured")) == "measured"
    conversion = Conversion(rendezvous, layouts, run.is_profile, measured)
    workload = _Replay(run, layouts, options, notes, builder, conversion, Messages(run, layouts)).workload()
    return replace(workload, other_layouts=layouts.others)


class _Replay(Struct):
    """Makes the workload of one run."""

    run: Run
    layouts: Layouts
    options: LayoutOptions
    notes: Notebook
    builder: WorkloadBuilder
    conversion: Conversion
    messages: Messages

    @property
    def scales_experts(self) -> bool:
        return experts.changes_loads(self.run, self.options)

    def workload(self) -> Workload:
        parallel = self.layouts.target
        scaled = self.scales_experts and experts.exchanges_tokens(self.run)
        loads = expert_loads(self.options, parallel.ep) if scaled else None
        load_W = np.ones(parallel.world_size) if loads is None else load_of_rank(parallel, loads)
        stages: dict[float, Stages] = {}
        for load in np.unique(load_W).tolist():
            # what is noted of the stages is the same for every load
            notes = Notebook(self.notes.path) if stages else self.notes
            scaling = experts.ExpertScaling(load, loads) if self.scales_experts else None
            works = self._works(replace(self.conversion, scaling=scaling), notes)
            stages[load] = Stages(self.run, self.layouts, works, notes)
        numbers: dict[tuple[int, tuple[int, int], float], int] = {}
        template_W = np.zeros(parallel.world_size, dtype=np.int32)
        sources: list[int] = []
        for rank, load in enumerate(load_W.tolist()):
            stage = rank // parallel.ranks_per_stage
            source = stages[load].source(rank)
            sources.append(source[1])
            key = stage, source, load
            if key not in numbers:
                numbers[key] = len(numbers)
                self._template(stages[load].work(stage, source), stage, source[1])
            template_W[rank] = numbers[key]
        self._say_what_was_read(loads)
        message_bytes, measured = self._message_bytes(), self._measured_run()
        return self.builder.workload(
            message_bytes,
            template_W=template_W,
            measured=measured,
            compute_is_in_situ=not self.run.is_profile,
            expert_load_W=self._traced_load_W(sources) if loads is None else load_W,
        )

    def _works(self, conversion: Conversion, notes: Notebook) -> dict[int, RankWork]:
        works: dict[int, RankWork] = {}
        traces = list(enumerate(self.run.traces.items()))
        what = f"taking the operations of {len(traces):,} ranks apart"
        for file, (rank, trace) in told(what, traces, MANY_RANKS):
            works[rank] = Splitter(trace, file, conversion).split()
            untraced = works[rank].untraced_waits
            if untraced and not self.run.is_profile:
                text = (
                    f"rank {rank} must have waited for a message before {len(untraced)} operation(s), but no receive "
                    "was traced; the time before them is taken as that wait, not as a gap of the host"
                )
                notes.warn("wait-untraced", text, untraced[0].line)
        return works

    def _template(self, work: RankWork, stage: int, rank: int) -> None:
        """Write a rank's work down as a template; microbatches beyond the traced ones repeat the last."""
        microbatches = self.layouts.target.microbatches
        written: dict[SlotKind, list[int]] = {}
        for kind in (SlotKind.F, SlotKind.BW):
            batches = [work.slots[key] for key in sorted(work.slots) if key[0] is kind]
            # gradient buckets are launched by the last microbatch only
            each = [self._segment([op for op in batch if op.part != BUCKET]) for batch in batches] or [-1]
            last = self._segment(batches[-1]) if batches else -1
            written[kind] = [each[min(at, len(each) - 1)] for at in range(microbatches - 1)] + [last]
        start, end = self._segment(work.start), self._segment(work.end)
        template = self.builder.template(
            before_recv_DQM=self._before_recv(work, stage),
            message_s_DQM=self.messages.transfer_s_DQM(rank) if self.conversion.measured else None,
        )
        template.forward_QM[stage], template.backward_QM[stage] = written[SlotKind.F], written[SlotKind.BW]
        template.start_P[stage], template.end_P[stage] = start, end

    def _before_recv(self, work: RankWork, stage: int) -> IntArray:
        parallel = self.layouts.target
        before_DQM = self.builder.nothing(2, parallel.pp, parallel.microbatches)
        for (forward, batch), gap in work.before_recv.items():
            boundary, last = stage - 1 if forward else stage, self.run.microbatches - 1
            same = slice(batch, parallel.microbatches if batch == last else batch + 1)
            before_DQM[int(not forward), boundary, same] = self._segment(gap)
        return before_DQM

    def _segment(self, ops: list[Op]) -> int:
        return self.builder.segment(self.builder.add(*ops))

    def _traced_load_W(self, sources: list[int]) -> FloatArray | None:
        """Return the tokens of each rank's experts over the mean as traced; None where there are no experts."""
        if self.scales_experts:
            return None
        load_of = {
            rank: experts.received_over_routed(experts.layers_of(trace.ops)) for rank, trace in self.run.traces.items()
        }
        if all(load is None for load in load_of.values()):
            return None
        return np.array([load_of[rank] or 0.0 for rank in sources], dtype=np.float64)

    def _message_bytes(self) -> int:
        """Return the bytes of a pipeline send/recv: as traced, else the largest exchange inside a forward."""
        if self.options.pp_message_bytes is not None or self.layouts.target.pp == 1:
            return self.options.pp_message_bytes or 0
        traced = [op.size_bytes for op in self.run.ops if op.op in MESSAGES and op.size_bytes]
        if traced:
            return max(traced)
        inside = [sub.call.size_bytes or 0 for op in self.run.ops if op.op == "forward_step" for sub in op.sub_ops]
        size = max(inside, default=0)
        text = f"the trace has no pipeline send/recv; taken as its largest exchange, {size} bytes (give --pp-comm)"
        brief = f"no pipeline send/recv was traced; taken as {format_size(size)} (give --pp-comm)"
        self.notes.assume("message-size", text, None, brief=brief)
        return size

    def _measured_run(self) -> MeasuredStep | None:
        """Return what was measured, if the run to simulate is the one that was traced."""
        if self.run.is_profile:
            return None
        measured = measured_run(self.run, self.conversion.rendezvous, self.messages)
        was, wanted = self.layouts.traced, self.layouts.target
        original = was.tp, was.pp, was.dp, self.run.microbatches
        if measured is None or original == (wanted.tp, wanted.pp, wanted.dp, wanted.microbatches):
            return measured
        self.notes.assume(
            "measured-otherwise",
            f"the traced step took {1e3 * measured.step_s:.1f} ms with tp {was.tp}, pp {was.pp}, dp {was.dp} and "
            f"{self.run.microbatches} microbatch(es); another run is simulated, so they are not compared",
            None,
            brief=f"another run than the traced one ({1e3 * measured.step_s:.1f} ms) is simulated; not compared",
        )
        return None

    def _say_what_was_read(self, loads: ExpertLoads | None) -> None:
        """Note repeated microbatches, rescaled experts, and words that nobody knows."""
        run, target, notes = self.run, self.layouts.target, self.notes
        if target.microbatches > run.microbatches:
            repeated = f"the last one is repeated to make {target.microbatches}"
            text = f"the trace has {run.microbatches} microbatch(es); {repeated}"
            notes.assume("microbatches-repeated", text, None)
        if not (run.microbatches == target.microbatches == 1 and len(run.traces) == target.world_size):
            warn_single_microbatch(notes, target.pp, target.pp, target.microbatches, None)
        for trace in run.traces.values():
            found = trace_warnings(str(trace.path), trace.ops)
            notes.warnings += [*trace.warnings, *(note for note in found if note.code in _CHANGES_THE_FORECAST)]
        self._warn_of_unused()
        for rank, trace in run.traces.items():
            forwards, backwards = (len(trace.named(name)) for name in ("forward_step", "backward_step"))
            if forwards != backwards:
                passes = f"{forwards} forward and {backwards} backward steps"
                text = (
                    f"rank {rank} was traced with {passes}; the time of what is missing is a gap of the host, or lost"
                )
                notes.warn("passes-differ", text, None)
        if self.scales_experts:
            experts.say_of_scaled_experts(run, self.options, loads, notes)
        elif experts.exchanges_tokens(run):
            experts.warn_of_untraced_experts(run, self.layouts.traced, notes)

    def _warn_of_unused(self) -> None:
        """Warn of flags that change nothing."""
        options, real, routed = self.options, not self.run.is_profile, experts.exchanges_tokens(self.run)
        fixed = not (self.scales_experts and routed)
        unused = {
            "--ep": options.ep is not None and not routed,
            "--etp": options.etp is not None and not routed,
            "--expert-imbalance": options.expert_imbalance is not None and fixed,
            "--expert-loads": options.expert_loads is not None and fixed,
            "--pp-comm": options.pp_message_bytes is not None and real and options.comm != "model",
        }
        for flag in [flag for flag, idle in unused.items() if idle]:
            measured = (real and routed) or flag == "--pp-comm"
            why = "its times are as measured (give --comm model)" if measured else "no experts exchange tokens"
            self.notes.warn(f"{flag[2:]}-unused", f"{flag} changes nothing in this trace: {why}", None)


def traced_loads(paths: Sequence[Path], ep: int | None = None) -> tuple[ExpertLoads, Note]:
    """Return the tokens that each expert rank of a traced run got, over the mean, with a note that says so.

    They are means over the layers, microbatches, stages and groups that were traced, of which every expert rank must
    be one; `ep` says how many expert ranks a group has where the files do not tell.

    Raises
    ------
    FormatError
        If the files are not of one run, show no expert layers, or lack an expert rank.
    """
    run, place = only_run(paths), str(paths[0])
    layers_W = {rank: experts.layers_of(trace.ops) for rank, trace in run.traces.items()}
    if not any(layers_W.values()):
        raise FormatError("shows no tokens of experts: there are no pairs of all-to-alls over ep", place)
    named = run.first.name.ep
    layout = decide_layouts(run, LayoutOptions(ep=ep if named is None else None), Notebook(place)).traced
    place_W = expert_rank_W(layout)
    layers_E: dict[int, list[experts.ExpertLayer]] = defaultdict(list)
    for rank, layers in layers_W.items():
        layers_E[int(place_W[rank])] += layers
    missing = [str(expert) for expert in range(layout.ep) if not layers_E[expert]]
    if missing:
        raise FormatError(
            f"lacks the trace of any rank with expert rank {', '.join(missing)} of {layout.ep}; give them too", place
        )
    share_E = [experts.received_over_routed(layers_E[expert]) or 0.0 for expert in range(layout.ep)]
    mean = math.fsum(share_E) / layout.ep
    if not mean:
        raise FormatError("gives no expert rank any tokens", place)
    loads = tuple(share / mean for share in share_E)
    most = max(experts.received_over_routed([layer]) or 0.0 for layers in layers_E.values() for layer in layers)
    text = f"from {counted(len(run.traces), 'traced rank')}, {describe(loads)}" if len(loads) > 1 else "one expert rank"
    single = f"; the mean of all layers, microbatches and groups, of which single ones had up to {most / mean:.3g} x"
    return loads, Note("expert-loads-traced", text + single, place)
