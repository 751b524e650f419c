"""Read measured operators: CSV files of kernels by the names of their columns.

Five kinds of file are known by their columns; each row becomes the calls that one timing covers:

* ``gpu op shape dtype ms``: any family, the shape as ``8192x1024``; ``bmm`` and ``linear`` are
  BxMxNxK with N the reduction, as NeuSight writes them. A column ``family`` in the place of ``op``
  has traincast's own shapes, and may have ``direction``, ``causal`` and ``window`` beside it;
* ``m n k``: one matrix product;
* ``batch seq heads kv_heads head_dim window``: forward of causal attention;
* ``tokens hidden moe_ffn topk experts tp ep``: the experts' gated MLP on one rank;
* ``kernel peak_tflops description efficiency``: training kernels as SimuMax describes them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.calibrate.contract import FloatArray
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.tables import Row, Table
from traincast.errors import FormatError, TraincastError
from traincast.estimate.operators import OperatorCall
from traincast.hardware.gpu import Gpu, find_gpu
from traincast.units import parse_time

TIME_COLUMNS = {"time_s": "1s", "ms": "1ms", "time_ms": "1ms", "us": "1us", "time_us": "1us"}
"""Column to the unit of its numbers."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}
"""Names that PyTorch gives to element types."""
TERA = "1e12"

Calls = tuple[OperatorCall, ...]

_TWO_INPUTS = ("add", "mul", "div", "pow")
_ONE_INPUT = ("addu", "mulu", "divu", "powu")
_ACTIVATIONS = ("gelu", "relu", "tanh")
_TRITON = (("kernel", "triton"),)
_FALLBACK = (("kernel", "fallback"),)
_FALLS_BACK = {("blackwell", 192), ("hopper", 512)}
"""Architectures and head sizes without a fused kernel in the frameworks measured: what runs has 1/8 of the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMeasurements:
    """Timings of operators; all columns have the same length.

    Parameters
    ----------
    gpu : tuple of Gpu
        Where it ran.
    calls : tuple of tuples of OperatorCall
        What one timing covers, one after the other.
    time_s : array of float
        Measured seconds.
    ids : tuple of str
        A name per row.
    op : tuple of str
        The operator as the file names it.
    skipped : tuple of Skipped
        Rows that cannot be used, and why.
    """

    gpu: tuple[Gpu, ...]
    calls: tuple[Calls, ...]
    time_s: FloatArray
    ids: tuple[str, ...]
    op: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.calls)

    def select(self, rows: Sequence[int]) -> "OperatorMeasurements":
        """Return some of the rows, in this order, and no skipped ones."""
        return OperatorMeasurements(
            gpu=tuple(self.gpu[row] for row in rows),
            calls=tuple(self.calls[row] for row in rows),
            time_s=self.time_s[list(rows)],
            ids=tuple(self.ids[row] for row in rows),
            op=tuple(self.op[row] for row in rows),
            skipped=(),
        )


class _UnusableError(TraincastError):
    """A row that is understood and cannot be used; its text says why."""


def holds_named(columns: Sequence[str]) -> bool:
    """Say whether columns are those of operators named row by row."""
    return {"shape", "dtype"} <= set(columns) and bool({"op", "family"} & set(columns)) and _has_time(columns)


def holds_products(columns: Sequence[str]) -> bool:
    """Say whether columns are those of matrix products."""
    return {"dtype", "m", "n", "k"} <= set(columns) and _has_time(columns)


def holds_attention(columns: Sequence[str]) -> bool:
    """Say whether columns are those of attention kernels."""
    return {"dtype", "batch", "seq", "heads", "kv_heads", "head_dim"} <= set(columns) and _has_time(columns)


def holds_experts(columns: Sequence[str]) -> bool:
    """Say whether columns are those of the experts of a layer."""
    return {"dtype", "tokens", "hidden", "moe_ffn", "topk", "experts"} <= set(columns) and _has_time(columns)


def holds_training_kernels(columns: Sequence[str]) -> bool:
    """Say whether columns are those of SimuMax's kernel efficiencies."""
    return {"gpu", "kernel", "peak_tflops", "description", "efficiency"} <= set(columns)


def holds_operators(columns: Sequence[str]) -> bool:
    """Say whether columns are those of measured operators of any kind."""
    return any(fits(columns) for fits, _ in _READERS)


