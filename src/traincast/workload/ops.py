"""Template operations as columns.

Letter: T template operations. A template operation is written once and run many times;
`traincast.workload.program` holds the runs.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traincast.workload.words import Group, Kind, Operation, OverlapClass, Phase, Provenance, Stream

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One template operation as it is added to a table; unknown numbers are None, never zero."""

    name: str
    kind: Kind
    phase: Phase
    blocking: bool = True
    """Whether the operations after it wait for its end (False: launch only)."""
    stream: Stream = Stream.COMPUTE
    duration_s: float | None = None
    provenance: Provenance = Provenance.UNKNOWN
    file: int = -1
    """Index of the input file, -1 for none."""
    line: int = 0
    """1-based line in it, 0 for none."""
    layer: int = -1
    group: Group = Group.NONE
    operation: Operation = Operation.NONE
    size_bytes: int | None = None
    dtype: str | None = None
    loads: tuple[float, ...] | None = None
    """Relative load of each member where members move unequal amounts."""
    process_s: float = 0.0
    """Local work that follows each transfer (12th column of an AICB row)."""
    waits_for: Stream = Stream.NONE
    """Stream that a WAIT holds for."""
    operator: str | None = None
    shape: tuple[int, ...] | None = None
    flops: float | None = None
    bytes_moved: float | None = None
    overlap_class: OverlapClass = OverlapClass.UNKNOWN
    memory_alloc_bytes: int = 0
    memory_free_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Template operations, one array per property; the fields are those of `Op`."""

    name_T: tuple[str, ...]
    kind_T: IntArray
    phase_T: IntArray
    blocking_T: BoolArray
    stream_T: IntArray
    duration_s_T: FloatArray
    """Seconds; NaN where unknown."""
    provenance_T: IntArray
    file_T: IntArray
    line_T: IntArray
    layer_T: IntArray
    group_T: IntArray
    operation_T: IntArray
    size_bytes_T: IntArray
    """Bytes; -1 where unknown or not a communication."""
    dtype_T: tuple[str | None, ...]
    loads_T: tuple[tuple[float, ...] | None, ...]
    process_s_T: FloatArray
    waits_for_T: IntArray
    operator_T: tuple[str | None, ...]
    shape_T: tuple[tuple[int, ...] | None, ...]
    flops_T: FloatArray
    """FLOP; NaN where unknown."""
    bytes_moved_T: FloatArray
    """Bytes; NaN where unknown."""
    overlap_class_T: IntArray
    memory_alloc_bytes_T: IntArray
    memory_free_bytes_T: IntArray

    def __len__(self) -> int:
        """Number of template operations."""
        return len(self.name_T)


@dataclass(slots=True)
class OpTableBuilder:
    """Collects operations and gives each its row number."""

    ops: list[Op] = field(default_factory=list)

    def add(self, op: Op) -> int:
        """Append an operation and return its row."""
        self.ops.append(op)
        return len(self.ops) - 1

    def table(self) -> OpTable:
        """Return the collected operations as columns."""
        ops = self.ops
        nan = float("nan")

        def integers(values: list[int], dtype: type[np.signedinteger]) -> IntArray:
            return np.array(values, dtype=dtype)

        def floats(values: list[float | None]) -> FloatArray:
            return np.array([nan if value is None else value for value in values], dtype=np.float64)

        return OpTable(
            name_T=tuple(op.name for op in ops),
            kind_T=integers([op.kind for op in ops], np.int8),
            phase_T=integers([op.phase for op in ops], np.int8),
            blocking_T=np.array([op.blocking for op in ops], dtype=np.bool_),
            stream_T=integers([op.stream for op in ops], np.int8),
            duration_s_T=floats([op.duration_s for op in ops]),
            provenance_T=integers([op.provenance for op in ops], np.int8),
            file_T=integers([op.file for op in ops], np.int32),
            line_T=integers([op.line for op in ops], np.int32),
            layer_T=integers([op.layer for op in ops], np.int32),
            group_T=integers([op.group for op in ops], np.int8),
            operation_T=integers([op.operation for op in ops], np.int8),
            size_bytes_T=integers([-1 if op.size_bytes is None else op.size_bytes for op in ops], np.int64),
            dtype_T=tuple(op.dtype for op in ops),
            loads_T=tuple(op.loads for op in ops),
            process_s_T=floats([op.process_s for op in ops]),
            waits_for_T=integers([op.waits_for for op in ops], np.int8),
            operator_T=tuple(op.operator for op in ops),
            shape_T=tuple(op.shape for op in ops),
            flops_T=floats([op.flops for op in ops]),
            bytes_moved_T=floats([op.bytes_moved for op in ops]),
            overlap_class_T=integers([op.overlap_class for op in ops], np.int8),
            memory_alloc_bytes_T=integers([op.memory_alloc_bytes for op in ops], np.int64),
            memory_free_bytes_T=integers([op.memory_free_bytes for op in ops], np.int64),
        )
