"""Template operations as columns.

Letter: T template operations. A template operation is written once and run many times;
`traincast.workload.program` holds the runs.
"""

import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import astuple

from traincast.errors import InfeasibleError
from traincast.workload.words import UNEQUAL, CostClass, Group, Kind, Operation, OverlapClass, Phase, Provenance, Stream

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct ones of some values, sorted; `np.unique` loads masked arrays first to do so."""
    ordered = np.sort(values, axis=None)
    found: npt.NDArray[Any] = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]
    return found


def numbered(key_I: IntArray) -> tuple[IntArray, IntArray]:
    """Return where each distinct key, in rising order, comes first, and which of them each key is; none is below 0.

    As `np.unique` does, but keys that are few are counted, not sorted.
    """
    most = int(key_I.max(initial=-1)) + 1
    if most > _KEYS_PER_VALUE * len(key_I):
        _, first, which_I = np.unique(key_I, return_index=True, return_inverse=True)
        return first, which_I
    first_of = np.full(most, -1, dtype=np.int64)
    first_of[key_I[::-1]] = np.arange(len(key_I))[::-1]
    there = first_of >= 0
    return first_of[there], (np.cumsum(there) - 1)[key_I]


_KEYS_PER_VALUE = 8
"""Up to so many times as many possible keys as there are keys are counted."""


class OperatorCall(Struct, frozen=True, kw_only=True):
    """One kernel (or a fused group of them) on one GPU."""

    family: str
    """Name of the operator model: gemm, grouped_gemm, attention, norm ... (`traincast.estimate.operators`)."""
    shape: tuple[int, ...]
    """Sizes, with the meaning that the family documents."""
    dtype: str
    """Type of the inputs: bf16, fp16, fp32, tf32, fp8, fp8_block, mxfp8, nvfp4, mxfp4."""
    direction: str = "forward"
    """``forward``; of a GEMM ``dgrad`` and ``wgrad``; of others ``backward``."""
    causal: bool = False
    window: int = 0
    """Tokens an attention query sees back; 0: all."""
    options: tuple[tuple[str, str], ...] = ()
    """Further properties, such as the generation of an attention kernel, ``(("kernel", "fa2"),)``."""


class Op(Struct, frozen=True, kw_only=True):
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
    part: str | None = None
    """Part of the input it is a piece of, such as the ``forward_step`` of a trace."""
    group: Group = Group.NONE
    operation: Operation = Operation.NONE
    size_bytes: int | None = None
    received_bytes: int | None = None
    """Bytes that reach the rank in an all-to-all, where that is known to differ from `size_bytes`."""
    unequal: bool = False
    """Whether this is the v form of its operation, in which every rank has a piece of any size."""
    dtype: str | None = None
    loads: tuple[float, ...] | None = None
    """Relative load of each member where members move unequal amounts."""
    process_s: float = 0.0
    """Local work that follows each transfer (12th column of an AICB row)."""
    waits_for: Stream = Stream.NONE
    """Stream that a WAIT holds for."""
    repeats: float = 1.0
    """Equal communications, one after the other, that this one stands for; a share of one where it is split."""
    calls: tuple[tuple[OperatorCall, float], ...] | None = None
    """What a computation runs, and how often; its duration is worked out from them."""
    flops: float | None = None
    bytes_moved: float | None = None
    overlap_class: OverlapClass = OverlapClass.UNKNOWN
    overlap_shares: tuple[float, ...] | None = None
    """Share of its time in each of `OverlapClass`, for a computation of several kernels; None: it is of one class."""
    cost_class: CostClass = CostClass.NONE


class OpTable(Struct, frozen=True, kw_only=True):
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
    part_T: tuple[str | None, ...]
    group_T: IntArray
    operation_T: IntArray
    size_bytes_T: IntArray
    """Bytes; -1 where unknown or not a communication."""
    received_bytes_T: IntArray
    """Bytes; -1 where as many as leave."""
    unequal_T: BoolArray
    dtype_T: tuple[str | None, ...]
    loads_T: tuple[tuple[float, ...] | None, ...]
    process_s_T: FloatArray
    waits_for_T: IntArray
    repeats_T: FloatArray
    calls_T: tuple[tuple[tuple[OperatorCall, float], ...] | None, ...]
    flops_T: FloatArray
    """FLOP; NaN where unknown."""
    bytes_moved_T: FloatArray
    """Bytes; NaN where unknown."""
    overlap_class_T: IntArray
    overlap_shares_T: tuple[tuple[float, ...] | None, ...]
    cost_class_T: IntArray

    def __len__(self) -> int:
        """Return the number of template operations."""
        return len(self.name_T)

    @property
    def may_differ_T(self) -> BoolArray:
        """Whether the members of each collective may move unequal amounts, [T]."""
        differ_T: BoolArray = self.unequal_T | np.isin(self.operation_T, sorted(UNEQUAL))
        return differ_T

    def extended(self, ops: Sequence[Op]) -> "OpTable":
        """Return a table with further operations at its end; existing rows keep their numbers."""
        return self.joined(table_of(ops))

    def joined(self, more: "OpTable") -> "OpTable":
        """Return this table followed by another one."""
        columns: dict[str, Any] = {}
        for name in self.__struct_fields__:
            old, new = getattr(self, name), getattr(more, name)
            columns[name] = old + new if isinstance(old, tuple) else np.concatenate([old, new])
        return OpTable(**columns)

    def chosen(self, rows: IntArray) -> "OpTable":
        """Return a table of some rows, in their order."""
        columns: dict[str, Any] = {}
        for name in self.__struct_fields__:
            old = getattr(self, name)
            columns[name] = (
                tuple(np.fromiter(old, object, len(old))[rows].tolist()) if isinstance(old, tuple) else old[rows]
            )
        return OpTable(**columns)


_INTEGER_WIDTH = {
    "int8": ("kind", "phase", "stream", "provenance", "group", "operation", "waits_for", "overlap_class", "cost_class"),
    "int32": ("file", "line", "layer"),
    "int64": ("size_bytes", "received_bytes"),
}
_MOST_BYTES = 2**62
"""Largest size that a column of 64 bits takes twice over."""
_FLOATS = ("duration_s", "process_s", "repeats", "flops", "bytes_moved")


def _too_large(name: str, op: Op, size_bytes: int) -> InfeasibleError:
    return InfeasibleError(
        f"{op.name or 'an operation'} has {size_bytes:.3g} bytes ({name}), above the limit of 2^62; its sequence, "
        "batch or widths are beyond any machine"
    )


def table_of(ops: Sequence[Op]) -> OpTable:
    """Turn operations into columns; an unknown number becomes NaN, an unknown size -1.

    One that is there several times, the very same one, is looked at once.

    Raises
    ------
    InfeasibleError
        If a product of numbers in range is a size that is not.
    """
    keys = list(map(id, ops))
    once = dict(zip(keys, ops, strict=True))
    if len(once) == len(ops):
        return _table_of(ops)
    place_of = dict(zip(once, range(len(once)), strict=True))
    places = np.array([place_of[key] for key in keys])
    return _table_of(list(once.values())).chosen(places)


def _table_of(ops: Sequence[Op]) -> OpTable:
    properties = zip(*map(astuple, ops), strict=True) if ops else repeat(())
    columns: dict[str, Any] = dict(zip(Op.__struct_fields__, properties, strict=False))
    for width, names in _INTEGER_WIDTH.items():
        for name in names:
            values = [-1 if value is None else value for value in columns[name]] if width == "int64" else columns[name]
            if width == "int64" and max(values, default=0) > _MOST_BYTES:
                raise _too_large(name, ops[int(np.argmax(np.array(values, dtype=np.float64)))], max(values))
            columns[name] = np.fromiter(values, width, len(ops))
    for name in _FLOATS:
        values = [math.nan if value is None else value for value in columns[name]]
        columns[name] = np.fromiter(values, np.float64, len(ops))
    for name in ("blocking", "unequal"):
        columns[name] = np.fromiter(columns[name], np.bool_, len(ops))
    return OpTable(**{f"{name}_T": column for name, column in columns.items()})