def operators_of(table: Table, gpu: Gpu | None = None) -> OperatorMeasurements:
    """Return the measured operators of a table.

    Parameters
    ----------
    table : Table
        Of one of the kinds above.
    gpu : Gpu, optional
        Where rows ran that do not say it.

    Returns
    -------
    OperatorMeasurements
        A row is left out where its GPU is unknown, what ran is not in the row, or a cell of it is wrong.

    Raises
    ------
    FormatError
        If the table is of none of these kinds.
    """
    read = next((read for fits, read in _READERS if fits(table.columns)), None)
    if read is None:
        raise FormatError("holds no measured operators: needs gpu, dtype, a shape and a time", table.path, 1)
    kept, skipped = table.read(lambda row: (_gpu(row, gpu), *read(row)))
    return OperatorMeasurements(
        gpu=tuple(ran_on for _, (ran_on, *_) in kept),
        calls=tuple(calls for _, (_, _, calls, _) in kept),
        time_s=np.array([time_s for _, (*_, time_s) in kept], np.float64),
        ids=tuple(row.id for row, _ in kept),
        op=tuple(op for _, (_, op, _, _) in kept),
        skipped=skipped,
    )


_Read = tuple[str, Calls, float]


def _has_time(columns: Sequence[str]) -> bool:
    return bool(set(columns) & set(TIME_COLUMNS))


def _gpu(row: Row, default: Gpu | None = None) -> Gpu:
    if "gpu" not in row.cells:
        if default is not None:
            return default
        raise _UnusableError("the GPU is not specified")
    gpu = find_gpu(row.cells["gpu"])
    if gpu is None:
        raise _UnusableError(f"nothing is known of the GPU {row.cells['gpu']!r}")
    return gpu


def _architecture(row: Row) -> str:
    gpu = find_gpu(row.cells.get("gpu", ""))
    return "" if gpu is None else gpu.architecture


def _time_s(row: Row) -> float:
    column = row.column(*TIME_COLUMNS)
    if column is None:
        raise _UnusableError("the row has no time")
    return row.number(column) * parse_time(TIME_COLUMNS[column])


def _dtype(row: Row) -> str:
    said = _cell(row, "dtype")
    return DTYPES.get(said, said)


def _cell(row: Row, column: str) -> str:
    if column not in row.cells:
        raise _UnusableError(f"the row has no {column}")
    return row.cells[column]


def _named(row: Row) -> _Read:
    op = row.cells.get("family") or _cell(row, "op")
    text = _cell(row, "shape")
    if not re.fullmatch(r"[0-9]{1,15}(x[0-9]{1,15})*", text):
        raise FormatError(f"column shape is {text!r}; write it like 8192x1024", row.path, row.line)
    shape = tuple(int(size) for size in text.split("x"))
    if "family" in row.cells:
        call = OperatorCall(
            family=op,
            shape=shape,
            dtype=_dtype(row),
            direction=row.cells.get("direction", "forward"),
            causal=row.cells.get("causal", "false").lower() in ("1", "true", "yes"),
            window=row.count("window") if row.cells.get("window", "0") != "0" else 0,
        )
    else:
        call = _by_name(op, shape, _dtype(row))
    return op, (call,), _time_s(row)


def _by_name(op: str, shape: tuple[int, ...], dtype: str) -> OperatorCall:
    """Return an operator as NeuSight names it as a call; studies/data/README.md says what its shapes are."""
    if op in ("linear", "bmm") and len(shape) == 4:
        batch, m, reduction, n = shape
        sizes = (m, n, reduction) if op == "linear" and batch == 1 else (batch, m, n, reduction)
        return OperatorCall(family="gemm", shape=sizes, dtype=dtype)
    if op in _TWO_INPUTS or op in _ONE_INPUT:
        options = (("inputs", "2" if op in _TWO_INPUTS else "1"),)
        return OperatorCall(family="elementwise", shape=shape, dtype=dtype, options=options)
    if op in _ACTIVATIONS:
        return OperatorCall(family="activation", shape=shape, dtype=dtype, options=(("kind", op),))
    if op == "ln":
        return OperatorCall(family="norm", shape=shape, dtype=dtype, options=(("kind", "layer"),))
    if op == "softmax":
        return OperatorCall(family="softmax", shape=shape, dtype=dtype)
    raise _UnusableError(f"no operator is called {op!r}")


def _product(row: Row) -> _Read:
    shape = tuple(row.count(name) for name in ("m", "n", "k"))
    call = OperatorCall(family="gemm", shape=shape, dtype=_dtype(row), direction=row.cells.get("direction", "forward"))
    return call.direction, (call,), _time_s(row)


def _attention(row: Row) -> _Read:
    batch, seq, heads, kv_heads, head_dim = (
        row.count(name) for name in ("batch", "seq", "heads", "kv_heads", "head_dim")
    )
    window = 0 if row.cells.get("window", "0") == "0" else row.count("window")
    call = OperatorCall(
        family="attention",
        shape=(batch, seq, seq, heads, kv_heads, head_dim, head_dim),
        dtype=_dtype(row),
        causal=True,
        window=window,
        options=_FALLBACK if (_architecture(row), head_dim) in _FALLS_BACK else (),
    )
    return f"attention {head_dim}" + (f" window {window}" if window else ""), (call,), _time_s(row)


