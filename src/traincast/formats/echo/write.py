"""Write a run as rank traces, one file per rank: as it was traced, or as it was simulated.

Of a recorded run what its files said is written again, with the times as they said them. Of a simulated run each pass
over a microbatch is one line, with its collectives as sub-operations; messages are lines of their own, and so are
collectives of the whole step that the tracer has a name for; what else runs once per step is ``get_batch`` before the
first pass and ``optimizer_step`` after it. Times count from the beginning of the step, to the nanosecond.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple, TypeVar

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.echo.lines import (
    COLLECTIVES,
    COMMUNICATIONS,
    DTYPE_BYTES,
    FORECAST,
    GROUPS,
    MESSAGES,
    PHASES,
    V_FORMS,
)
from traincast.formats.echo.recorded import LINE
from traincast.formats.echo.spelling import listed, milliseconds, spelled
from traincast.formats.writer import WRITERS, Run, Writer, Written
from traincast.workload.groups import rank_groups
from traincast.workload.program import Program, Recorded, Said, Timeline
from traincast.workload.words import Group, Kind, Operation, Phase

T = TypeVar("T")

_PASSES = {
    Phase.FORWARD: "forward_step",
    Phase.BACKWARD: "backward_step",
    Phase.WEIGHT_GRADIENT: "backward_step",
    Phase.RECOMPUTE: "backward_step",
}
_MOST_KNOWN = 32
"""Ranks whose lines are kept for others that do the same."""

_BEFORE, _AFTER = "get_batch", "optimizer_step"

_TRACED_NAMES = {
    "edp_allreduce": "exp_dp_allreduce",
    "emb_allreduce": "ep_allreduce",
    "pos_emb_allreduce": "pep_allreduce",
}
"""Names of the tracer where those here are other ones."""

_PER_RANK = frozenset({Operation.ALL_GATHER, Operation.GATHER})
"""Operations whose size is that of all ranks, where a trace has the tensor of one."""

_WHOLE = {what: name for name, what in reversed(COLLECTIVES.items()) if what[1] not in _PER_RANK}
"""Operations that are one collective, by group and what they do."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
_BYTES = "uint8"


def _first_names(names: Mapping[str, T]) -> dict[T, str]:
    return {meant: name for name, meant in reversed(list(names.items()))}


_GROUP_NAMES = _first_names(GROUPS)
_COMM_NAMES = _first_names({name: meant for name, meant in COMMUNICATIONS.items() if name not in V_FORMS})
_V_NAMES = _first_names(V_FORMS)


def write(run: Run, choices: Mapping[str, str]) -> Written:  # noqa: ARG001 it has none
    """Write a run (see `traincast.formats.writer.Writer`).

    Raises
    ------
    FormatError
        If a message goes to another stage than the next one or the one before.
    """
    program, timeline = run.simulated()
    own = program.recorded
    if timeline is run.workload.timeline and own is not None and any(map(_is_line, own.said)):
        return Written(_as_traced(program, own))
    _check(run, program)
    return Written(_as_simulated(run, program, timeline), (_LOST,))


_LOST = Note(
    "rank-trace",
    "a rank trace has no names of layers and kernels, no recompute apart from the backward pass and no virtual stages",
)


# ---- a recorded run


def _as_traced(program: Program, own: Recorded) -> Iterator[tuple[str, Iterator[bytes]]]:
    for index, rank in enumerate(program.rank_R.tolist()):
        mine = program.rank_slice(index)
        file = int(own.file_N[mine].max(initial=-1))
        name = PurePath(program.files[file]).name if file >= 0 else f"rank{rank}.txt"
        yield name, iter([_traced(program, own, mine, rank).encode()])


def _is_line(words: Said) -> bool:
    return bool(words) and words[0][0] == LINE


