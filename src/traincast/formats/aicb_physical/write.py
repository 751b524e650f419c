"""Write a workload of the physical kind, which AICB replays on GPUs: each stage's rows in program order.

A stage's microbatches are in the order of 1F1B, as in AICB's own files. Operations that a workload says once for
several equal ones (the exchanges of all layers of a stage) are written one by one, spread evenly over their pass.
Source: aliyun/aicb, ``log_analyzer/log.py`` (``LogItem``), ``workload_generator/generate_megatron_workload.py``,
``workload_applyer.py`` (which runs every row once, whatever its ``count``).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import COLUMNS
from traincast.formats.writer import WRITERS, Run, Writer, Written
from traincast.schedules.check import plan_of
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import SlotKind
from traincast.units import counted
from traincast.workload.groups import rank_groups
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Kind, Operation, Phase
from traincast.workload.workload import Template, Workload

_GROUPS = {
    Group.TP: "tp_group",
    Group.ETP: "tp_group",
    Group.DP: "dp_group",
    Group.EP: "ep_group",
    Group.EDP: "ep_dp_group",
    Group.PP: "pp_group",
    Group.EMB: "embedding_group",
    Group.WORLD: "all",
}
_OPERATIONS = {
    each: each.name.lower()
    for each in (
        *(Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER),
        *(Operation.ALL_TO_ALL, Operation.BROADCAST, Operation.REDUCE),
    )
}
_PART = {Phase.FORWARD: "forward", Phase.STEP: "step"}
"""How the names of the rows of a phase begin; of all others ``backward``."""
_GEMMS = ("gemm", "grouped_gemm")


class _Row(NamedTuple):
    """One row of the file."""

    kind: str
    group: str = "None"
    ranks: int | None = None
    size: int | str = 0
    stage: str = ""
    additional: str = ""

    def text(self) -> str:
        """Return its line."""
        group = self.group if self.group == "None" else f"CommGroup.{self.group}"
        cells = [f"CommType.{self.kind}", group, self.ranks, self.size, self.stage, None, None, self.additional]
        return ",".join(map(str, [*cells, None, None, None, 1])) + "\n"


class _StageWriter(Struct, dict=True):
    """Makes the rows of the stages of a workload."""

    workload: Workload
    name: str
    _texts: dict[tuple[tuple[int, ...], str | None], str] = field(default_factory=dict)
    """Texts of passes, which repeat from microbatch to microbatch."""

    @cached_property
    def sizes(self) -> dict[Group, int]:
        """Members of a group of each kind."""
        kinds = {Group(int(group)) for group in self.workload.ops.group_T} - {Group.NONE}
        return {
            kind: table.members_GK.shape[1]
            for kind, table in rank_groups(self.workload.parallel, kinds, self.workload.table_stages).items()
        }

    def texts(self, stage: int) -> Iterator[str]:
        """Return the rows of a step of a stage, pass by pass."""
        workload, parallel = self.workload, self.workload.parallel
        template = workload.templates[int(workload.template_W[stage * parallel.ranks_per_stage])]
        own = [q for q, holder in enumerate(plan_of(workload).placement[0]) if holder == stage]
        plan = SCHEDULES.get("1f1b").plan(parallel.pp, 1, parallel.microbatches)
        size = int(workload.message_bytes_Q[own[-1]])
        back = int(workload.message_bytes_Q[own[0] - 1])
        yield self._pass([int(template.start_P[stage])])
        for slot in plan.slots[stage]:
            forward = slot.kind is SlotKind.F
            if forward or not workload.forward_only:
                yield from self._slot(template, stage, own, slot.microbatch, forward, (back, size))
        yield self._pass([int(template.end_P[stage])])
        yield _Row("epoch_end").text()

    def _slot(
        self, template: Template, stage: int, own: list[int], microbatch: int, forward: bool, sizes: tuple[int, int]
    ) -> Iterator[str]:
        """Return one pass of all virtual stages of a stage, with what it receives and sends."""
        last = self.workload.parallel.pp - 1
        before, after = ("prev", "next") if forward else ("next", "prev")
        size_before, size_after = sizes if forward else sizes[::-1]
        at_start, at_end = (stage == 0, stage == last) if forward else (stage == last, stage == 0)
        name = "forward_step" if forward else "backward_step"
        if not at_start:
            yield _Row("irecv", "pp_group", 1, size_before, name, f"recv_{before}").text()
        work_QM = template.forward_QM if forward else template.backward_QM
        yield self._pass([int(work_QM[q, microbatch]) for q in (own if forward else own[::-1])])
        if forward and microbatch == self.workload.parallel.microbatches - 1:
            yield self._pass([int(template.after_forward_P[stage])], _PART[Phase.FORWARD])
        if not at_end:
            yield _Row("isend", "pp_group", 1, size_after, name, f"send_{after}").text()

    def _pass(self, segments: Iterable[int], part: str | None = None) -> str:
        """Return the rows of some segments, each as often as it runs, spread evenly over the pass."""
        key = tuple(each for each in segments if each >= 0), part
        if key not in self._texts:
            often: dict[_Row, float] = {}
            for row in (int(each) for segment in key[0] for each in self.workload.segments[segment]):
                for found, times in self._written(row, part):
                    often[found] = often.get(found, 0.0) + times
            placed = [
                ((each + 0.5) / count, order, row)
                for order, (row, times) in enumerate(often.items())
                for count in [max(1, round(times))]
                for each in range(count)
            ]
            ordered = sorted(placed, key=lambda item: item[:2])
            self._texts[key] = "".join(row.text() for _, _, row in ordered)
        return self._texts[key]

    def _written(self, row: int, part: str | None) -> Iterator[tuple[_Row, float]]:
        """Return what is written of a template operation, each row with how often."""
        ops = self.workload.ops
        kind, phase = Kind(int(ops.kind_T[row])), Phase(int(ops.phase_T[row]))
        stage = part or _PART.get(phase, "backward")
        if kind is Kind.COMPUTE:
            yield from _computed(ops.calls_T[row], ops.name_T[row], stage)
        elif kind is Kind.COLLECTIVE:
            size = int(ops.size_bytes_T[row])
            group = Group(int(ops.group_T[row]))
            if size > 0 and self.sizes[group] > 1:
                yield self._collective(group, Operation(int(ops.operation_T[row])), size, stage), ops.repeats_T[row]

    def _collective(self, group: Group, operation: Operation, size: int, stage: str) -> _Row:
        name = f"{stage}.{group.name.lower()}_{_OPERATIONS[operation]}"
        return _Row(_OPERATIONS[operation], _GROUPS[group], self.sizes[group], size, name)

    def check(self) -> None:
        """Refuse what AICB has no words for."""
        ops, parallel = self.workload.ops, self.workload.parallel
        columns = (ops.kind_T.tolist(), ops.group_T.tolist(), ops.operation_T.tolist())
        for kind, group, operation in set(zip(*columns, strict=True)):
            if kind != Kind.COLLECTIVE or self.sizes[Group(group)] == 1:
                continue
            split_otherwise = group == Group.ETP and parallel.expert_tp != parallel.tp
            if Group(group) not in _GROUPS or split_otherwise:
                known = "its groups are tp, dp, pp, ep, ep_dp, embedding and all"
                raise _refused(self.name, f"AICB has no {Group(group).name.lower()} group; {known}")
            if Operation(operation) not in _OPERATIONS:
                raise _refused(self.name, f"AICB has no {Operation(operation).name.lower()}")


def _refused(name: str, why: str) -> FormatError:
    return FormatError(f"cannot be written as a physical AICB workload: {why}", name)


def _computed(
    calls: tuple[tuple[OperatorCall, float], ...] | None, name: str, stage: str
) -> Iterator[tuple[_Row, float]]:
    """Return the GEMMs of a computation, each with how often."""
    for call, times in calls or ():
        if call.family in _GEMMS:
            yield _Row("computation", size=_shapes(call), stage=f"{stage}.{name.replace(',', ' ')}"), times


def _shapes(call: OperatorCall) -> str:
    """Return the factors of a GEMM, forward or backward, as AICB writes them: ``((4096 640) (640 5120))``."""
    m, n, k, groups = (*call.shape, 1)[:4]
    m = -(-m // groups)
    rows, inner, columns = {"dgrad": (m, n, k), "wgrad": (n, m, k)}.get(call.direction, (m, k, n))
    batch = f"{groups} " if groups > 1 else ""
    return f"(({batch}{rows} {inner}) ({batch}{inner} {columns}))"


def write(run: Run, options: Mapping[str, str]) -> Written:  # noqa: ARG001 it has none
    """Return the workload of every stage."""
    workload = run.workload
    if workload.program is not None:
        raise _refused(run.name, "its operations were recorded one by one, and not by a pipeline")
    writer = _StageWriter(workload, run.name)
    writer.check()
    pieces = (
        text.encode()
        for stage in range(workload.parallel.pp)
        for text in (_title(workload, stage), *writer.texts(stage))
    )
    return Written([("workload.csv", pieces)], tuple(_notes(workload)))


def _title(workload: Workload, stage: int) -> str:
    """Return the title of a stage's rows and their header."""
    ranks = workload.parallel.ranks_per_stage
    held = f"rank{stage * ranks} ~ rank{(stage + 1) * ranks - 1}"
    title = f"[ pp_stage{stage}: [{held}] ]" if workload.parallel.pp > 1 else f"[{held}]"
    return f"{title}\n{','.join(COLUMNS)}\n"