def _experts(row: Row) -> _Read:
    """Return the gated MLP of one rank's experts; with even routing it has its share of all tokens."""
    tokens, hidden, ffn, topk, experts = (
        row.count(name) for name in ("tokens", "hidden", "moe_ffn", "topk", "experts")
    )
    tp, ep = (row.count(name) if name in row.cells else 1 for name in ("tp", "ep"))
    if row.cells.get("distribution", "balanced") not in ("balanced", "uniform"):
        raise _UnusableError("the tokens of the measured rank are not specified where routing is uneven")
    rows, groups, width = max(1, tokens * topk // ep), max(1, experts // ep), max(1, ffn // tp)
    dtype = _dtype(row)
    calls = (
        OperatorCall(family="permute", shape=(tokens, hidden, max(1, topk // ep)), dtype="bf16"),
        OperatorCall(family="grouped_gemm", shape=(rows, 2 * width, hidden, groups), dtype=dtype, options=_TRITON),
        OperatorCall(family="activation", shape=(rows, width), dtype="bf16", options=(("kind", "swiglu"),)),
        OperatorCall(family="grouped_gemm", shape=(rows, hidden, width, groups), dtype=dtype, options=_TRITON),
    )
    return "experts", calls, _time_s(row)


_LAYOUTS = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}
_STAGES = {"fwd": "forward", "bwd_grad_act": "dgrad", "bwd_grad_w": "wgrad"}


def _training_kernel(row: Row) -> _Read:
    """Return a kernel of SimuMax; its efficiency counts attention's FLOP in full (2 products, backward 5)."""
    said = dict(part.strip().split("=", 1) for part in _cell(row, "description").split(",") if "=" in part)
    kernel = _cell(row, "kernel")
    try:
        if kernel == "matmul":
            op, call, flops = _described_product(said)
        elif kernel == "group_matmul":
            op, call, flops = _described_group(said)
        elif kernel in ("sdp_fwd", "sdp_bwd"):
            op, call, flops = _described_attention(kernel, said)
        else:
            raise _UnusableError(f"no kernel is called {kernel!r}")
    except (KeyError, ValueError):
        raise _UnusableError("its description is not understood") from None
    return op, (call,), flops / (row.number("efficiency") * row.number("peak_tflops") * float(TERA))


def _size(text: str) -> int:
    """Read a size; one of more digits than any has is no size."""
    if len(text) > 15:
        raise ValueError(text)
    return int(text)


def _described_product(said: dict[str, str]) -> tuple[str, OperatorCall, float]:
    m, n, k, way = _size(said["m"]), _size(said["n"]), _size(said["k"]), _LAYOUTS[said["layout"]]
    flops = 2.0 * m * n * k
    # The sizes are those of the product itself; a call has those of the forward layer.
    shape = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (k, m, n)}[way]
    options = (("accumulate", "none"),) if way == "wgrad" and said.get("accumulate") != "True" else ()
    call = OperatorCall(family="gemm", shape=shape, dtype="bf16", direction=way, options=options)
    return f"matmul {way}", call, flops


def _described_group(said: dict[str, str]) -> tuple[str, OperatorCall, float]:
    groups, rows, n, k, way = (
        _size(said["ng"]),
        _size(said["M"]),
        _size(said["N"]),
        _size(said["K"]),
        _STAGES[said["stage"]],
    )
    call = OperatorCall(family="grouped_gemm", shape=(groups * rows, n, k, groups), dtype="bf16", direction=way)
    return f"group_matmul {way}", call, 2.0 * groups * rows * n * k


def _described_attention(kernel: str, said: dict[str, str]) -> tuple[str, OperatorCall, float]:
    batch, seq, heads, kv_heads, qk_dim, v_dim = (
        _size(said[name]) for name in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    )
    backward = kernel == "sdp_bwd"
    call = OperatorCall(
        family="attention",
        shape=(batch, seq, seq, heads, kv_heads, qk_dim, v_dim),
        dtype="bf16",
        causal=True,
        direction="backward" if backward else "forward",
    )
    width = 3 * qk_dim + 2 * v_dim if backward else qk_dim + v_dim
    return kernel, call, 2.0 * batch * heads * seq * seq * width


_READERS: tuple[tuple[Callable[[Sequence[str]], bool], Callable[[Row], _Read]], ...] = (
    (holds_named, _named),
    (holds_products, _product),
    (holds_attention, _attention),
    (holds_experts, _experts),
    (holds_training_kernels, _training_kernel),
)
