"""Which operators the kernels of a profiled step are, for a calibration: by the shapes of the host's operators.

A profiler that records shapes (``record_shapes=True``) says what the operator of the host was given that launched a
kernel: the one of the kernel's number (``External id``), or the innermost around its launch. What is in `_READERS`
becomes an `OperatorCall` with the time of all its kernels; others, such as those of compilers and extensions, say no
shapes and are left out. A GEMM of the backward pass is taken as one for the gradient of an input; no shape tells
which of the two it is, and both have the work of their own sizes.

Shapes: of PyTorch's operators, aten/src/ATen/native/native_functions.yaml.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traincast.diagnostics import Note, Notebook
from traincast.formats.contract import Computation, MeasuredComputations
from traincast.formats.kineto.grammar import US_PER_S, Shapes, read_trace
from traincast.formats.kineto.ranks import ranks_of
from traincast.formats.kineto.step import RankStep, Task, chosen, cut
from traincast.units import format_share
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Phase

_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
_Dims = list[list[int]]
_Reader = Callable[[_Dims, str], tuple[str, tuple[int, ...], tuple[tuple[str, str], ...]]]
"""From the sizes of the inputs and the name of the operator to family, shape and options."""


def computations(paths: Sequence[Path]) -> MeasuredComputations:
    """Return the operators of one step of each rank whose shapes are known, each with the time of its kernels.

    Raises
    ------
    FormatError
        If a file cannot be read, or has nothing of a GPU.
    """
    notes = Notebook(str(paths[0]))
    traces = list(map(read_trace, paths))
    ranks, mark = ranks_of(traces, notes), chosen(traces[0], None)
    rows: list[Computation] = []
    busy_us = 0.0
    for trace, rank in zip(traces, ranks, strict=True):
        step = cut(trace, rank, None if mark is None else chosen(trace, mark.number))
        rows += _of_step(step)
        busy_us += float((step.stop_us_G - step.start_us_G)[_computes(step)].sum())
    known = math.fsum(row.time_s for row in rows) * US_PER_S / busy_us if busy_us else 0.0
    text = f"operators whose shapes are known take {format_share(known)} of the kernels' time; the rest says nothing"
    said = (Note("shapes-known", text),) if rows else ()
    devices = traces[0].document.devices
    gpu = str(devices[0].get("name", "")) if devices else ""
    return MeasuredComputations(None, tuple(rows), tuple(map(str, paths)), said, gpu)


def _computes(step: RankStep) -> "np.typing.NDArray[np.bool_]":
    return np.array([task is Task.COMPUTE for task in step.task_G], np.bool_)


def _of_step(step: RankStep) -> Iterator[Computation]:
    """Yield the operators of a rank's step, in the order of their first kernels."""
    time_us: dict[int, float] = defaultdict(float)
    phase_of: dict[int, Phase] = {}
    tf32: set[int] = set()
    taken_us = step.stop_us_G - step.start_us_G
    for at, row in zip(np.flatnonzero(_computes(step)).tolist(), _operators(step), strict=True):
        if row >= 0:
            time_us[row] += float(taken_us[at])
            phase_of[row] = Phase(int(step.phase_G[at]))
            if "tf32" in step.trace.names[int(step.trace.gpu.name_G[step.at_G[at]])]:
                tf32.add(row)
    host, known = step.trace.host, {}
    for row, taken in time_us.items():
        name = step.trace.names[int(host.name_H[row])]
        key = name, int(host.shapes_H[row]), phase_of[row], row in tf32
        if key not in known:
            known[key] = call_of(name, step.trace.shapes[key[1]], phase_of[row], tf32=row in tf32)
        call = known[key]
        if call is not None and taken > 0:
            yield Computation(step.rank, 0, phase_of[row], -1, taken / US_PER_S, call)


def _operators(step: RankStep) -> list[int]:
    """Return the operator of the host behind each kernel that computes, -1 for none that is known."""
    trace, host = step.trace, step.trace.host
    readable = [at for at, name in enumerate(trace.names) if name in _READERS]
    said = np.array([bool(each.dims) for each in trace.shapes] or [False], np.bool_)
    rows = np.flatnonzero(np.isin(host.name_H, readable) & said[host.shapes_H])
    of_number = {int(host.external_H[row]): row for row in rows.tolist() if host.external_H[row] > 0}
    begun: dict[int, tuple[Any, Any]] = {}
    for thread in np.unique(host.thread_H[rows]).tolist():
        own = rows[host.thread_H[rows] == thread]
        own = own[np.argsort(host.start_us_H[own], kind="stable")]
        begun[thread] = own, host.start_us_H[own]
    return [_operator(step, at, of_number, begun) for at in np.flatnonzero(_computes(step)).tolist()]


def _operator(step: RankStep, at: int, of_number: Mapping[int, int], begun: Mapping[int, tuple[Any, Any]]) -> int:
    trace, call = step.trace, int(step.call_G[at])
    row = of_number.get(int(trace.gpu.external_G[step.at_G[at]]), -1)
    if row >= 0 or call < 0:
        return row
    own, starts_us = begun.get(int(trace.calls.thread_C[call]), ((), ()))
    place = int(np.searchsorted(starts_us, step.launch_us_G[at], side="right")) - 1
    if place < 0:
        return -1
    row = int(own[place])
    return row if step.launch_us_G[at] <= trace.host.start_us_H[row] + trace.host.time_us_H[row] else -1