def _traced(program: Program, own: Recorded, mine: slice, rank: int) -> str:
    lines: list[str] = []
    subs: list[str] = []
    columns = (own.said_N, own.span_s_N, own.clock_s_N, program.microbatch_N)
    for said, span_s, clock_s, batch in zip(*(column[mine].tolist() for column in columns), strict=True):
        if said < 0:
            continue
        words = own.said[said]
        values = _times(span_s, clock_s)
        if not _is_line(words):
            subs.append(spelled(words, values))
            continue
        if not span_s and not clock_s:
            values = {"duration": "0", "timestamp": "0"}  # a placeholder
        values |= {"batch_id": "None" if batch < 0 else str(batch), "sub_operations": listed(subs)}
        lines.append(f"rank:{rank}:{words[0][1]}({spelled(words[1:], values)})\n")
        subs = []
    return "".join(lines)


def _times(span_s: float, clock_s: float) -> dict[str, str]:
    """Return duration and time stamp as the tracer writes them."""
    clock = 0.0 if math.isnan(clock_s) else clock_s
    times = {"duration": (span_s, clock), "timestamp": (clock_s, clock)}
    return {key: "None" if math.isnan(time_s) else milliseconds(time_s, at) for key, (time_s, at) in times.items()}


# ---- a simulated run


def _check(run: Run, program: Program) -> None:
    """Refuse messages and groups that a trace cannot name: it says neither peers nor members."""
    per_stage, stages = run.workload.parallel.ranks_per_stage, run.workload.parallel.pp
    kind_N = program.ops.kind_T[program.row_N]
    at = np.flatnonzero((kind_N == Kind.SEND) | (kind_N == Kind.RECV))
    onward = (kind_N[at] == Kind.SEND) == (program.ops.phase_T[program.row_N[at]] != Phase.BACKWARD)
    own_stage = program.rank_N[at] // per_stage
    expected = (own_stage + np.where(onward, 1, -1)) % stages
    astray = program.peer_stage_N[at] != expected
    if program.recorded is not None:
        both_G = np.array([group.members.sum() for group in program.groups], dtype=np.int64)
        peer = both_G[program.group_N[at]] - program.rank_N[at]
        astray = peer != expected * per_stage + program.rank_N[at] % per_stage
    if astray.any():
        wrong = int(at[np.flatnonzero(astray)[0]])
        what = f"{program.ops.name_T[program.row_N[wrong]]!r} of rank {program.rank_N[wrong]}"
        raise FormatError(
            f"{what} is not a message between neighbours of a pipeline, and a trace can name no other", run.name
        )
    tables = rank_groups(
        run.workload.parallel, {group.kind for group in program.groups} - {Group.PP}, run.workload.table_stages
    )
    known = {(kind, *sorted(row)) for kind, table in tables.items() for row in table.members_GK.tolist()}
    for group in program.groups:
        members = sorted(group.members.tolist())
        if group.kind is not Group.PP and (group.kind, *members) not in known:
            shown = f"{members[:8]}{'...' if len(members) > 8 else ''}"
            text = f"has a {group.kind.name.lower()} group of ranks {shown}, which its layout does not have"
            raise FormatError(f"{text}; a trace names groups by the layout alone", run.name)


