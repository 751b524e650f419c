"""What one rank runs in each pass of each microbatch, of any workload, for whoever writes it as rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from traincast.workload.ops import OpTable
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Operation, Phase
from traincast.workload.workload import Workload

_OWN = (Kind.COMPUTE, Kind.GAP, Kind.COPY)
_FORWARD = (Phase.FORWARD,)
_BACKWARD = (Phase.BACKWARD, Phase.WEIGHT_GRADIENT, Phase.RECOMPUTE)


class Item(Struct, frozen=True):
    """A computation, or a communication."""

    name: str
    kind: Kind
    time_s: float
    """What is known of a communication's time; NaN where nothing is."""
    group: Group
    operation: Operation
    size_bytes: int
    """Bytes of a communication; below 0 where they are not known."""

    @property
    def computes(self) -> bool:
        """Whether it is the rank's own: a computation, a copy, or a pause of the host."""
        return self.kind in _OWN


class RankWork(Struct, frozen=True):
    """What a rank runs in a step."""

    rank: int
    stage: int
    start: list[Item]
    forward: list[list[Item]]
    """By microbatch."""
    after_forward: list[Item]
    backward: list[list[Item]]
    end: list[Item]

    @property
    def compute_s(self) -> float:
        """Seconds of its own work."""
        parts = (self.start, *self.forward, self.after_forward, *self.backward, self.end)
        return sum(item.time_s for part in parts for item in part if item.computes)


def works_of(workload: Workload) -> list[RankWork]:
    """Return the work of one rank of each stage: of the lowest that was read."""
    if workload.program is not None:
        program = workload.program
        _, first = np.unique(program.stage_R, return_index=True)
        return [_recorded(workload, program, index) for index in first.tolist()]
    per_stage = workload.parallel.ranks_per_stage
    return [_of_template(workload, stage, stage * per_stage) for stage in range(workload.parallel.pp)]


def _of_template(workload: Workload, stage: int, rank: int) -> RankWork:
    template = workload.templates[int(workload.template_W[rank])]

    def items(*segments: int) -> list[Item]:
        rows = [row for segment in segments if segment >= 0 for row in workload.segments[segment].tolist()]
        return list(_items(workload.ops, rows))

    def before(direction: int, boundary: int, microbatch: int) -> int:
        if template.before_recv_DQM is None or not 0 <= boundary < template.before_recv_DQM.shape[1]:
            return -1
        return int(template.before_recv_DQM[direction, boundary, microbatch])

    batches = range(workload.parallel.microbatches)
    forward = [items(before(0, stage - 1, m), int(template.forward_QM[stage, m])) for m in batches]
    backward = [items(before(1, stage, m), int(template.backward_QM[stage, m])) for m in batches]
    if workload.forward_only:
        backward = [[] for _ in batches]
    return RankWork(
        rank,
        stage,
        items(int(template.start_P[stage])),
        forward,
        items(int(template.after_forward_P[stage])),
        backward,
        items(int(template.end_P[stage])),
    )


def _items(ops: OpTable, rows: Sequence[int]) -> Iterator[Item]:
    for row in rows:
        kind = Kind(int(ops.kind_T[row]))
        if kind in (*_OWN, Kind.COLLECTIVE):
            repeats = float(ops.repeats_T[row]) if kind in _OWN else 1.0
            yield Item(
                ops.name_T[row],
                kind,
                float(ops.duration_s_T[row]) * repeats,
                Group(int(ops.group_T[row])),
                Operation(int(ops.operation_T[row])),
                int(ops.size_bytes_T[row]),
            )


def _recorded(workload: Workload, program: Program, index: int) -> RankWork:
    """Return what a recorded rank ran, in the order in which it began; the phase of each operation tells the pass.

    What stands between passes, such as a pause of the host, goes with the pass before it.
    """
    mine = program.rank_slice(index)
    order = np.arange(mine.start, mine.stop)
    if workload.timeline is not None:
        order = order[np.argsort(workload.timeline.start_s_N[mine], kind="stable")]
    rows, known_s, batch = program.row_N[order], program.known_s_N[order], program.microbatch_N[order]
    batches = sorted(set(batch[batch >= 0].tolist())) or [-1]
    place = {number: at for at, number in enumerate(batches)}
    start: list[Item] = []
    end: list[Item] = []
    forward: list[list[Item]] = [[] for _ in batches]
    backward: list[list[Item]] = [[] for _ in batches]
    current = start
    for at, item in enumerate(_timed(program.ops, rows.tolist(), known_s.tolist())):
        if item is None:
            continue
        phase = Phase(int(program.ops.phase_T[rows[at]]))
        number = place.get(int(batch[at]), 0)
        if phase in _FORWARD:
            current = forward[number]
        elif phase in _BACKWARD:
            current = backward[number]
        elif item.kind is not Kind.GAP and current is not start:
            current = end
        current.append(item)
    stage = int(program.stage_R[index])
    return RankWork(int(program.rank_R[index]), stage, start, forward, [], backward, end)


def _timed(ops: OpTable, rows: Sequence[int], known_s: Sequence[float]) -> Iterator[Item | None]:
    """Yield each operation with the time that its record knows; None for what is not work."""
    for row, time_s in zip(rows, known_s, strict=True):
        found = next(_items(ops, [row]), None)
        known = time_s if not np.isnan(time_s) else (found.time_s if found else time_s)
        yield (
            None
            if found is None
            else Item(found.name, found.kind, known, found.group, found.operation, found.size_bytes)
        )