def _notes(workload: Workload) -> Iterator[Note]:
    parallel, ops = workload.parallel, workload.ops
    left = {call.family for calls in ops.calls_T for call, _ in calls or ()} - {*_GEMMS}
    if left:
        yield Note("aicb-kernels", f"AICB computes GEMMs alone; left out: {', '.join(sorted(left))}")
    computations = zip(ops.kind_T.tolist(), ops.calls_T, strict=True)
    measured = sum(kind == Kind.COMPUTE and calls is None for kind, calls in computations)
    if measured:
        what = counted(measured, "computation has a time", "computations have times")
        yield Note("aicb-times", f"{what} and no shapes of GEMMs; left out")
    if parallel.vpp > 1 or workload.schedule != "1f1b":
        text = (
            f"AICB's order is 1F1B; the schedule is {workload.schedule} with {counted(parallel.vpp, 'virtual stage')}"
        )
        yield Note("aicb-order", text)
    if any(Kind(int(kind)) is Kind.GAP for kind in workload.ops.kind_T):
        yield Note("aicb-host", "host time has no row")
    if workload.expert_load_W is not None:
        yield Note("aicb-loads", "expert ranks exchange equal amounts")


WRITERS.register("aicb-physical")(
    Writer(name="aicb-physical", title="AICB physical workload", write=write, one_file=True)
)