def _as_simulated(run: Run, program: Program, timeline: Timeline) -> Iterator[tuple[str, Iterator[bytes]]]:
    parallel = run.workload.parallel
    degrees = {"wd": parallel.world_size, "tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp}
    degrees |= {"cp": parallel.cp} if parallel.cp > 1 else {}
    degrees |= {"exp": parallel.ep, "etp": parallel.expert_tp} if parallel.ep > 1 else {}
    degrees |= {} if parallel.shard is None else {"shard": parallel.shard}
    prefix = "_".join(f"{name}{degree}" for name, degree in degrees.items())
    words, known = _Words(program), dict[bytes, list[str]]()
    for index, rank in enumerate(program.rank_R.tolist()):
        does = _digest(program, timeline, index)
        if does not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[does] = _simulated(program, timeline, index, words)
        yield f"{prefix}_rank{rank}.txt", iter(["".join([f"rank:{rank}:{line}" for line in known[does]]).encode()])


def _digest(program: Program, timeline: Timeline, index: int) -> bytes:
    """Return what is equal for ranks that do the same at the same times, as those of equal replicas do."""
    mine = program.rank_slice(index)
    sizes_G = np.array([len(group.members) for group in program.groups] + [0])
    columns = (program.row_N, program.microbatch_N, program.virtual_stage_N, timeline.ready_s_N, timeline.end_s_N)
    parts = [program.stage_R[index], sizes_G[program.group_N[mine]], *(column[mine] for column in columns)]
    return hashlib.sha256(b"".join([part.tobytes() for part in parts])).digest()


class _Line(NamedTuple):
    """Operations of one line."""

    name: str
    key: tuple[object, ...]
    at: list[int]


def _simulated(program: Program, timeline: Timeline, index: int, words: "_Words") -> list[str]:
    """Return the lines of a rank without its number, in the order of its program, recorded ones as they began."""
    mine = program.rank_slice(index)
    order = np.arange(mine.start, mine.stop)
    if program.recorded is not None:
        order = order[np.argsort(timeline.ready_s_N[mine], kind="stable")]
    lines = _lines(program, timeline, order.tolist(), words)
    names = [line.name for line in lines]
    backward = names.index("backward_step") if "backward_step" in names else len(names)
    forward = len(names) - names[::-1].index("forward_step") if "forward_step" in names else 0
    counts, texts = Counter[str](), list[str]()
    for number, line in enumerate(lines):
        state = "warmup" if number < backward else "cooldown" if number >= forward else "steady"
        state = "finalize" if line.name == _AFTER or line.key[0] == "whole" else state
        numbers = f"stage_id={program.stage_R[index]},batch_id={counts[line.name]},mg_state={state}"
        texts.append(words.line(line, timeline, numbers))
        counts[line.name] += 1
    return texts


def _lines(program: Program, timeline: Timeline, order: list[int], words: "_Words") -> list[_Line]:
    """Put the operations of a rank, given in their order, into lines.

    A pause of the host is told by what begins late, but where the step begins or ends with one.
    """
    found: list[_Line] = []
    waits: list[int] = []
    pauses: list[int] = []
    before = True
    for at in order:
        row = int(program.row_N[at])
        kind = words.kinds[row]
        if kind is Kind.WAIT:
            waits.append(at)  # counts where more of the same line follows
            continue
        if kind is Kind.GAP and program.ops.part_T[row] is None:
            pauses.append(at)
            continue
        name, key = words.place(row, at, before=before)
        if key[0] == "pass" and key[1] == -1 and found and found[-1].name == name:
            key = found[-1].key  # what follows the last forward
        before = before and key[0] != "pass"
        if found and found[-1].key == key:
            found[-1].at.extend(waits)
        else:
            found.append(_Line(name, key, []))
        found[-1].at.append(at)
        waits = []
    working = [at for line in found for at in line.at]
    first_s = timeline.ready_s_N[working].min(initial=np.inf)
    last_s = timeline.end_s_N[working].max(initial=0.0)
    first = [at for at in pauses if timeline.end_s_N[at] <= first_s]
    last = [at for at in pauses if timeline.end_s_N[at] > last_s and timeline.ready_s_N[at] >= last_s]
    start = [_Line(_BEFORE, ("pause",), first)] if first else []
    return [*start, *found, *([_Line(_AFTER, ("pause",), last)] if last else [])]


class _Words:
    """What the operations of a program say, whenever they run."""

    def __init__(self, program: Program) -> None:
        self.program, ops = program, program.ops
        self.kinds = list(map(Kind, ops.kind_T.tolist()))
        blocking_T = ops.blocking_T if program.recorded is None else ops.kind_T == Kind.COMPUTE
        self.holds = list(map(bool, blocking_T))
        self.known: dict[tuple[int, int], tuple[str, str]] = {}

    def place(self, row: int, at: int, *, before: bool) -> tuple[str, tuple[object, ...]]:
        """Return the name of the line that an operation is in, and what those of one line share."""
        program, ops = self.program, self.program.ops
        kind, phase, part = self.kinds[row], Phase(int(ops.phase_T[row])), ops.part_T[row]
        what = Group(int(ops.group_T[row])), Operation(int(ops.operation_T[row]))
        if kind in (Kind.SEND, Kind.RECV):
            return f"{kind.name.lower()}_{'backward' if phase is Phase.BACKWARD else 'forward'}", ("message", at)
        whole = kind is Kind.COLLECTIVE and phase is Phase.STEP and self.holds[row] and part not in PHASES
        if whole and what in _WHOLE:
            return _WHOLE[what], ("whole", at)
        if part not in PHASES and part not in COLLECTIVES:
            part = _PASSES.get(phase) or (_BEFORE if before else _AFTER)
        microbatch = int(program.microbatch_N[at])
        return part, ("pass" if phase in _PASSES else "step", microbatch, int(program.virtual_stage_N[at]), part)

    def line(self, line: _Line, timeline: Timeline, numbers: str) -> str:
        """Return a line without its rank; `numbers` are its first fields."""
        program, rows = self.program, self.program.row_N[line.at].tolist()
        ready_s, end_s = timeline.ready_s_N[line.at].tolist(), timeline.end_s_N[line.at].tolist()
        alone = line.name in MESSAGES or line.key[0] in {"whole", "pause"}
        holding = [place for place, row in enumerate(rows) if alone or self.holds[row]] or [0]
        start = min(ready_s[place] for place in holding)
        end = max(end_s[place] for place in holding)
        subs = []
        for place, (at, row) in enumerate(zip(line.at, rows, strict=True)):
            if not alone and self.kinds[row] is Kind.COLLECTIVE:
                head, rest = self.call(row, int(program.group_N[at]))
                times = _times(end_s[place] - ready_s[place], end_s[place])
                subs.append(f"{head},duration={times['duration']},timestamp={times['timestamp']},{rest}")
        group, tensor = "None", "input__shape=None,input__dtype=None"
        if alone and line.key[0] != "pause":
            group = _GROUP_NAMES[Group(int(program.ops.group_T[rows[0]]))]
            tensor = self.tensor(rows[0], int(program.group_N[line.at[0]]))
        times = _times(end - start, end)
        return (
            f"{_TRACED_NAMES.get(line.name, line.name)}({numbers},"
            f"duration={times['duration']},description=simulation,group_kind={group},op_semantics={FORECAST},{tensor},"
            f"timestamp={times['timestamp']},sub_operations={listed(subs)})\n"
        )

    def tensor(self, row: int, group: int) -> str:
        """Return shape and type of what goes into a communication."""
        ops = self.program.ops
        size_bytes, dtype = int(ops.size_bytes_T[row]), _DTYPES.get(ops.dtype_T[row] or "", _BYTES)
        if size_bytes < 0:
            return "input__shape=None,input__dtype=None"
        if Operation(int(ops.operation_T[row])) in _PER_RANK:
            size_bytes = -(-size_bytes // len(self.program.groups[group].members))
        if size_bytes % DTYPE_BYTES[dtype]:
            dtype = _BYTES
        return f"input__shape=[{size_bytes // DTYPE_BYTES[dtype]}],input__dtype=torch.{dtype}"

    def call(self, row: int, group: int) -> tuple[str, str]:
        """Return what stands before and after the times of a sub-operation."""
        ops = self.program.ops
        if (row, group) not in self.known:
            source = re.sub(r"[^A-Za-z0-9_]+", "_", ops.name_T[row]).removesuffix("_async") or "collective"
            source += "" if self.holds[row] else "_async"
            operation, kind = Operation(int(ops.operation_T[row])), Group(int(ops.group_T[row]))
            comm = (_V_NAMES if ops.unequal_T[row] else _COMM_NAMES).get(operation) or _COMM_NAMES[operation]
            after = f"{self.tensor(row, group)},group={_GROUP_NAMES[kind]},comm_func={comm}"
            self.known[row, group] = f"trace_src_func={source}", after
        return self.known[row, group]


WRITERS.register("echo")(
    Writer(name="echo", title="Echo/Megatron rank traces", write=write, needs_step=True, as_traced=True)
)
