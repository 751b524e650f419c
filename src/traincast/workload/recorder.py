"""A workload of explicitly recorded operations: every one of every rank, with its own group, peer and dependencies.

What `traincast.workload.builder` makes is a template, tiled by a pipeline schedule. An execution trace or a profile
says instead what every rank did; it becomes a `Program` here, which runs as it is::

    kinds = classified({"7": Told((0, 1), "TENSOR_MODEL_PARALLEL_GROUP")}, options, world, notes)
    recorder = Recorder("run", kinds.parallel, inputs, notes)
    tp = recorder.group(kinds.kind_of["7"], (0, 1))
    gemm = recorder.row(compute_op("gemm", Phase.FORWARD))
    reduce = recorder.row(collective_op("reduce", Phase.FORWARD, Group.TP, Operation.ALL_REDUCE, 1 << 20))
    for rank in (0, 1):
        recorder.add(RankRecord(rank=rank, row_L=[gemm, reduce], group_L=[-1, tp], queue_L=[0, 1],
                                duration_s_L=[3e-3, math.nan], edge_src_E=[0], edge_dst_E=[1]))
    workload = recorder.workload()

**Order.** Operations of one queue run in the order in which they are given; everything else is said by edges. What has
queue -1 is ordered by its edges alone. Nothing is blocking beyond that (`Op.blocking` and WAITs mean nothing here).

**Rendezvous.** The collectives of a group meet by `RankRecord.key_L` (a sequence number), and those of equal key by
order; a send and its receive by their pair (`Recorder.pair`), key (a tag) and order. Where no key is given every member
must have run each collective; where one is, a record may have begun later or ended earlier than others, and those meet
who have it. Members whose ranks were not recorded are not waited for, and an assumption says so.

**Times.** A duration is what the row says, or `RankRecord.duration_s_L`; a communication without one is estimated from
its size, and a computation from its `calls`. Where a record has `start_s_L` and `end_s_L`, durations come from them: of
a communication what is left from the moment when its last recorded member began, for a kernel that waits for others
runs from its own beginning. What a rank spent before an operation that no recorded operation explains becomes a gap of
the host (Kind.GAP), so that the replay with the measured times takes as long as the measured run; and the measured
times are `Workload.timeline`, which everything in `traincast.analysis` takes.

Letters: R recorded ranks, L operations of one, N of all, E edges, G groups, J operations that meet.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import FormatError, ProgramError
from traincast.files import InputFile
from traincast.job.parallel import Parallel
from traincast.schedules.schedule import usual_schedule
from traincast.units import counted
from traincast.workload.builder import host_op
from traincast.workload.ops import FloatArray, IntArray, Op, table_of
from traincast.workload.program import GroupInstance, Program, Said
from traincast.workload.recorded_program import (
    RecordColumns,
    column,
    measured_run,
    measured_times,
    own_columns,
    previous_in_queue,
    program_of,
    recorded_members,
    rendezvous_of,
    with_times,
)
from traincast.workload.words import Group, Phase
from traincast.workload.workload import Workload

RESOLUTION_S = 2e-6
"""Overlap of two operations of a queue that is rounding: tracers write microseconds."""
_SHORTEST_GAP_S = 1e-9


class RankRecord(Struct, frozen=True, kw_only=True):
    """What one rank ran, as columns; those that are left out are filled with "none"."""

    rank: int
    row_L: npt.ArrayLike
    """Rows of the recorder (`Recorder.row`)."""
    group_L: npt.ArrayLike | None = None
    """Group of each communication (`Recorder.group`, `Recorder.pair`); -1 for none."""
    queue_L: npt.ArrayLike | None = None
    """In-order queue, any number from 0; -1 for none."""
    key_L: npt.ArrayLike | None = None
    """What tells communications of one group apart in addition to their order; -1 for nothing."""
    duration_s_L: npt.ArrayLike | None = None
    """Seconds; NaN where the row says it, or nothing does."""
    start_s_L: npt.ArrayLike | None = None
    """Measured begin, in seconds from an instant that all ranks share; of all operations or of none."""
    end_s_L: npt.ArrayLike | None = None
    microbatch_L: npt.ArrayLike | None = None
    edge_src_E: npt.ArrayLike = ()
    """Positions in this record; the second starts after the first has ended."""
    edge_dst_E: npt.ArrayLike = ()
    file: int = -1
    """Index of its input file."""
    line_L: npt.ArrayLike | None = None
    """1-based line, event or record in it."""
    said_L: npt.ArrayLike | None = None
    """What the input says besides (`Recorder.said`); -1 for nothing."""
    span_s_L: npt.ArrayLike | None = None
    clock_s_L: npt.ArrayLike | None = None
    """Duration and end as the input says them, for whoever writes them again (`Recorded`)."""


class Recorder(Struct):
    """Makes the workload of recorded operations; what was assumed goes to `notes`, files are counted in `inputs`."""

    name: str
    parallel: Parallel
    inputs: tuple[InputFile, ...] = ()
    notes: Notebook = field(default_factory=Notebook)
    _rows: dict[Op, int] = field(default_factory=dict)
    _groups: dict[tuple[Group, tuple[int, ...]], int] = field(default_factory=dict)
    _records: dict[int, RecordColumns] = field(default_factory=dict)
    _said: dict[Said, int] = field(default_factory=dict)

    def said(self, words: Said) -> int:
        """Return the number of what the input says of operations besides, as names and texts; equal ones are one."""
        return self._said.setdefault(words, len(self._said))

    def row(self, op: Op) -> int:
        """Return the row of what operations have in common; equal ones are one."""
        # Nothing holds back more than its queue and edges say.
        return self._rows.setdefault(replace(op, blocking=False), len(self._rows))

    def group(self, kind: Group, members: Sequence[int]) -> int:
        """Return the number of a group with its members in their order.

        Raises
        ------
        ProgramError
            If a member is outside the world or there twice.
        """
        found = tuple(members)
        world = self.parallel.world_size
        if not found or min(found) < 0 or max(found) >= world or len(set(found)) < len(found):
            shown = f"{list(found[:8])}{'...' if len(found) > 8 else ''}"
            raise ProgramError(
                f"{self._shown(-1)}a group has members {shown}; they must be different ranks below {world}"
            )
        return self._groups.setdefault((kind, found), len(self._groups))

    def pair(self, source: int, target: int, kind: Group = Group.PP) -> int:
        """Return the number of the group of those who send and receive from one rank to another."""
        return self.group(kind, (source, target))

    def add(self, record: RankRecord) -> None:
        """Take what a rank ran.

        Raises
        ------
        FormatError
            If a duration is negative, an operation ends before it begins, or two of one queue overlap.
        ProgramError
            If a rank is there twice or outside the world, or a number points nowhere.
        """
        if record.rank in self._records or not 0 <= record.rank < self.parallel.world_size:
            why = "twice" if record.rank in self._records else f"outside the world of {self.parallel.world_size} ranks"
            raise ProgramError(f"{self._shown(record.file)}rank {record.rank} is recorded {why}")
        self._records[record.rank] = self._checked(record)

    def workload(self, *, measured_communication: bool = True) -> Workload:
        """Return the workload.

        With `measured_communication` off, communications of known size are estimated though their times are known.

        Raises
        ------
        ProgramError
            If communications that must meet cannot.
        """
        if not self._records:
            raise ProgramError(f"{self._shown(-1)}no rank is recorded")
        records = [self._records[rank] for rank in sorted(self._records)]
        timed = all(record.start_s_L is not None for record in records)
        if timed:
            gap = self.row(host_op("gap", Phase.STEP, 0.0))
            first_s = min(
                float(record.start_s_L.min(initial=np.inf)) for record in records if record.start_s_L is not None
            )
            records = self._ended_together(records)
            records = [self._with_gaps(record, first_s, gap) for record in records]
        groups = self._instances()
        own = own_columns(records, tuple(self._said))
        program = program_of(records, own, table_of(list(self._rows)), groups, self.parallel, self.inputs)
        program = replace(program, rendezvous_N=rendezvous_of(program, column(records, "key_L")))
        self._note_missing(program)
        timeline = measured_times(program, records) if timed else None
        program = with_times(program, own, timeline, measured_communication)
        return Workload(
            name=self.name,
            parallel=self.parallel,
            schedule=usual_schedule(),
            forward_only=False,
            ops=program.ops,
            segments=(),
            templates=(),
            template_W=np.zeros(self.parallel.world_size, dtype=np.int32),
            message_bytes_Q=np.zeros(self.parallel.pp * self.parallel.vpp, dtype=np.int64),
            inputs=self.inputs,
            assumptions=tuple(self.notes.assumptions),
            warnings=tuple(self.notes.warnings),
            measured=None if timeline is None else measured_run(program, timeline),
            compute_is_in_situ=timed,
            program=program,
            timeline=timeline,
        )

    # ---- checks

    def _checked(self, record: RankRecord) -> RecordColumns:
        row_L = np.asarray(record.row_L, dtype=np.int64)
        count = len(row_L)

        def integers(name: str, low: int, high: int | None = None) -> IntArray:
            given = getattr(record, name)
            column = np.full(count, low if name != "line_L" else 0) if given is None else np.asarray(given)
            if len(column) != count or (count and (column.min() < low or (high is not None and column.max() >= high))):
                raise ProgramError(f"{self._shown(record.file)}rank {record.rank}: {name} points nowhere")
            return column.astype(np.int64)

        def seconds(given: npt.ArrayLike | None) -> FloatArray | None:
            if given is None:
                return None
            column = np.asarray(given, dtype=np.float64)
            if len(column) != count:
                raise ProgramError(f"{self._shown(record.file)}rank {record.rank} has columns of different lengths")
            return column

        def known(given: npt.ArrayLike | None) -> FloatArray:
            column = seconds(given)
            return np.full(count, np.nan) if column is None else column

        edges = [np.asarray(each, dtype=np.int64) for each in (record.edge_src_E, record.edge_dst_E)]
        if len(edges[0]) != len(edges[1]) or any(
            len(each) and not 0 <= each.min() <= each.max() < count for each in edges
        ):
            raise ProgramError(f"{self._shown(record.file)}rank {record.rank}: an edge points nowhere")
        found = RecordColumns(
            rank=record.rank,
            file=record.file,
            row_L=integers("row_L", 0, len(self._rows)),
            group_L=integers("group_L", -1, len(self._groups)),
            queue_L=integers("queue_L", -1),
            key_L=integers("key_L", -1),
            microbatch_L=integers("microbatch_L", -1),
            line_L=integers("line_L", 0),
            said_L=integers("said_L", -1, len(self._said)),
            span_s_L=known(record.span_s_L),
            clock_s_L=known(record.clock_s_L),
            duration_s_L=known(record.duration_s_L),
            start_s_L=seconds(record.start_s_L),
            end_s_L=seconds(record.end_s_L),
            edge_src_E=edges[0],
            edge_dst_E=edges[1],
        )
        self._check_times(found)
        return found

    def _check_times(self, found: RecordColumns) -> None:
        bad = np.flatnonzero((found.duration_s_L < 0) | np.isinf(found.duration_s_L))
        if len(bad):
            raise self._wrong(found, int(bad[0]), f"takes {found.duration_s_L[bad[0]]:g} s")
        if (found.start_s_L is None) != (found.end_s_L is None):
            raise ProgramError(f"{self._shown(found.file)}rank {found.rank} has start times or end times, but not both")
        if found.start_s_L is None or found.end_s_L is None:
            return
        bad = np.flatnonzero(~(np.isfinite(found.end_s_L) & (found.end_s_L >= found.start_s_L)))
        if len(bad):
            text = f"begins at {found.start_s_L[bad[0]]:.9g} s and ends at {found.end_s_L[bad[0]]:.9g} s"
            raise self._wrong(found, int(bad[0]), text)
        before_L = previous_in_queue(found.queue_L)
        bad = np.flatnonzero((before_L >= 0) & (found.start_s_L < found.end_s_L[before_L] - RESOLUTION_S))
        if len(bad):
            other = self._name(found, int(before_L[bad[0]]))
            over_s = found.end_s_L[before_L[bad[0]]] - found.start_s_L[bad[0]]
            raise self._wrong(found, int(bad[0]), f"begins {over_s:.3g} s before the end of {other} in its own queue")

    def _wrong(self, found: RecordColumns, at: int, what: str) -> FormatError:
        path = self.inputs[found.file].path if 0 <= found.file < len(self.inputs) else self.name
        text = f"{self._name(found, at)} of rank {found.rank} {what}"
        return FormatError(text, path, int(found.line_L[at]) or None)

    def _name(self, found: RecordColumns, at: int) -> str:
        return repr(next(op.name for op, row in self._rows.items() if row == found.row_L[at]))

    def _shown(self, file: int) -> str:
        chosen = self.inputs[file : file + 1] if file >= 0 else self.inputs[:1]
        return "".join(f"{each.path}: " for each in chosen)

    # ---- what was measured

    def _instances(self) -> tuple[GroupInstance, ...]:
        return tuple(GroupInstance(kind, np.array(members, np.int32)) for kind, members in self._groups)

    def _ended_together(self, records: Sequence[RecordColumns]) -> list[RecordColumns]:
        """Let what met end for all members when the first of them saw it end.

        Their ends differ by what hosts and clocks add. Were the last one taken, each rendezvous would hold back those
        that had gone on, and the replay would add up what no rank was held back by; so it is the member's own.
        """
        ops, own = table_of(list(self._rows)), own_columns(records, ())
        program = program_of(records, own, ops, self._instances(), self.parallel, self.inputs)
        rendezvous_N = rendezvous_of(program, column(records, "key_L"))
        joined = np.flatnonzero(rendezvous_N >= 0)
        if not len(joined):
            return list(records)
        begin_N, end_N, met_J = column(records, "start_s_L"), column(records, "end_s_L"), rendezvous_N[joined]
        first_end_J = np.full(int(met_J.max()) + 1, np.inf)
        last_begin_J = np.full(len(first_end_J), -np.inf)
        np.minimum.at(first_end_J, met_J, end_N[joined])
        np.maximum.at(last_begin_J, met_J, begin_N[joined])
        together = (first_end_J > last_begin_J)[met_J]  # else one had gone before another came
        end_N[joined[together]] = first_end_J[met_J[together]]
        ends = np.split(end_N, np.cumsum([len(record.row_L) for record in records])[:-1])
        return [replace(record, end_s_L=end_s_L) for record, end_s_L in zip(records, ends, strict=True)]

    def _with_gaps(self, record: RecordColumns, first_s: float, gap_row: int) -> RecordColumns:
        """Put a gap of the host before each operation that began later than what it follows had ended."""
        if record.start_s_L is None or record.end_s_L is None:
            return record
        start_L, end_L = record.start_s_L - first_s, record.end_s_L - first_s
        previous_L = previous_in_queue(record.queue_L)
        free_L = np.where(previous_L >= 0, end_L[previous_L], 0.0)
        start_L = np.maximum(start_L, free_L)
        end_L = np.maximum(start_L, end_L)
        source_E, target_E = record.edge_src_E, record.edge_dst_E
        kept_E = end_L[source_E] <= start_L[target_E] + RESOLUTION_S
        if not kept_E.all():
            first = int(np.flatnonzero(~kept_E)[0])
            lost = counted(int((~kept_E).sum()), "dependency is", "dependencies are")
            self.notes.warn(
                "dependency-contradicted",
                f"rank {record.rank}: {lost} contradicted "
                f"by the measured times and left out, the first that of {self._name(record, int(target_E[first]))} on "
                f"{self._name(record, int(source_E[first]))}",
                None,
            )
            source_E, target_E = source_E[kept_E], target_E[kept_E]
        np.maximum.at(free_L, target_E, end_L[source_E])
        gap_s_L = start_L - free_L
        late_L = gap_s_L > _SHORTEST_GAP_S
        late = np.flatnonzero(late_L)
        place_L = np.arange(len(late_L)) + np.cumsum(late_L)
        loose = late[record.queue_L[late] < 0]

        values = {
            "row_L": np.full(len(late), gap_row),
            "group_L": np.full(len(late), -1),
            "key_L": np.full(len(late), -1),
            "said_L": np.full(len(late), -1),
            **{name: getattr(record, name)[late] for name in ("queue_L", "microbatch_L", "line_L")},
        }
        integers: dict[str, IntArray] = {
            name: np.insert(getattr(record, name), late, value) for name, value in values.items()
        }
        return RecordColumns(
            rank=record.rank,
            file=record.file,
            **integers,
            span_s_L=np.insert(record.span_s_L, late, np.nan),
            clock_s_L=np.insert(record.clock_s_L, late, np.nan),
            duration_s_L=np.insert(record.duration_s_L, late, gap_s_L[late]),
            start_s_L=np.insert(start_L, late, free_L[late]),
            end_s_L=np.insert(end_L, late, start_L[late]),
            edge_src_E=np.concatenate([place_L[source_E], place_L[loose] - 1]),
            edge_dst_E=np.concatenate([place_L[target_E] - late_L[target_E], place_L[loose]]),
        )

    def _note_missing(self, program: Program) -> None:
        """Say which communications have members that were not recorded, or that some members did not record."""
        recorded = set(program.rank_R.tolist())
        members_G = recorded_members(program)
        size_G = np.array([len(group.members) for group in program.groups], dtype=np.int64)
        lacking = int(np.sum((members_G < size_G)[program.group_N[program.group_N >= 0]]))
        if lacking:
            self.notes.assume(
                "ranks-not-recorded",
                f"{len(recorded)} of {self.parallel.world_size} ranks are recorded; "
                f"{counted(lacking, 'communication does', 'communications do')} not wait for members that are not",
                None,
            )
        joined = np.flatnonzero(program.rendezvous_N >= 0)
        rendezvous, first, count = np.unique(program.rendezvous_N[joined], return_index=True, return_counts=True)
        cut = np.flatnonzero(count < members_G[program.group_N[joined[first]]])
        if len(cut):
            at = int(joined[first[cut[0]]])
            self.notes.warn(
                "members-missing",
                f"{counted(len(cut), 'collective')} of {len(rendezvous)} communications lack recorded members, the "
                f"first {program.ops.name_T[program.row_N[at]]!r}{program.place_of(at)}; "
                "only the recorded members rendezvous (are the records cut at different places?)",
                None,
            )
