"""Public tables of kernels as rows of the common schema: NeuSight's operators and SimuMax's kernel efficiencies."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from traincast.calibration.tables import Row
from traincast.errors import FormatError
from traincast.units import quoted

COLUMNS = ("gpu", "operator", "family", "shape", "dtype", "direction", "causal", "options")
TERA = 1e12

_TWO_INPUTS = ("add", "mul", "div", "pow")
_ONE_INPUT = ("addu", "mulu", "divu", "powu")
_ACTIVATIONS = ("gelu", "relu", "tanh")
_LAYOUTS = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}
_STAGES = {"fwd": "forward", "bwd_grad_act": "dgrad", "bwd_grad_w": "wgrad"}


def kernel_reader(columns: Sequence[str]) -> tuple[tuple[str, ...], Callable[[Row], Row]] | None:
    """Return the columns of the common schema that a public table of kernels fills, and what brings a row to them.

    None where a table with these columns is none. A row that is not understood is a `FormatError`.
    """
    if {"op", "shape", "dtype", "ms"} <= set(columns):
        return (*COLUMNS, "timing", "ms"), lambda row: _with(row, _of_neusight(row))
    if {"gpu", "kernel", "peak_tflops", "description", "efficiency"} <= set(columns):
        return (*COLUMNS, "time_s"), lambda row: _with(row, _of_simumax(row))
    return None


def _with(row: Row, cells: dict[str, str]) -> Row:
    kept = {name: row.cells[name] for name in ("id", "gpu") if name in row.cells}
    return replace(row, cells=kept | {name: text for name, text in cells.items() if text})


def _of_neusight(row: Row) -> dict[str, str]:
    """Return an operator as NeuSight names it; its shapes are batch, m, k, n of products and rows, width of others."""
    op, shape = row.cells.get("op", ""), row.cells.get("shape", "")
    sizes = shape.split("x")
    options = ""
    if op in ("linear", "bmm"):
        if len(sizes) != 4:
            raise FormatError(f"the shape of {op} is {quoted(shape)}; it must be batch x m x k x n", row.path, row.line)
        batch, m, reduction, n = sizes
        is_plain = op == "linear" and batch == "1"
        family, shape = "gemm", "x".join((m, n, reduction) if is_plain else (batch, m, n, reduction))
    elif op in _TWO_INPUTS or op in _ONE_INPUT:
        family, options = "elementwise", f"inputs={2 if op in _TWO_INPUTS else 1}"
    elif op in _ACTIVATIONS:
        family, options = "activation", f"kind={op}"
    elif op == "ln":
        family, options = "norm", "kind=layer"
    elif op == "softmax":
        family = "softmax"
    else:
        raise FormatError(f"no operator is called {quoted(op)}", row.path, row.line)
    kept = {name: row.cells[name] for name in ("dtype", "ms") if name in row.cells}
    return kept | {"operator": op, "family": family, "shape": shape, "options": options, "timing": "event"}


def _of_simumax(row: Row) -> dict[str, str]:
    """Return a kernel of SimuMax; its efficiency counts attention's FLOP in full (2 products, backward 5)."""
    said = dict(part.strip().split("=", 1) for part in row.cells.get("description", "").split(",") if "=" in part)
    kernel = row.cells.get("kernel", "")
    if kernel not in _KERNELS:
        raise FormatError(f"no kernel is called {quoted(kernel)}; known: {', '.join(_KERNELS)}", row.path, row.line)
    try:
        found, flops = _KERNELS[kernel](said)
    except (KeyError, ValueError) as error:
        message = (
            f"the description of {kernel} lacks {error}"
            if isinstance(error, KeyError)
            else (f"the description of {kernel} has a size that is no whole number")
        )
        raise FormatError(message, row.path, row.line) from None
    time_s = flops / (row.number("efficiency") * row.number("peak_tflops") * TERA)
    operator = f"{kernel} {found['direction']}" if kernel in ("matmul", "group_matmul") else kernel
    return {"operator": operator, "dtype": "bf16", **found, "time_s": repr(time_s)}


def _matmul(said: dict[str, str]) -> tuple[dict[str, str], float]:
    m, n, k, way = int(said["m"]), int(said["n"]), int(said["k"]), _LAYOUTS[said["layout"]]
    # The sizes are those of the product itself; a call has those of the forward layer.
    shape = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (k, m, n)}[way]
    options = "accumulate=none" if way == "wgrad" and said.get("accumulate") != "True" else ""
    return {"family": "gemm", "shape": _written(*shape), "direction": way, "options": options}, 2.0 * m * n * k


def _group_matmul(said: dict[str, str]) -> tuple[dict[str, str], float]:
    groups, rows, n, k = (int(said[name]) for name in ("ng", "M", "N", "K"))
    shape = _written(groups * rows, n, k, groups)
    # Transformer Engine's: a GEMM of each expert, over four streams.
    found = {"family": "grouped_gemm", "shape": shape, "direction": _STAGES[said["stage"]], "options": "kernel=each"}
    return found, 2.0 * groups * rows * n * k


def _attention(said: dict[str, str], *, backward: bool) -> tuple[dict[str, str], float]:
    batch, seq, heads, kv_heads, qk_dim, v_dim = (
        int(said[name]) for name in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    )
    shape = _written(batch, seq, seq, heads, kv_heads, qk_dim, v_dim)
    width = 3 * qk_dim + 2 * v_dim if backward else qk_dim + v_dim
    direction = "backward" if backward else "forward"
    found = {"family": "attention", "shape": shape, "direction": direction, "causal": "true"}
    return found, 2.0 * batch * heads * seq * seq * width


def _written(*sizes: int) -> str:
    return "x".join(map(str, sizes))


_KERNELS: dict[str, Callable[[dict[str, str]], tuple[dict[str, str], float]]] = {
    "matmul": _matmul,
    "group_matmul": _group_matmul,
    "sdp_fwd": lambda said: _attention(said, backward=False),
    "sdp_bwd": lambda said: _attention(said, backward=True),
}