def call_of(name: str, shapes: Shapes, phase: Phase, *, tf32: bool = False) -> OperatorCall | None:
    """Return the operator call that an operator of PyTorch is; None where its name or inputs are not understood."""
    read = _READERS.get(name)
    try:
        dims, types = json.loads(shapes.dims or b"null"), json.loads(shapes.types or b"null")
        if read is None or not isinstance(dims, list) or not isinstance(types, list):
            return None
        dtype = next((_DTYPES[each] for each in types if isinstance(each, str) and each in _DTYPES), None)
        family, shape, options = read(dims, name)
    except (ValueError, TypeError, IndexError, RecursionError):
        return None
    if dtype is None or not shape or not all(isinstance(size, int) and 0 < size < 2**53 for size in shape):
        return None
    dtype = "tf32" if dtype == "fp32" and tf32 else dtype
    backward = name.endswith("_backward") or name.endswith("_backward_data")
    if family in ("gemm", "grouped_gemm"):
        backward = phase is Phase.BACKWARD
        way = "dgrad" if backward else "forward"
        *first, m, n, k = shape if family == "gemm" else shape[:3]
        # The gradient of the input of a layer of n outputs and k inputs is a GEMM of m x k over n.
        sizes = (m, k, n) if backward else (m, n, k)
        shape = (*first, *sizes) if family == "gemm" else (*sizes, shape[3])
    else:
        way = "backward" if backward else "forward"
    causal = family == "attention"
    return OperatorCall(family=family, shape=shape, dtype=dtype, direction=way, causal=causal, options=options)


def _rows(sizes: Sequence[int]) -> tuple[int, int]:
    return math.prod(sizes[:-1]), sizes[-1]


def _gemm(dims: _Dims, name: str) -> Any:  # noqa: ANN401
    """Return a GEMM of the two matrices that come last before other arguments: an addend may stand before them."""
    left, right = dims[1:3] if name in ("aten::addmm", "aten::baddbmm") else dims[:2]
    *batch, m, k = left
    if right[-2] != k or len(batch) != len(right) - 2:
        raise ValueError(name)
    return "gemm", (*(() if batch in ([], [1]) else batch), m, right[-1], k), ()


def _grouped(dims: _Dims, _: str) -> Any:  # noqa: ANN401
    (rows, k), (groups, inner, n) = dims[:2]
    if inner != k:
        raise ValueError("the weights of experts are stacked otherwise")
    return "grouped_gemm", (rows, n, k, groups), ()


def _attention(kernel: str, *, heads_first: bool) -> _Reader:
    def read(dims: _Dims, name: str) -> Any:  # noqa: ANN401
        query, key, value = dims[1:4] if name.endswith("_backward") else dims[:3]
        head, token = (1, 2) if heads_first else (2, 1)
        sizes = (query[0], query[token], key[token], query[head], key[head], query[3], value[3])
        return "attention", sizes, (("kernel", kernel),)

    return read


def _on_rows(family: str, at: int = 0, *options: tuple[str, str]) -> _Reader:
    return lambda dims, _: (family, _rows(dims[at]), options)


def _pointwise(dims: _Dims, _: str) -> Any:  # noqa: ANN401
    tensors = [each for each in dims[:2] if each]
    return "elementwise", _rows(max(tensors, key=math.prod)), (("inputs", str(len(tensors))),)


def _embedding(dims: _Dims, name: str) -> Any:  # noqa: ANN401
    if name.endswith("_backward"):
        (tokens, hidden), _ = _rows(dims[0]), dims[1]
        return "embedding", (tokens, hidden, tokens), ()
    (vocabulary, hidden), index = dims[:2]
    return "embedding", (math.prod(index), hidden, vocabulary), ()


def _optimizer(dims: Sequence[Any], _: str) -> Any:  # noqa: ANN401
    return "optimizer", (sum(map(math.prod, dims[0])),), ()


_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"), _gemm),
    "aten::_grouped_mm": _grouped,
    **{
        f"aten::_scaled_dot_product_{name}_attention{way}": _attention(kernel, heads_first=True)
        for name, kernel in (("flash", "fa2"), ("cudnn", "cudnn"), ("efficient", "fallback"))
        for way in ("", "_backward")
    },
    **{f"flash_attn::_flash_attn{way}": _attention("fa2", heads_first=False) for way in ("_forward", "_backward")},
    **{f"flash_attn_3::{way}": _attention("fa3", heads_first=False) for way in ("fwd",)},
    **dict.fromkeys(("aten::native_layer_norm", "aten::_fused_rms_norm"), _on_rows("norm")),
    **dict.fromkeys(("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward"), _on_rows("norm")),
    **dict.fromkeys(("aten::_softmax", "aten::_softmax_backward_data"), _on_rows("softmax")),
    **{
        f"aten::{kind}{way}": _on_rows("activation", 0, ("kind", kind))
        for kind in ("gelu", "silu")
        for way in ("", "_backward")
    },
    **dict.fromkeys(("aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::sub", "aten::div"), _pointwise),
    **dict.fromkeys(("aten::embedding", "aten::embedding_dense_backward"), _embedding),
    **dict.fromkeys(("aten::_fused_adamw_", "aten::_fused_adam_"), _optimizer),
}
"""What the inputs of PyTorch's operators say."""
