"""Measured operators: kernels by the names of their columns, and their costs on the GPU they ran on.

Four kinds of table are known by their columns; each row becomes the calls that one timing covers:

* ``gpu family shape dtype``: any family, the shape as ``8192x1024``, with ``direction``, ``causal``, ``window`` and
  ``options`` next to it (``kind=gelu inputs=1``); ``backward`` of GEMMs is both gradients one after the other;
  ``operator`` is what its source calls it, and a table with a column ``timing`` was timed by events;
* ``m n k``: one GEMM;
* ``batch seq heads kv_heads head_dim window``: forward of causal attention;
* ``tokens hidden moe_ffn topk experts tp ep``: the experts' gated MLP on one rank.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from traincast.calibration.kind import FloatArray
from traincast.calibration.tables import TIME_COLUMNS, Columns, MeasurementTable, Row, Skipped
from traincast.errors import ConfigError, FormatError, TraincastError
from traincast.estimate.clocks import loop_slowdown
from traincast.estimate.operators import OperatorCall, OperatorConstants, estimate_calls, shipped_constants, work_of
from traincast.hardware.dtypes import EIGHT_BIT
from traincast.hardware.gpu import Gpu, find_gpu
from traincast.units import quoted

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}
"""Names that PyTorch gives to element types."""
LONG_S = 1e-4
"""Timings above it are hardly touched by events, launches and caches."""

Calls = tuple[OperatorCall, ...]
Estimated = tuple[FloatArray, dict[int, str]]
"""Seconds, NaN where there is no estimate, and of each such row why."""

_TRITON, _FALLBACK, _SCALED = (("kernel", "triton"),), (("kernel", "fallback"),), (("kernel", "scaled"),)
_GRADIENTS, _WITH_GRADIENTS = ("dgrad", "wgrad"), ("gemm", "grouped_gemm")
_INFERENCE = ("sglang", "trtllm", "vllm")
"""First words of the column ``source`` of kernels of inference frameworks; those of few bits scale what they read."""
_FALLS_BACK = {("blackwell", 192), ("hopper", 512)}
"""Architectures and head sizes without a fused kernel in the frameworks measured: what runs has 1/8 of the rate."""


class OperatorMeasurements(Columns, frozen=True, kw_only=True):
    """Timings of operators as the file names them; all columns have the same length."""

    gpu: tuple[Gpu, ...]
    calls: tuple[Calls, ...]
    """What one timing covers, one after the other."""
    time_s: FloatArray
    ids: tuple[str, ...]
    op: tuple[str, ...]
    events: bool = False
    """Whether the timings hold more than the kernel: CUDA events around it."""
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.calls)

    def by_gpu(self) -> dict[Gpu, list[int]]:
        """Return the rows of each GPU."""
        found: dict[Gpu, list[int]] = {}
        for row, gpu in enumerate(self.gpu):
            found.setdefault(gpu, []).append(row)
        return found


def holds_operators(columns: Sequence[str]) -> bool:
    """Say whether columns are those of measured operators of any kind."""
    return _reader(columns) is not None


def operators_of(table: MeasurementTable, gpu: Gpu | None = None) -> OperatorMeasurements:
    """Return the measured operators of a table of one of the kinds above; a `FormatError` if it is of another kind.

    A row is left out where its GPU is unknown, what ran is not in the row, or a cell of it is wrong. Rows that do not
    say where they ran, ran on `gpu`.
    """
    read = _reader(table.columns)
    if read is None:
        raise FormatError("holds no measured operators: needs gpu, dtype, a shape and a time", table.path, 1)
    kept, skipped = table.read(lambda row: (_gpu(row, gpu), *read(row), row.time_s()))
    return OperatorMeasurements(
        gpu=tuple(ran_on for _, (ran_on, _, _, _) in kept),
        calls=tuple(calls for _, (_, _, calls, _) in kept),
        time_s=np.array([time_s for _, (_, _, _, time_s) in kept], np.float64),
        ids=tuple(row.id for row, _ in kept),
        op=tuple(op for _, (_, op, _, _) in kept),
        events="timing" in table.columns,
        skipped=skipped,
    )


def _gpu(row: Row, default: Gpu | None) -> Gpu:
    gpu = find_gpu(row.cells["gpu"]) if "gpu" in row.cells else default
    if gpu is None and default is not None and find_gpu(default.name) is None:
        # A GPU of the user's own has no datasheet that any name leads to.
        return default
    if gpu is None:
        named = row.cells.get("gpu")
        raise TraincastError("the GPU is not specified" if named is None else f"nothing is known of the GPU {named!r}")
    return gpu


def _cell(row: Row, column: str) -> str:
    if column not in row.cells:
        raise TraincastError(f"the row has no {column}")
    return row.cells[column]


def _dtype(row: Row) -> str:
    said = _cell(row, "dtype")
    return DTYPES.get(said, said)


def _window(row: Row) -> int:
    return row.count("window") if row.cells.get("window", "0") != "0" else 0


_Read = tuple[str, Calls]
"""The operator as the file names it, and its calls."""


def _named(row: Row) -> _Read:
    family, text = _cell(row, "family"), _cell(row, "shape")
    if not re.fullmatch(r"[0-9]{1,15}(x[0-9]{1,15})*", text):
        raise FormatError(f"column shape is {quoted(text)}; write it like 8192x1024", row.path, row.line)
    options = [part.partition("=") for part in row.cells.get("options", "").split()]
    if not all(equals and value for _, equals, value in options):
        raise row.wrong("options", "write them like kind=gelu inputs=1")
    way = row.cells.get("direction", "forward")
    call = OperatorCall(
        family=family,
        shape=tuple(map(int, text.split("x"))),
        dtype=_dtype(row),
        direction=way,
        causal=row.cells.get("causal", "false").lower() in ("1", "true", "yes"),
        window=_window(row),
        options=tuple((name, value) for name, _, value in options),
    )
    ways = _GRADIENTS if way == "backward" and family in _WITH_GRADIENTS else (way,)
    return row.cells.get("operator", family), tuple(replace(call, direction=each) for each in ways)


def _gemm(row: Row) -> _Read:
    m, n, k = map(row.count, ("m", "n", "k"))
    direction = row.cells.get("direction", "forward")
    dtype, source = _dtype(row), row.cells.get("source", "").lower()
    options = _SCALED if dtype in EIGHT_BIT and source.startswith(_INFERENCE) else ()
    call = OperatorCall(family="gemm", shape=(m, n, k), dtype=dtype, direction=direction, options=options)
    return direction, (call,)


def _attention(row: Row) -> _Read:
    batch, seq, heads, kv_heads, head_dim = map(row.count, ("batch", "seq", "heads", "kv_heads", "head_dim"))
    window, gpu = _window(row), find_gpu(row.cells.get("gpu", ""))
    call = OperatorCall(
        family="attention",
        shape=(batch, seq, seq, heads, kv_heads, head_dim, head_dim),
        dtype=_dtype(row),
        causal=True,
        window=window,
        options=_FALLBACK if gpu is not None and (gpu.architecture, head_dim) in _FALLS_BACK else (),
    )
    return f"attention {head_dim}" + (f" window {window}" if window else ""), (call,)


def _experts(row: Row) -> _Read:
    """Return the gated MLP of one rank's experts; with even routing it has its share of all tokens."""
    tokens, hidden, ffn, topk, experts = map(row.count, ("tokens", "hidden", "moe_ffn", "topk", "experts"))
    tp, ep = (row.count(name) if name in row.cells else 1 for name in ("tp", "ep"))
    if row.cells.get("distribution", "balanced") not in ("balanced", "uniform"):
        raise TraincastError("the tokens of the measured rank are not specified where routing is uneven")
    rows, groups, width = max(1, tokens * topk // ep), max(1, experts // ep), max(1, ffn // tp)
    dtype = _dtype(row)
    calls = (
        OperatorCall(family="permute", shape=(tokens, hidden, max(1, topk // ep)), dtype="bf16"),
        OperatorCall(family="grouped_gemm", shape=(rows, 2 * width, hidden, groups), dtype=dtype, options=_TRITON),
        OperatorCall(family="activation", shape=(rows, width), dtype="bf16", options=(("kind", "swiglu"),)),
        OperatorCall(family="grouped_gemm", shape=(rows, hidden, width, groups), dtype=dtype, options=_TRITON),
    )
    return "experts", calls


_READERS: tuple[tuple[set[str], Callable[[Row], _Read]], ...] = (
    ({"family", "shape", "dtype"}, _named),
    ({"dtype", "m", "n", "k"}, _gemm),
    ({"dtype", "batch", "seq", "heads", "kv_heads", "head_dim"}, _attention),
    ({"dtype", "tokens", "hidden", "moe_ffn", "topk", "experts"}, _experts),
)
"""What a table needs in addition to a time, and what reads its rows."""


def _reader(columns: Sequence[str]) -> Callable[[Row], _Read] | None:
    named = set(columns)
    return next((read for needed, read in _READERS if needed <= named and named & set(TIME_COLUMNS)), None)


def main_call(calls: Sequence[OperatorCall]) -> OperatorCall:
    """Return the call of a measurement that it is of: a GEMM, if there is one."""
    return next((call for call in calls if work_of(call).tiling is not None), calls[0])


def is_plain_gemm(call: OperatorCall) -> bool:
    """Say whether a call is a GEMM that reads what was cast before, whose loop the power limit may hold back."""
    return call.family == "gemm" and _SCALED[0] not in call.options


def estimate_measurements(measured: OperatorMeasurements, constants: OperatorConstants | None = None) -> Estimated:
    """Return the estimate of each measured operator, with what its timing holds in addition to the kernel.

    The constants are the shipped ones by default.
    """
    known = constants or shipped_constants()
    predicted_N = np.full(len(measured), np.nan)
    reasons: dict[int, str] = {}
    for gpu, rows in measured.by_gpu().items():
        for row in rows:
            tiled = [call.dtype for call in measured.calls[row] if work_of(call).tiling is not None]
            lacking = [dtype for dtype in tiled if not gpu.has_peak(dtype)]
            if lacking:
                reasons[row] = f"{gpu.name} has no known peak for {lacking[0]}"
        usable = [row for row in rows if row not in reasons]
        predicted_N[usable] = _estimates([measured.calls[row] for row in usable], gpu, known)
    return predicted_N, reasons


def _estimates(rows: Sequence[Calls], gpu: Gpu, constants: OperatorConstants) -> FloatArray:
    flat = [call for calls in rows for call in calls]
    owner = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    time_s_C = estimate_calls(flat, gpu, constants)
    time_s_C = np.where([is_plain_gemm(call) for call in flat], time_s_C * loop_slowdown(gpu, time_s_C), time_s_C)
    total = np.bincount(owner, time_s_C, len(rows)).astype(np.float64)
    # One timing holds one event and one launch, however many kernels it covers.
    for position, (first, *_) in enumerate(rows):
        try:
            total[position] += constants.find(gpu, work_of(first).constants, first.dtype).event_s
        except ConfigError:
            continue
    return total
