"""The operators of a job as PyTorch runs them, and how long each takes on this GPU.

Shapes are those of `traincast operator`. Each repetition starts with an empty cache: a buffer larger than it is
written before, outside of what is timed. CUDA events are put around the launch while the GPU is still busy with that
write, so that it never waits for the host between them, and what an empty pair of events shows is taken off.

What frameworks fuse and eager PyTorch does not (gated activations, rotary embeddings, the loss) goes through
``torch.compile``. Where PyTorch has no kernel for a type or a kernel of that name, the task is skipped with the reason.
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from traincast.measuring.timing import CannotTimeError, MeasureError

Launch = Callable[[], object]

CACHE_BYTES = 256 << 20
"""Written before each repetition where PyTorch does not say how large the cache is."""
_SAMPLES = 20
_GATED = {"swiglu": "silu", "geglu": "gelu"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "fp8": "float8_e4m3fn"}
"""Element types for which PyTorch has kernels of its own; of scaled blocks it has none for every GPU."""
_SDPA = {"fa2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "fallback": "EFFICIENT_ATTENTION"}
_ALIGNED_ROWS = 16
"""Rows of an expert's group are a multiple of it, as grouped kernels ask of their 16-byte loads."""


class Call(NamedTuple):
    """The cells of a task, read."""

    family: str
    shape: tuple[int, ...]
    dtype: str
    direction: str
    causal: bool
    window: int
    options: Mapping[str, str]

    @classmethod
    def from_cells(cls, cells: Mapping[str, str]) -> "Call":
        """Read the cells of a row."""
        options = dict(pair.split("=", 1) for pair in cells["options"].split())
        shape = tuple(int(size) for size in cells["shape"].split("x"))
        causal, window = cells["causal"] == "true", int(cells["window"])
        return cls(cells["family"], shape, cells["dtype"], cells["direction"], causal, window, options)

    @property
    def backward(self) -> bool:
        """Whether it is a gradient."""
        return self.direction == "backward"


def import_torch() -> Any:  # noqa: ANN401
    """Return PyTorch with a GPU that it can use.

    Raises
    ------
    MeasureError
        If there is none.
    """
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise MeasureError(
            f"PyTorch is not installed here ({error}); run this in the environment that trains, or write a script for "
            "it: traincast measure JOB --script measure.py"
        ) from None
    if not torch.cuda.is_available():
        raise MeasureError(
            f"PyTorch {torch.__version__} sees no GPU here; run this on the machine that trains, or write a script for "
            "it: traincast measure JOB --script measure.py"
        )
    return torch


