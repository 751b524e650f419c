"""Write any workload as an AICB/SimAI workload: what one rank runs in each pass as rows, and what is lost by that.

A file describes one rank of one stage, all others being like it. Rows run forward in their order and backward in
reverse, so that a microbatch is written as the rows of its forward pass, without a backward column, and then those of
its backward pass from the last to the first, without a forward column. A row computes, and then communicates: over tp
in the forward and the input-gradient column and over dp in the weight-gradient column, or as its suffix says.

Source: SimAI, astra-sim/workload/Workload.cc (order, columns and suffixes).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.formats.aicb.grammar import Column
from traincast.formats.aicb.passes import Item, RankWork, works_of
from traincast.formats.values import whole
from traincast.formats.writer import Run, Written
from traincast.units import GIGA, counted, format_size, format_time
from traincast.workload.words import Group, Kind, Operation
from traincast.workload.workload import Workload

_TOKENS = {
    Operation.ALL_REDUCE: "ALLREDUCE",
    Operation.ALL_GATHER: "ALLGATHER",
    Operation.REDUCE_SCATTER: "REDUCESCATTER",
    Operation.ALL_TO_ALL: "ALLTOALL",
    Operation.BROADCAST: "BROADCAST",
}
"""What SimAI reads; it gives broadcasts no time."""
_SUFFIXES = {Group.EP: "_EP", Group.EDP: "_DP_EP"}
_ALIKE = 0.02
"""Relative difference of the computations of two stages up to which they are alike."""


class Line(NamedTuple):
    """A row: times in seconds and communications (token and bytes) of its three columns."""

    name: str
    times_s: Mapping[Column, float]
    communications: Mapping[Column, tuple[str, int]]

    def text(self) -> str:
        """Return its twelve fields; it takes no time after a communication."""
        fields: list[object] = [self.name, -1]
        for column in Column:
            token, size = self.communications.get(column, ("NONE", 0))
            fields += [round(self.times_s.get(column, 0.0) * GIGA), token, size]
        return "\t".join(map(str, [*fields, 0]))


def converted(run: Run, said_stage: str) -> Written:
    """Return an AICB workload of any workload.

    Raises
    ------
    FormatError
        If a computation has no time, or the pipeline has virtual stages, which a file cannot deal out.
    ConfigError
        If there is no such stage.
    """
    workload, parallel = run.workload, run.workload.parallel
    if parallel.vpp > 1:
        text = f"has {parallel.vpp} virtual stages of its own; an AICB file cuts them itself. Give a job file"
        raise FormatError(text, run.name)
    works = [_regrouped(each, workload) for each in works_of(workload)]
    work = works[_stage(works, said_stage)]
    left_out: Counter[str] = Counter()
    microbatches = [list(_microbatch(*each, left_out)) for each in zip(work.forward, work.backward, strict=True)]
    rows = [*_opening(work, left_out), *(line for each in microbatches for line in each), *_closing(work)]
    if any(math.isnan(time_s) for line in rows for time_s in line.times_s.values()):
        raise FormatError("has computations without a time, which rows must have", run.name)
    message = _message_bytes(workload)
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {parallel.tp} ep: {parallel.ep} pp: {parallel.pp} "
        f"vpp: 1 ga: {len(microbatches)} all_gpus: {parallel.world_size} checkpoints: 0 checkpoint_initiates: 0 "
        f"pp_comm: {message}"
    )
    text = "".join(f"{line}\n" for line in (header, len(rows), *(line.text() for line in rows)))
    return Written([("workload.txt", [text.encode()])], tuple(_lost(workload, works, work, left_out)))


def _stage(works: Sequence[RankWork], said: str) -> int:
    """Return the stage that is written: the one that is said, else the one of median computation."""
    if said:
        try:
            return whole(said, least=0, most=len(works) - 1)
        except ValueError as problem:
            raise ConfigError(str(problem), "option stage") from None
    by_time = sorted(range(len(works)), key=lambda stage: works[stage].compute_s)
    return by_time[(len(by_time) - 1) // 2]


def _regrouped(work: RankWork, workload: Workload) -> RankWork:
    """Return the work of a rank with the groups of rows: parts of dp as dp, the world of one degree as that."""
    parallel = workload.parallel
    group_of = {Group.SHARD: Group.DP, Group.REPLICA: Group.DP}
    for name, group in ((parallel.dp, Group.DP), (parallel.tp, Group.TP)):
        if name == parallel.world_size:
            group_of[Group.WORLD] = group

    def again(items: list[Item]) -> list[Item]:
        return [replace(item, group=group_of.get(item.group, item.group)) for item in items]

    return RankWork(
        work.rank,
        work.stage,
        again(work.start),
        [*map(again, work.forward)],
        again(work.after_forward),
        [*map(again, work.backward)],
        again(work.end),
    )


# --- rows


def _microbatch(forward: Sequence[Item], backward: Sequence[Item], left_out: Counter[str]) -> Iterator[Line]:
    """Yield the rows of a microbatch, which begins with a row that does nothing."""
    yield Line("embedding_layer", {}, {})
    yield from _pass("forward", forward, Column.FORWARD, left_out)
    yield from [*_pass("backward", backward, Column.INPUT_GRAD, left_out)][::-1]


def _pass(word: str, items: Sequence[Item], column: Column, left_out: Counter[str]) -> Iterator[Line]:
    """Yield a row for each communication, with the computation before it; what is left computes alone."""
    time_s, dispatched, number = 0.0, False, 0
    for item in items:
        if item.computes:
            time_s += item.time_s
            continue
        said = _said(item, column)
        if said is None:
            left_out[_what(item)] += 1
            continue
        expert = dispatched
        if item.group is Group.EP and item.operation is Operation.ALL_TO_ALL:
            dispatched = not dispatched
        name = f"{'moe_' if expert else ''}{word}_{number}"
        yield Line(name, {column: time_s}, {said[0]: said[1:]})
        time_s, number = 0.0, number + 1
    if time_s:
        yield Line(f"{word}_{number}", {column: time_s}, {})


def _said(item: Item, column: Column) -> tuple[Column, str, int] | None:
    """Return column, token and bytes of a communication; None of one that the format cannot say."""
    token = _TOKENS.get(item.operation)
    if token is None or item.size_bytes < 0:
        return None
    if item.group is Group.TP:
        return column, token, item.size_bytes
    if item.group in _SUFFIXES:
        return column, f"{token}{_SUFFIXES[item.group]}", item.size_bytes
    return (Column.WEIGHT_GRAD, token, item.size_bytes) if item.group is Group.DP else None


def _opening(work: RankWork, left_out: Counter[str]) -> Iterator[Line]:
    """Yield the rows of what runs once in a step, in front as AICB has them; their names say when they run."""
    time_s = sum(item.time_s for item in work.start if item.computes)
    found = [item for item in work.start if not item.computes]
    for item in found:
        said = _said(item, Column.FORWARD)
        if said is None or said[0] is not Column.FORWARD:
            left_out[_what(item)] += 1
        else:
            yield Line("norm", {}, {Column.FORWARD: said[1:]})
    if time_s:
        yield Line("norm", {Column.FORWARD: time_s}, {})
    own_s = sum(item.time_s for item in work.end if item.computes)
    if own_s:
        yield Line("grad_param_compute", {Column.INPUT_GRAD: own_s}, {})
    for item in work.end:
        line = None if item.computes else _once(item)
        if line is not None:
            yield line
        elif not item.computes:
            left_out[_what(item)] += 1


def _once(item: Item) -> Line | None:
    """Return the row of a communication that follows the last backward pass; None where there is no such row."""
    token = _TOKENS.get(item.operation)
    if token is None or item.size_bytes < 0:
        return None
    if item.group is Group.EMB:
        return Line("embedding_grads", {}, {Column.INPUT_GRAD: (token, item.size_bytes)})
    if item.group is Group.TP:
        return Line("layernorm", {}, {Column.INPUT_GRAD: (token, item.size_bytes)})
    gathers = item.operation is Operation.ALL_GATHER
    if item.group is Group.EDP:
        name = "moe_grad_norm1" if gathers else "moe_grad_norm2"
        return Line(name, {}, {Column.WEIGHT_GRAD: (f"{token}_DP_EP", item.size_bytes)})
    name = "grad_gather" if gathers else "grad_param_comm"
    return Line(name, {}, {Column.WEIGHT_GRAD: (token, item.size_bytes)}) if item.group is Group.DP else None


def _closing(work: RankWork) -> Iterator[Line]:
    """Yield the row of the loss."""
    time_s = sum(item.time_s for item in work.after_forward if item.computes)
    if time_s:
        yield Line("cross_entropy1", {Column.FORWARD: time_s}, {})


def _message_bytes(workload: Workload) -> int:
    """Return the bytes of the largest pipeline send/recv."""
    if workload.parallel.pp == 1:
        return 0
    if workload.program is None:
        return int(np.max(workload.message_bytes_Q, initial=0))
    ops = workload.program.ops
    sends_T = (ops.kind_T == Kind.SEND) & (ops.group_T == Group.PP)
    return max(int(np.max(ops.size_bytes_T[sends_T], initial=0)), 0)


# --- what is lost


def _what(item: Item) -> str:
    size = f" of {format_size(item.size_bytes)}" if item.size_bytes >= 0 else ""
    return f"{item.operation.name.lower().replace('_', '-')} over {item.group.name.lower()}{size}"


def _lost(workload: Workload, works: Sequence[RankWork], work: RankWork, left_out: Mapping[str, int]) -> Iterator[Note]:
    """Say what rows cannot hold."""
    parallel = workload.parallel
    yield Note("aicb-one-rank", f"the rows are those of rank {work.rank} (stage {work.stage}); all ranks are like it")
    longest, shortest = (pick(each.compute_s for each in works) for pick in (max, min))
    if longest > (1 + _ALIKE) * shortest:
        text = f"stages compute {format_time(shortest)} to {format_time(longest)}"
        yield Note("aicb-one-stage", f"{text}; each gets the {format_time(work.compute_s)} of stage {work.stage}")
    items = [item for each in (*work.forward, *work.backward, work.start, work.end) for item in each]
    timed = sum(1 for item in items if not item.computes and not math.isnan(item.time_s))
    if timed:
        what = counted(timed, "communication has a time", "communications have a time")
        yield Note(
            "aicb-communication-times", f"{what}; rows have sizes alone, and whoever reads them estimates their cost"
        )
    gaps_s = sum(item.time_s for item in items if item.kind is Kind.GAP)
    if gaps_s:
        yield Note("aicb-host", f"pauses of the host, {format_time(gaps_s)} of the rank, are written as computation")
    if left_out:
        shown = ", ".join(f"{count} {what}" for what, count in list(left_out.items())[:4])
        yield Note("aicb-no-row", f"without a row: {shown}{' ...' if len(left_out) > 4 else ''}")
    if workload.program is not None:
        yield Note("aicb-streams", "what overlapped runs one after the other; gradients alone overlap")
    if workload.expert_load_W is not None and float(np.ptp(workload.expert_load_W)) > _ALIKE:
        yield Note(
            "aicb-imbalance", "experts of other ranks get other numbers of tokens; here all get those of this one"
        )
    if parallel.cp > 1:
        yield Note("aicb-cp", f"the format has no cp {parallel.cp}: read it with --cp {parallel.cp}")
    if workload.schedule not in ("1f1b", "interleaved") and parallel.pp > 1:
        yield Note("aicb-schedule", f"a file has no schedule; this one is {workload.schedule}")
