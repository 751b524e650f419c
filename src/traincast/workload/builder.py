"""The one way to make a workload, for files and for models.

A workload is made from the inside out:

1. **operations**: `compute_op`, `collective_op`, `host_op` and `wait_op` make them, and `WorkloadBuilder.add`
   writes them down; each has a row from then on. What a duration comes from follows from what is given: one that
   has a place in a file was written there, one that has none is unknown unless it is said to be assumed.
2. **asynchronous pairs**: what is launched (``blocking=False``) runs on the stream of its group and overlaps with
   what follows, until something waits for that stream: `WorkloadBuilder.overlapped` puts both around what hides it,
   and `WorkloadBuilder.drained` waits for whatever some rows leave running.
3. **segments**: rows in program order, the pieces that are repeated (`WorkloadBuilder.segment`).
4. **templates**: which segment a rank runs at each virtual stage and microbatch (`WorkloadBuilder.template`);
   pipeline P2P comes with the schedule and needs its sizes alone.
5. **the workload** with all that was assumed (`WorkloadBuilder.workload`).

Letters: P stages, Q virtual stages in model order, M microbatches, D directions, W ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from msgspec import Struct, field

from traincast.diagnostics import Notebook
from traincast.errors import ProgramError
from traincast.files import InputFile
from traincast.job.parallel import Parallel
from traincast.workload.ops import FloatArray, IntArray, Op, OperatorCall, table_of
from traincast.workload.words import (
    STREAM_OF_GROUP,
    CostClass,
    Group,
    Kind,
    Operation,
    OverlapClass,
    Phase,
    Provenance,
    Stream,
)
from traincast.workload.workload import MeasuredStep, Template, Workload

Rows = list[int]
"""Rows of the table of operations, in program order."""


class Place(NamedTuple):
    """Where the input says something."""

    file: int = -1
    """Index of the input file, -1 for none."""
    line: int = 0
    """1-based line in it, 0 for none."""


NOWHERE = Place()
"""What no file says."""


class _Further(TypedDict, total=False):
    """Further fields of an operation, as in `Op`."""

    layer: int
    part: str | None
    calls: tuple[tuple[OperatorCall, float], ...] | None
    overlap_class: OverlapClass
    cost_class: CostClass
    repeats: float
    dtype: str | None
    process_s: float
    loads: tuple[float, ...] | None
    received_bytes: int | None
    unequal: bool


def compute_op(
    name: str,
    phase: Phase,
    duration_s: float | None = None,
    *,
    assumed: bool = False,
    place: Place = NOWHERE,
    **further: Unpack[_Further],
) -> Op:
    """Return a computation; without a duration the cost of its `calls` is to be estimated.

    `place` is where the input says it; `assumed` tells that the duration is supposed, not written.
    """
    return _op(Kind.COMPUTE, name, phase, duration_s, place, assumed=assumed, **further)


def copy_op(
    name: str,
    phase: Phase,
    duration_s: float | None = None,
    *,
    place: Place = NOWHERE,
    **further: Unpack[_Further],
) -> Op:
    """Return a copy in or to the memory of a GPU, or its setting to a value."""
    return _op(Kind.COPY, name, phase, duration_s, place, **further)


def offload_op(
    name: str, phase: Phase, stream: Stream, size_bytes: int, *, blocking: bool = False, part: str | None = None
) -> Op:
    """Return what moves so many bytes between a GPU and its host, or in the memory of the host; its rate is estimated.

    The stream says which: `Stream.OFFLOAD_OUT`, `Stream.OFFLOAD_IN` or `Stream.HOST_MEMORY`.
    """
    return _op(
        Kind.COPY, name, phase, None, NOWHERE, stream=stream, blocking=blocking, size_bytes=size_bytes, part=part
    )


OUTSIDE = Stream.REPLICA
"""The stream of what is exchanged outside the job: copies of its state elsewhere."""


def outside_op(name: str, duration_s: float, *, blocking: bool) -> Op:
    """Return what a host exchanges with others than the ranks of its job, as long as that takes."""
    return _op(Kind.COPY, name, Phase.STEP, duration_s, NOWHERE, stream=OUTSIDE, blocking=blocking, part=name)


def message_op(name: str, kind: Kind, phase: Phase, group: Group, size_bytes: int | None) -> Op:
    """Return a send or receive that was recorded; its two ranks are its group (`Recorder.pair`)."""
    stream = Stream.SEND_FORWARD if kind is Kind.SEND else Stream.RECV_FORWARD
    return _op(
        kind,
        name,
        phase,
        None,
        NOWHERE,
        stream=stream,
        blocking=False,
        group=group,
        operation=Operation.SEND_RECV,
        size_bytes=size_bytes,
    )


def collective_op(
    name: str,
    phase: Phase,
    group: Group,
    operation: Operation,
    size_bytes: int | None,
    duration_s: float | None = None,
    *,
    blocking: bool = True,
    place: Place = NOWHERE,
    **further: Unpack[_Further],
) -> Op:
    """Return a communication over a group; it runs on the stream of the group's kind.

    The operation says which bytes `size_bytes` are, None where only the duration is known: that of the transfer without
    waiting, None where it is to be estimated. What is not `blocking` is launched, and something waits for its stream.
    """
    return _op(
        Kind.COLLECTIVE,
        name,
        phase,
        duration_s,
        place,
        stream=STREAM_OF_GROUP[group],
        blocking=blocking,
        group=group,
        operation=operation,
        size_bytes=size_bytes,
        **further,
    )


def host_op(
    name: str,
    phase: Phase,
    duration_s: float,
    *,
    launches: bool = False,
    place: Place = NOWHERE,
    **further: Unpack[_Further],
) -> Op:
    """Return work of the host: the GPU is idle meanwhile.

    Where the host `launches` what follows, it runs on a stream of its own, overlapped with that
    (`WorkloadBuilder.overlapped`).
    """
    stream = Stream.HOST if launches else Stream.COMPUTE
    return _op(Kind.GAP, name, phase, duration_s, place, stream=stream, blocking=not launches, **further)


def wait_op(
    stream: Stream,
    *,
    name: str | None = None,
    phase: Phase = Phase.STEP,
    place: Place = NOWHERE,
    **further: Unpack[_Further],
) -> Op:
    """Return a wait for everything that was launched on a stream; it takes no time of its own."""
    return _op(Kind.WAIT, name or f"wait_{stream.name.lower()}", phase, 0.0, place, waits_for=stream, **further)


def _op(
    kind: Kind,
    name: str,
    phase: Phase,
    duration_s: float | None,
    place: Place,
    *,
    assumed: bool = False,
    **fields: Any,  # noqa: ANN401
) -> Op:
    """Return an operation; what its duration comes from follows from where it stands."""
    provenance = Provenance.UNKNOWN if duration_s is None or place.file < 0 else Provenance.FILE
    return Op(
        name=name,
        kind=kind,
        phase=phase,
        duration_s=duration_s,
        provenance=Provenance.ASSUMED if assumed else provenance,
        file=place.file,
        line=place.line,
        **fields,
    )


class WorkloadBuilder(Struct):
    """Makes one workload.

    Whoever makes it writes what was assumed and what looks wrong into `notes`; `Place.file` counts `inputs`.
    """

    name: str
    parallel: Parallel
    schedule: str
    notes: Notebook = field(default_factory=Notebook)
    inputs: tuple[InputFile, ...] = ()
    ops: list[Op] = field(default_factory=list)
    segments: list[IntArray] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    _written: dict[object, Rows] = field(default_factory=dict)
    """Rows in program order of what may be asked for again."""
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Segments by their rows."""

    @property
    def virtual_stages(self) -> int:
        """Virtual stages of all pipeline stages."""
        return self.parallel.pp * self.parallel.vpp

    def add(self, *ops: Op) -> Rows:
        """Write operations down and return their rows."""
        self.ops += ops
        return list(range(len(self.ops) - len(ops), len(self.ops)))

    def again(self, key: object, write: Callable[[], Rows]) -> Rows:
        """Return the rows of operations that are written when a key is first asked for: equal work has equal rows."""
        rows = self._written.get(key)
        if rows is None:
            rows = self._written[key] = write()
        return rows.copy()

    def wait(self, *streams: Stream) -> Rows:
        """Wait for everything that was launched on each of some streams."""
        return self.add(*map(wait_op, streams))

    def overlapped(self, launched: Rows, hiding: Rows) -> Rows:
        """Return an asynchronous pair around what may hide it: launches, the work, a wait for each stream."""
        return [*launched, *hiding, *self.drained(launched)]

    def drained(self, rows: Rows) -> Rows:
        """Wait for what some rows launch and nothing in them waits for, in the order of the launches."""
        return self.wait(*self.running(rows))

    def running(self, rows: Rows) -> list[Stream]:
        """Return the streams on which some rows launch what nothing in them waits for, in the order of the launches."""
        running: dict[Stream, None] = {}
        for op in (self.ops[row] for row in rows):
            if op.kind is Kind.WAIT:
                running.pop(op.waits_for, None)
            elif not op.blocking:
                running[op.stream] = None
        return list(running)

    def segment(self, rows: Sequence[int]) -> int:
        """Make a segment of some rows and return its number, the same for the same rows; of none it is -1."""
        if not rows:
            return -1
        number = self._numbers.setdefault(tuple(rows), len(self.segments))
        if number == len(self.segments):
            self.segments.append(np.array(rows, dtype=np.int32))
        return number

    def template(self, *, message_s_DQM: FloatArray | None = None, before_recv_DQM: IntArray | None = None) -> Template:
        """Add a template in which nothing runs; whoever asks for it writes numbers of segments into its arrays."""
        made = Template(
            forward_QM=self.nothing(self.virtual_stages, self.parallel.microbatches),
            backward_QM=self.nothing(self.virtual_stages, self.parallel.microbatches),
            start_P=self.nothing(self.parallel.pp),
            after_forward_P=self.nothing(self.parallel.pp),
            end_P=self.nothing(self.parallel.pp),
            message_s_DQM=message_s_DQM,
            before_recv_DQM=before_recv_DQM,
        )
        self.templates.append(made)
        return made

    @staticmethod
    def nothing(*shape: int) -> IntArray:
        """Return an array of numbers of segments in which nothing runs yet."""
        return np.full(shape, -1, dtype=np.int32)

    def workload(
        self,
        message_bytes: int | Sequence[int],
        *,
        forward_only: bool = False,
        template_W: IntArray | None = None,
        measured: MeasuredStep | None = None,
        expert_load_W: FloatArray | None = None,
        compute_is_in_situ: bool = False,
        table_stages: tuple[int, ...] = (),
        exchange_sms: int = 0,
        pairs_passes: bool = False,
    ) -> Workload:
        """Return the workload.

        Parameters
        ----------
        message_bytes : int or sequence of int
            Bytes of the activation that leaves a virtual stage: the same for all, or one for each.
        forward_only : bool
            Whether the backward pass does not run.
        template_W : int array [W], optional
            Template of each rank; by default the first one for all.
        measured, expert_load_W, compute_is_in_situ, table_stages, exchange_sms, pairs_passes
            As in `Workload`.

        Raises
        ------
        ProgramError
            If a template points at a segment, or a rank at a template, that was not made.
        """
        self._check(template_W)
        sizes = [message_bytes] * self.virtual_stages if isinstance(message_bytes, int) else message_bytes
        world = self.parallel.world_size
        return Workload(
            name=self.name,
            parallel=self.parallel,
            schedule=self.schedule,
            forward_only=forward_only,
            ops=table_of(self.ops),
            segments=tuple(self.segments),
            templates=tuple(self.templates),
            template_W=np.zeros(world, dtype=np.int32) if template_W is None else template_W,
            message_bytes_Q=np.array(sizes, dtype=np.int64),
            inputs=self.inputs,
            assumptions=tuple(self.notes.assumptions),
            warnings=tuple(self.notes.warnings),
            measured=measured,
            expert_load_W=expert_load_W,
            compute_is_in_situ=compute_is_in_situ,
            table_stages=table_stages,
            exchange_sms=exchange_sms,
            pairs_passes=pairs_passes,
        )

    def _check(self, template_W: IntArray | None) -> None:
        last = max((int(rows.max()) for rows in self.segments), default=-1)
        if last >= len(self.ops):
            raise ProgramError(f"{self.name}: a segment has row {last}, but there are {len(self.ops)} operations")
        for template in self.templates:
            numbers = (template.forward_QM, template.backward_QM, template.start_P, template.after_forward_P)
            number = max(int(each.max()) for each in (*numbers, template.end_P))
            if number >= len(self.segments):
                raise ProgramError(f"{self.name}: a template has segment {number} of {len(self.segments)}")
        highest = 0 if template_W is None else int(template_W.max())
        if highest >= len(self.templates):
            raise ProgramError(f"{self.name}: a rank has template {highest} of {len(self.templates)}")