class TorchKernels:
    """A `Backend` for the operators of one GPU."""

    writes = True

    def __init__(self, torch: Any, device: str = "cuda") -> None:  # noqa: ANN401
        self.torch, self.device = torch, device
        self.make = Maker(torch, device)
        self._flushed: Any = None
        self._empty_s = self._flush_s = 0.0

    def about(self) -> Mapping[str, str]:
        """Return GPU, versions, driver, and the clocks of this moment."""
        return about(self.torch)

    def prepare(self, cells: Mapping[str, str]) -> Launch:
        """Make the tensors of a task and run it once."""
        call = Call.from_cells(cells)
        launch = BUILDERS.get(call.family)
        if launch is None:
            raise CannotTimeError(f"PyTorch has no kernel for {call.family}")
        try:
            found = launch(self.make, call)
            found()
            self.torch.cuda.synchronize()
        except CannotTimeError:
            raise
        except self.torch.OutOfMemoryError:
            raise CannotTimeError("out of memory") from None
        except Exception as error:
            # Whatever this PyTorch, its compiler or a kernel says against one operator must not end the others.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotTimeError(f"this PyTorch cannot run it: {reason[:200]}") from None
        return found

    def times_s(self, launch: Launch, repeats: int) -> list[float]:
        """Return the time of each repetition by events, the cache emptied before each."""
        if self._flushed is None:
            self._calibrate()
        # The GPU must still be at work when the host has launched the operator.
        flushes = 1 + int(1.5 * self.host_s(launch, 1) / self._flush_s)
        pairs = []
        for _ in range(repeats):
            for _ in range(flushes):
                self._flushed.zero_()
            pairs.append(self._around(launch))
        return [max(each - self._empty_s, 1e-9) for each in self._elapsed_s(pairs)]

    def host_s(self, launch: Launch, repeats: int = _SAMPLES) -> float:
        """Return the time that the host takes to launch an operator."""
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            launch()
        taken = time.perf_counter() - begin
        self.torch.cuda.synchronize()
        return taken / repeats

    def release(self) -> None:
        """Give the tensors of the last task back to the GPU."""
        self.torch.cuda.empty_cache()

    def agreed(self, value: Any) -> Any:  # noqa: ANN401
        """Return the value: this rank is alone."""
        return value

    def _calibrate(self) -> None:
        """Make the buffer that empties the cache; time it, and an empty pair of events."""
        size = getattr(self.torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        self._flushed = self.torch.empty(max(2 * size, CACHE_BYTES), dtype=self.torch.int8, device=self.device)
        self._flush_s = sorted(self._elapsed_s([self._around(self._flushed.zero_) for _ in range(_SAMPLES)]))[0]
        empty = []
        for _ in range(_SAMPLES):
            self._flushed.zero_()
            empty.append(self._around(lambda: None))
        self._empty_s = sorted(self._elapsed_s(empty))[_SAMPLES // 2]

    def _around(self, launch: Launch) -> tuple[Any, Any]:
        pair = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        pair[0].record()
        launch()
        pair[1].record()
        return pair

    def _elapsed_s(self, pairs: list[tuple[Any, Any]]) -> list[float]:
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]


def about(torch: Any) -> dict[str, str]:  # noqa: ANN401
    """Return what the rows say of the machine."""
    query = "driver_version,clocks.sm,clocks.mem,power.limit"
    command = ["nvidia-smi", f"--id={torch.cuda.current_device()}", f"--query-gpu={query}"]
    try:
        shown = subprocess.run(  # noqa: S603 - nothing in it is a user's
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        driver, sm, memory, power = (cell.strip() for cell in shown.strip().splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        # An AMD GPU, or a container without the tool.
        driver = sm = memory = power = ""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None) or "",
        "driver": driver,
        "sm_clock_mhz": sm,
        "memory_clock_mhz": memory,
        "power_limit_w": power,
    }


class Maker:
    """Makes tensors on a device."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401
        self.torch, self.device = torch, device

    def dtype(self, name: str) -> Any:  # noqa: ANN401
        """Return PyTorch's type of that name; says how fp32 GEMMs are to be computed."""
        if name not in _DTYPES or not hasattr(self.torch, _DTYPES[name]):
            raise CannotTimeError(f"PyTorch alone has no kernels for {name} on every GPU")
        self.torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        return getattr(self.torch, _DTYPES[name])

    def normal(self, *shape: int, dtype: str, gradient: bool = False) -> Any:  # noqa: ANN401
        """Return random numbers: zeros would draw less power and so run at higher clocks."""
        kind = self.dtype(dtype)
        wide = self.torch.randn(shape, device=self.device, dtype=self.torch.bfloat16 if dtype == "fp8" else kind)
        return wide.to(kind).requires_grad_(gradient)

    def whole(self, *shape: int, below: int) -> Any:  # noqa: ANN401
        """Return random indices."""
        return self.torch.randint(below, shape, device=self.device)

    def compiled(self, function: Callable[..., Any], *inputs: Any) -> Launch:  # noqa: ANN401
        """Return a launch of a function whose kernels are fused."""
        # Each size is compiled for itself, and the compiler gives up on a function after eight of them.
        import_module("torch._dynamo").reset()
        fused = self.torch.compile(function, dynamic=False, fullgraph=True)
        return lambda: fused(*inputs)

    def gradient(self, output: Any, *inputs: Any) -> Launch:  # noqa: ANN401
        """Return a launch of the backward pass alone."""
        above = self.torch.randn_like(output)
        return lambda: self.torch.autograd.grad(output, inputs, above, retain_graph=True)


def _gemm(make: Maker, call: Call) -> Launch:
    """Return Y = X W', dX = dY W or dW = dY' X, with the weight as a linear layer keeps it: n x k."""
    *batch, m, n, k = call.shape
    sizes = {"forward": (m, k, n), "dgrad": (m, n, k), "wgrad": (n, m, k)}
    rows, inner, columns = sizes[call.direction]
    if call.dtype == "fp8":
        return _scaled(make, rows, inner, columns, batch)
    x = make.normal(*batch, m, k, dtype=call.dtype)
    w = make.normal(*batch, n, k, dtype=call.dtype)
    y = make.normal(*batch, m, n, dtype=call.dtype)
    left, right = {"forward": (x, w.mT), "dgrad": (y, w), "wgrad": (y.mT, x)}[call.direction]
    out = make.torch.empty(*batch, rows, columns, device=make.device, dtype=make.dtype(call.dtype))
    return lambda: make.torch.matmul(left, right, out=out)


def _scaled(make: Maker, rows: int, inner: int, columns: int, batch: list[int]) -> Launch:
    """Return a GEMM of fp8 with a scale for each tensor; both inputs lie along the reduction, as kernels take them."""
    if batch:
        raise CannotTimeError("PyTorch has no batched GEMM of fp8")
    left, right = make.normal(rows, inner, dtype="fp8"), make.normal(columns, inner, dtype="fp8").mT
    one, wide = make.torch.ones((), device=make.device), make.torch.bfloat16
    return lambda: make.torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=wide)


def _grouped_gemm(make: Maker, call: Call) -> Launch:
    """Return the GEMMs of several experts, each with an even share of the rows: one after the other, or in a kernel."""
    rows, n, k, groups = call.shape
    if call.options.get("kernel") == "each":
        each = [_gemm(make, call._replace(shape=(max(1, rows // groups), n, k))) for _ in range(min(groups, rows))]
        return lambda: [launch() for launch in each]
    grouped = getattr(make.torch.nn.functional, "grouped_mm", None) or getattr(make.torch, "_grouped_mm", None)
    if grouped is None:
        raise CannotTimeError("this PyTorch has no grouped GEMM; 2.8 has one")
    if call.dtype != "bf16":
        raise CannotTimeError(f"PyTorch's grouped GEMM takes bf16 and not {call.dtype}")
    ends = [rows * (group + 1) // groups // _ALIGNED_ROWS * _ALIGNED_ROWS for group in range(groups - 1)] + [rows]
    offsets = make.torch.tensor(ends, dtype=make.torch.int32, device=make.device)
    x, y = make.normal(rows, k, dtype=call.dtype), make.normal(rows, n, dtype=call.dtype)
    w = make.normal(groups, n, k, dtype=call.dtype)
    left, right = {"forward": (x, w.mT), "dgrad": (y, w), "wgrad": (y.mT, x)}[call.direction]
    return lambda: grouped(left, right, offs=offsets)


def _attention(make: Maker, call: Call) -> Launch:
    """Return fused attention by the kernel that is asked for; its backward pass alone where that is asked."""
    batch, queries, keys, heads, kv_heads, qk_dim, v_dim = call.shape
    gradient = call.backward
    query = make.normal(batch, heads, queries, qk_dim, dtype=call.dtype, gradient=gradient)
    key = make.normal(batch, kv_heads, keys, qk_dim, dtype=call.dtype, gradient=gradient)
    value = make.normal(batch, kv_heads, keys, v_dim, dtype=call.dtype, gradient=gradient)
    attend = _attend(make, call)
    if not gradient:
        return lambda: attend(query, key, value)
    return make.gradient(attend(query, key, value), query, key, value)


def _attend(make: Maker, call: Call) -> Callable[..., Any]:
    kernel, (_, queries, keys, heads, kv_heads, *_) = call.options.get("kernel", "auto"), call.shape
    if kernel == "fa3" or call.window:
        return _flash_attention(call, kernel)
    if kernel not in ("auto", *_SDPA):
        raise CannotTimeError(f"PyTorch has no attention kernel {kernel}")
    attention = import_module("torch.nn.attention")
    bias = import_module("torch.nn.attention.bias")
    functional = make.torch.nn.functional
    # The queries are the last of the keys; is_causal would take them as the first.
    lower_right = call.causal and queries != keys
    mask = bias.causal_lower_right(queries, keys) if lower_right else None
    said = {"attn_mask": mask, "is_causal": call.causal and not lower_right, "enable_gqa": heads != kv_heads}
    if kernel == "auto":
        return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **said)
    backend = getattr(attention.SDPBackend, _SDPA[kernel])

    def attend(q: Any, k: Any, v: Any) -> Any:  # noqa: ANN401
        with attention.sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, **said)

    return attend


def _flash_attention(call: Call, kernel: str) -> Callable[..., Any]:
    """Return attention of the package flash-attn: generation 3, or with a window, neither of which PyTorch has."""
    name = "flash_attn_interface" if kernel == "fa3" else "flash_attn"
    try:
        flash = import_module(name).flash_attn_func
    except ImportError:
        what = "flash attention 3" if kernel == "fa3" else "attention with a window"
        raise CannotTimeError(f"PyTorch alone has no {what}; install {name}") from None
    window = (call.window - 1, 0) if call.window else (-1, -1)

    def attend(q: Any, k: Any, v: Any) -> Any:  # noqa: ANN401
        out = flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=call.causal, window_size=window)
        return out[0] if isinstance(out, tuple) else out

    return attend


def _norm(make: Maker, call: Call) -> Launch:
    rows, width = call.shape
    x = make.normal(rows, width, dtype=call.dtype, gradient=call.backward)
    scale = make.normal(width, dtype=call.dtype, gradient=call.backward)
    functional = make.torch.nn.functional
    # Both move the same bytes; without a fused kernel an RMS norm would be timed as several.
    fused = hasattr(make.torch, "rms_norm") and hasattr(make.torch.ops.aten, "_fused_rms_norm")
    apply = functional.rms_norm if fused and call.options.get("kind") != "layer" else functional.layer_norm
    if call.backward:
        return make.gradient(apply(x, (width,), scale), x, scale)
    return lambda: apply(x, (width,), scale)


def _softmax(make: Maker, call: Call) -> Launch:
    x = make.normal(*call.shape, dtype=call.dtype, gradient=call.backward)
    if call.backward:
        return make.gradient(make.torch.softmax(x, -1), x)
    return lambda: make.torch.softmax(x, -1)


def _elementwise(make: Maker, call: Call) -> Launch:
    inputs, outputs = (float(call.options.get(name, default)) for name, default in (("inputs", 2), ("outputs", 1)))
    if outputs != 1 or inputs not in (1, 2, 3):
        raise CannotTimeError(f"{inputs:g} inputs and {outputs:g} outputs are not a single PyTorch kernel")
    tensors = [make.normal(*call.shape, dtype=call.dtype) for _ in range(int(inputs))]
    out, torch = make.torch.empty_like(tensors[0]), make.torch
    run = {1: torch.neg, 2: torch.add, 3: torch.addcmul}[int(inputs)]
    return lambda: run(*tensors, out=out)


def _activation(make: Maker, call: Call) -> Launch:
    if call.options.get("writes"):
        raise CannotTimeError("no kernel of PyTorch casts what an activation function writes")
    kind, functional = call.options.get("kind", "gelu"), make.torch.nn.functional
    gated = kind in _GATED
    inner = {"tanh": make.torch.tanh}.get(kind) or getattr(functional, _GATED.get(kind, kind))
    inputs = [make.normal(*call.shape, dtype=call.dtype, gradient=call.backward) for _ in range(1 + gated)]

    def apply(x: Any, gate: Any = None) -> Any:  # noqa: ANN401
        return inner(x) * gate if gated else inner(x)

    if not gated and not call.backward:
        return lambda: inner(inputs[0])
    launch = make.compiled(apply, *inputs)
    return make.gradient(launch(), *inputs) if call.backward else launch


def _rotary(make: Maker, call: Call) -> Launch:
    tokens, heads, width = call.shape
    x = make.normal(tokens, heads, width, dtype=call.dtype)
    cosine, sine = (make.normal(tokens, 1, width, dtype="fp32") for _ in range(2))

    def rotate(x: Any, cosine: Any, sine: Any) -> Any:  # noqa: ANN401
        first, second = x.chunk(2, -1)
        return (x * cosine + make.torch.cat((-second, first), -1) * sine).to(x.dtype)

    return make.compiled(rotate, x, cosine, sine)


def _accumulate(make: Maker, call: Call) -> Launch:
    gradient, total = make.normal(*call.shape, dtype=call.dtype), make.normal(*call.shape, dtype="fp32")
    cast = call.options.get("cast", "none") == "fp32"
    return lambda: total.add_(gradient.to(total.dtype) if cast else gradient)


def _cast(make: Maker, call: Call) -> Launch:
    for what, name in (("writes several copies", "copies"), ("reads several times", "reads")):
        if float(call.options.get(name, 1)) != 1:
            raise CannotTimeError(f"PyTorch has no cast that {what}")
    x, kind = make.normal(call.shape[-1], dtype="bf16"), make.dtype(call.dtype)
    return lambda: x.to(kind, copy=True)


def _copy(make: Maker, call: Call) -> Launch:
    x = make.normal(*call.shape, dtype=call.dtype)
    out = make.torch.empty_like(x)
    return lambda: out.copy_(x)


def _optimizer(make: Maker, call: Call) -> Launch:
    """Return a fused step over fp32 weights with fp32 moments."""
    weight, optim = make.normal(*call.shape, dtype="fp32", gradient=True), make.torch.optim
    weight.grad = make.normal(*call.shape, dtype="fp32")
    kind = call.options.get("kind", "adam")
    step = optim.AdamW([weight], fused=True) if kind == "adam" else optim.SGD([weight], 0.1, momentum=0.9, fused=True)
    launch: Launch = step.step
    return launch


def _embedding(make: Maker, call: Call) -> Launch:
    tokens, hidden, vocabulary = call.shape
    table = make.normal(vocabulary, hidden, dtype=call.dtype)
    index = make.whole(tokens, below=vocabulary)
    if not call.backward:
        return lambda: make.torch.nn.functional.embedding(index, table)
    gradient, total = make.normal(tokens, hidden, dtype="fp32"), make.normal(vocabulary, hidden, dtype="fp32")
    return lambda: total.index_add_(0, index, gradient)


def _cross_entropy(make: Maker, call: Call) -> Launch:
    tokens, vocabulary = call.shape
    logits = make.normal(tokens, vocabulary, dtype=call.dtype, gradient=call.backward)
    target, functional = make.whole(tokens, below=vocabulary), make.torch.nn.functional

    def loss(logits: Any, target: Any) -> Any:  # noqa: ANN401
        return functional.cross_entropy(logits.float(), target, reduction="none")

    launch = make.compiled(loss, logits, target)
    if call.options.get("kernel", "fused") == "eager":
        launch = lambda: loss(logits, target)  # noqa: E731
    return make.gradient(launch(), logits) if call.backward else launch


def _route(make: Maker, call: Call) -> Launch:
    """Return the choice of experts in eager kernels: softmax, top-k, mask and counts."""
    tokens, _, experts, topk = call.shape
    scores = make.normal(tokens, experts, dtype="fp32", gradient=call.backward)

    def choose() -> Any:  # noqa: ANN401
        weights, chosen = make.torch.topk(make.torch.softmax(scores, -1), topk, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        make.torch.zeros_like(scores, dtype=make.torch.bool).scatter_(1, chosen, True).sum(0)
        return make.torch.zeros_like(scores).scatter(1, chosen, weights)

    return make.gradient(choose(), scores) if call.backward else choose


def _permute(make: Maker, call: Call) -> Launch:
    tokens, hidden, topk = call.shape
    order = make.torch.randperm(tokens * topk, device=make.device)
    if call.backward:
        copies = make.normal(tokens * topk, hidden, dtype=call.dtype)
        back = make.torch.argsort(order)
        return lambda: copies.index_select(0, back).view(tokens, topk, hidden).sum(1)
    x = make.normal(tokens, hidden, dtype=call.dtype)
    source = order // topk
    return lambda: x.index_select(0, source)


BUILDERS: Mapping[str, Callable[[Maker, Call], Launch]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "attention": _attention,
    "norm": _norm,
    "softmax": _softmax,
    "elementwise": _elementwise,
    "activation": _activation,
    "rotary": _rotary,
    "accumulate": _accumulate,
    "cast": _cast,
    "copy": _copy,
    "optimizer": _optimizer,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "route": _route,
    "permute": _permute,
}
"""What runs each family."""
