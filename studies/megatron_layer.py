r"""Run MoE layers of Megatron Core on a GPU of one's own, and say what each of their kernels takes.

    python studies/megatron_layer.py OUT.csv --megatron DIR [--minutes 4] [--layers 4] [--no-compile]

DIR holds the folder ``megatron`` of a wheel of megatron-core (0.16.1 was read). Needs PyTorch and Triton, neither
Transformer Engine nor the package grouped_gemm: what Megatron calls of the latter is done by ``torch._grouped_mm``.
A row is a kernel of a part of the layer (``range``), forward or backward: a backward kernel belongs to the part whose
autograd node launches it. Rows of the range ``whole`` say what an iteration takes from its start to the next
(``step_s``), what the host takes to issue one while the GPU is idle (``host_s``), for how long kernels run
(``busy_s``), and what a layer takes where some follow each other for seconds (``sustained_s``), with clock and power.
"""

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from importlib.machinery import ModuleSpec as PythonSpec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.profiler import ProfilerActivity, profile, record_function

from expert_gemms import asked, write

PREFIX = "part: "
WARM_STEPS, TIMED_STEPS, HOST_STEPS, PROFILED_STEPS = 6, 10, 5, 3
SUSTAINED_WARM_S, SUSTAINED_S, ASKED_EVERY_S = 1.0, 2.0, 0.5
WRITTEN_EVERY_S = 20
NAME = 80
ABSENT = ("cuda", "pynvml", "einops", "transformer_engine", "apex", "flash_attn", "wandb", "nvtx", "mamba_ssm")
"""Packages that Megatron imports if they are there: it ran without them where this was tested."""


class Shape(NamedTuple):
    """An expert layer, and what its recipes set of the router."""

    hidden: int
    ffn: int
    experts: int
    topk: int
    router: dict[str, Any]


DEEPSEEK = {
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_topk_scaling_factor": 2.5,
    "moe_router_dtype": "fp32",
}
SHAPES = {
    "qwen3-30b-a3b": Shape(2048, 768, 128, 8, {}),
    "mixtral-8x7b": Shape(4096, 14336, 8, 2, {}),
    "deepseek-v3": Shape(7168, 2048, 32, 8, DEEPSEEK),
    "gpt-oss-20b": Shape(2880, 2880, 32, 4, {}),
}
SMALL = {
    "qwen3-30b-a3b": Shape(64, 48, 16, 4, {}),
    "mixtral-8x7b": Shape(64, 128, 4, 2, {}),
    "deepseek-v3": Shape(64, 32, 8, 4, DEEPSEEK),
    "gpt-oss-20b": Shape(48, 48, 8, 2, {}),
}


class Case(NamedTuple):
    """A layer with its switches; `chained`: also as some layers for seconds."""

    model: str
    tokens: int = 4096
    experts: str = "grouped"
    dispatcher: str = "alltoall"
    balancing: str = "aux_loss"
    forced: bool = False
    capacity: bool = False
    chained: bool = False


CASES = (
    Case("qwen3-30b-a3b", chained=True),
    Case("deepseek-v3", balancing="none", chained=True),
    Case("mixtral-8x7b", chained=True),
    Case("qwen3-30b-a3b", experts="sequential"),
    Case("mixtral-8x7b", experts="sequential"),
    Case("gpt-oss-20b"),
    Case("qwen3-30b-a3b", 16384),
    Case("qwen3-30b-a3b", dispatcher="allgather"),
    Case("mixtral-8x7b", dispatcher="allgather"),
    Case("qwen3-30b-a3b", capacity=True),
    Case("deepseek-v3", balancing="none", capacity=True),
    Case("qwen3-30b-a3b", forced=True),
    Case("gpt-oss-20b", forced=True),
    Case("qwen3-30b-a3b", balancing="none"),
    Case("mixtral-8x7b", balancing="none"),
    Case("deepseek-v3", 16384, balancing="none"),
    Case("mixtral-8x7b", 16384),
    Case("gpt-oss-20b", 16384),
)
"""The most telling first: minutes may end before the last."""


class Machine:
    """Where layers run; `shown` while ranges are recorded."""

    cpu = False
    shown = False


def ranged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose launches a profile tells by a name."""

    def run(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        if not Machine.shown:
            return function(*args, **named)
        with record_function(PREFIX + name):
            return function(*args, **named)

    return run


class Gmm(torch.autograd.Function):  # type: ignore[misc]
    """The grouped GEMM of the package grouped_gemm: rows of `a` by the weight of their expert."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, counts: Any) -> Any:  # noqa: ANN401
        """Return the rows of all experts."""
        ends = None if Machine.cpu else ranged("ends of groups", _ends)(counts)
        ctx.save_for_backward(a, b, counts, ends)
        return _products(a, b, counts, ends)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # noqa: ANN401
        """Return the gradients of rows and weights."""
        a, b, counts, ends = ctx.saved_tensors
        grad = grad.contiguous()
        rows = _products(grad, b.transpose(-2, -1), counts, ends) if ctx.needs_input_grad[0] else None
        if ends is not None:
            return rows, torch._grouped_mm(a.t(), grad, offs=ends), None
        parts = zip(a.split(counts.tolist()), grad.split(counts.tolist()), strict=True)
        return rows, torch.stack([left.t() @ right for left, right in parts]), None


def _ends(counts: Any) -> Any:  # noqa: ANN401
    return counts.cumsum(0).to(torch.int32).to("cuda", non_blocking=True)


def _products(a: Any, b: Any, counts: Any, ends: Any) -> Any:  # noqa: ANN401
    if ends is not None:
        return torch._grouped_mm(a, b, offs=ends)
    return torch.cat([rows @ weight for rows, weight in zip(a.split(counts.tolist()), b, strict=True)])


class Order:
    """Which of the two GEMMs of experts comes next."""

    names: Iterator[str] = itertools.cycle(("experts FC1", "experts FC2"))

    @classmethod
    def restart(cls) -> None:
        """Begin with FC1."""
        cls.names = itertools.cycle(("experts FC1", "experts FC2"))


def gmm(a: Any, b: Any, batch_sizes: Any, trans_b: bool = False) -> Any:  # noqa: ANN401
    """Multiply as `grouped_gemm.ops.gmm` does."""
    if trans_b:
        raise ValueError("Megatron passes weights as they are")
    return ranged(next(Order.names), Gmm.apply)(a, b, batch_sizes)


def loaded(folder: Path, compiled: bool) -> types.SimpleNamespace:
    """Import Megatron Core, and return what is used of it."""
    import torch._dynamo

    package, ops = types.ModuleType("grouped_gemm"), types.ModuleType("grouped_gemm.ops")
    ops.gmm = gmm  # type: ignore[attr-defined]
    package.ops = ops  # type: ignore[attr-defined]
    package.__spec__, ops.__spec__ = PythonSpec("grouped_gemm", None), PythonSpec("grouped_gemm.ops", None)
    sys.modules |= {"grouped_gemm": package, "grouped_gemm.ops": ops}
    sys.path.insert(0, str(folder))
    hidden = [name for name in ABSENT if name not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]
    compiler = torch.compile
    if not compiled:
        torch.compile = lambda function, *_args, **_named: function
    try:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import random as seeds
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer import mlp
        from megatron.core.transformer.moe import experts, moe_layer, moe_utils, router, token_dispatcher
        from megatron.core.transformer.spec_utils import ModuleSpec
        from megatron.core.transformer.transformer_config import TransformerConfig
    finally:
        torch.compile = compiler
        for name in hidden:
            sys.modules.pop(name, None)
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    for name, part in (("permute", "permute"), ("unpermute", "unpermute"), ("sort_chunks_by_idxs", "sort chunks")):
        setattr(token_dispatcher, name, ranged(part, getattr(token_dispatcher, name)))
    router.compute_routing_scores_for_aux_loss = ranged("aux loss", router.compute_routing_scores_for_aux_loss)
    router.apply_router_token_dropping = ranged("token dropping", router.apply_router_token_dropping)
    mlp.weighted_bias_swiglu_impl = ranged("activation", mlp.weighted_bias_swiglu_impl)
    return types.SimpleNamespace(
        parallel_state=parallel_state,
        seeds=seeds,
        linears=(ColumnParallelLinear, RowParallelLinear),
        mlp=mlp,
        experts=experts,
        moe_layer=moe_layer,
        moe_utils=moe_utils,
        ModuleSpec=ModuleSpec,
        TransformerConfig=TransformerConfig,
    )


def started(megatron: types.SimpleNamespace) -> None:
    """Start the groups of one rank, and the seeds."""
    backend = "gloo" if Machine.cpu else "nccl"
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timedelta(seconds=20))
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    megatron.parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    if Machine.cpu:
        tracker = types.SimpleNamespace(fork=lambda _name=None: nullcontext())
        megatron.moe_utils.get_cuda_rng_tracker = lambda: tracker
    else:
        megatron.seeds.model_parallel_cuda_manual_seed(1234)


def without_gpu() -> None:
    """Let Megatron run on a CPU, to test this script."""
    Machine.cpu = True
    event = types.SimpleNamespace(synchronize=lambda: None)
    stream = types.SimpleNamespace(wait_stream=lambda _other: None, record_event=lambda: event)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = lambda *_args, **_named: stream
    torch.cuda.current_stream = lambda *_args: stream
    torch.cuda.stream = lambda _stream: nullcontext()
    torch.cuda.synchronize = lambda *_args: None


def built(megatron: types.SimpleNamespace, case: Case, number: int, layers: int) -> Any:  # noqa: ANN401
    """Return a layer of Megatron, its parts with ranges."""
    shape = shape_of(case)
    grouped = case.experts == "grouped"
    config = megatron.TransformerConfig(
        num_layers=layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=16,
        num_moe_experts=shape.experts,
        moe_ffn_hidden_size=shape.ffn,
        moe_router_topk=shape.topk,
        moe_router_load_balancing_type=case.balancing,
        moe_aux_loss_coeff=0.0 if case.balancing == "none" else 1e-2,
        moe_router_force_load_balancing=case.forced,
        moe_token_dispatcher_type=case.dispatcher,
        moe_expert_capacity_factor=1.0 if case.capacity else None,
        moe_pad_expert_input_to_capacity=case.capacity,
        moe_grouped_gemm=grouped,
        moe_use_legacy_grouped_gemm=grouped,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=Machine.cpu,
        **shape.router,
    )
    if grouped:
        experts: Any = megatron.experts.GroupedMLP
    else:
        column, row = megatron.linears
        parts = megatron.mlp.MLPSubmodules(linear_fc1=column, linear_fc2=row)
        experts = megatron.ModuleSpec(module=megatron.experts.SequentialMLP, submodules=parts)
    layer = megatron.moe_layer.MoELayer(config, megatron.moe_layer.MoESubmodules(experts=experts))
    layer.set_layer_number(number)
    layer.train()
    _name_parts(layer, grouped)
    return layer


def _name_parts(layer: Any, grouped: bool) -> None:  # noqa: ANN401
    def named(owner: Any, names: dict[str, str]) -> None:  # noqa: ANN401
        for attribute, part in names.items():
            if hasattr(owner, attribute):
                setattr(owner, attribute, ranged(part, getattr(owner, attribute)))

    named(layer, {"forward": "layer"})
    named(
        layer.router,
        {
            "forward": "router",
            "gating": "router GEMM",
            "routing": "router top-k",
            "_apply_aux_loss": "aux loss",
            "_apply_expert_bias": "expert bias",
        },
    )
    named(
        layer.token_dispatcher,
        {
            "preprocess": "counts of tokens",
            "dispatch_preprocess": "dispatch preprocess",
            "token_dispatch": "dispatch",
            "dispatch_postprocess": "dispatch postprocess",
            "combine_preprocess": "combine preprocess",
            "token_combine": "combine",
            "combine_postprocess": "combine postprocess",
        },
    )
    named(layer.experts, {"forward": "experts"})
    if grouped:
        named(layer.experts, {"activation_func_with_probs": "activation"})
        return
    for expert in layer.experts.local_experts:
        named(expert.linear_fc1, {"forward": "experts FC1"})
        named(expert.linear_fc2, {"forward": "experts FC2"})


def shape_of(case: Case) -> Shape:
    """Return the sizes of a case, small ones on a CPU."""
    return (SMALL if Machine.cpu else SHAPES)[case.model]


def stepped(megatron: types.SimpleNamespace, case: Case, layers: int) -> Callable[[], None]:
    """Return what runs some layers forward and then backward; each has an input of its own, so none adds a kernel."""
    shape, device = shape_of(case), "cpu" if Machine.cpu else "cuda"
    tokens = case.tokens // 64 if Machine.cpu else case.tokens
    Order.restart()
    megatron.moe_utils.get_moe_layer_wise_logging_tracker().clear()
    chain = [built(megatron, case, number + 1, layers) for number in range(layers)]
    if not Machine.cpu:
        chain = [layer.cuda() for layer in chain]
    values = torch.randn(tokens, 1, shape.hidden, device=device, dtype=torch.bfloat16)
    inputs = [values.detach().requires_grad_() for _ in chain]
    gradient = torch.randn_like(values)
    leaves = [*inputs, *(parameter for layer in chain for parameter in layer.parameters())]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        outputs = [layer(one)[0] for layer, one in zip(chain, inputs, strict=True)]
        torch.autograd.backward(outputs, [gradient] * layers)

    return step


def intervals(step: Callable[[], None], count: int) -> list[float]:
    """Return the seconds between the starts of steps that follow each other."""
    if Machine.cpu:
        stamps = [time.perf_counter()]
        for _ in range(count):
            step()
            stamps.append(time.perf_counter())
        return [last - first for first, last in itertools.pairwise(stamps)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) / 1e3 for first, last in itertools.pairwise(marks)]


def issued(step: Callable[[], None]) -> float:
    """Return the seconds that the host takes to issue a step to an idle GPU."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken


def sustained(step: Callable[[], None]) -> tuple[float, str, str]:
    """Return the seconds of a step that is repeated for seconds, and clock and power meanwhile."""
    over, said = threading.Event(), []

    def ask() -> None:
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            while not over.wait(ASKED_EVERY_S):
                said.append([float(cell) for cell in asked("clocks.sm,power.draw")])

    begin = time.monotonic()
    while time.monotonic() - begin < SUSTAINED_WARM_S:
        step()
        torch.cuda.synchronize()
    thread = threading.Thread(target=ask, daemon=True)
    if not Machine.cpu:
        thread.start()
    times_s: list[float] = []
    while sum(times_s) < SUSTAINED_S:
        times_s += intervals(step, 4)
    over.set()
    if thread.ident is not None:
        thread.join()
    clock, power = (f"{statistics.median(cells):.5g}" for cells in zip(*said, strict=True)) if said else ("", "")
    return statistics.median(times_s), clock, power


def traced(step: Callable[[], None], count: int) -> list[dict[str, Any]]:
    """Return the events of a profile of some steps."""
    kinds = [ProfilerActivity.CPU] + ([] if Machine.cpu else [ProfilerActivity.CUDA])
    torch.cuda.synchronize()
    Machine.shown = True
    try:
        with profile(activities=kinds) as profiled:
            for _ in range(count):
                step()
            torch.cuda.synchronize()
    finally:
        Machine.shown = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        text = path.read_text(encoding="utf-8", errors="replace")
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]


class Attributed(NamedTuple):
    """Seconds and launches by part, direction and kernel, those of calls of the host likewise, and the busy time."""

    kernels: dict[tuple[str, str, str], tuple[float, int]]
    calls: dict[tuple[str, str, str], tuple[float, int]]
    busy_s: float


def attributed(events: list[dict[str, Any]]) -> Attributed:
    """Tell whose each kernel is: of the innermost range around its launch, or that of the node it is the gradient of.

    A node's forward operator is the last that started with its sequence number: those before it made no node.
    """
    hosts = [one for one in events if one.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")]
    parents = _nested(hosts)
    creators: dict[int, dict[str, Any]] = {}
    for one in sorted(hosts, key=lambda one: float(one["ts"])):
        said = one.get("args", {})
        if "Sequence number" in said and not said.get("Fwd thread id"):
            creators[said["Sequence number"]] = one
    labels: dict[int, tuple[str, str]] = {}

    def label(one: dict[str, Any] | None) -> tuple[str, str]:
        if one is None:
            return "other", ""
        if id(one) not in labels:
            labels[id(one)] = _label(one, creators, lambda: label(parents.get(id(one))), label)
        return labels[id(one)]

    launches = {one["args"]["correlation"]: one for one in hosts if "correlation" in one.get("args", {})}
    operators = {one["args"]["External id"]: one for one in hosts if "External id" in one.get("args", {})}
    found: dict[tuple[str, str, str], tuple[float, int]] = {}
    calls: dict[tuple[str, str, str], tuple[float, int]] = {}
    spans: list[tuple[float, float]] = []
    for one in _kernels(events, hosts, parents):
        said = one.get("args", {})
        launch = launches.get(said.get("correlation")) or operators.get(said.get("External id"))
        launch = one if one.get("cat") == "cpu_op" else launch
        _add(found, (*label(launch), one["name"]), one["dur"])
        spans.append((float(one["ts"]), float(one["ts"]) + float(one["dur"])))
    for one in hosts:
        if one["cat"] in ("cuda_runtime", "cuda_driver"):
            waits = "Synchronize" in one["name"] or "Memcpy" in one["name"]
            part = label(one)[0] if waits else "whole"
            if waits or "Launch" in one["name"]:
                _add(calls, (part, "host", one["name"]), one["dur"])
    return Attributed(found, calls, _covered(spans))


def _label(
    one: dict[str, Any],
    creators: dict[int, dict[str, Any]],
    outer: Callable[[], tuple[str, str]],
    label: Callable[[dict[str, Any] | None], tuple[str, str]],
) -> tuple[str, str]:
    said = one.get("args", {})
    if one["name"].startswith(PREFIX):
        return one["name"].removeprefix(PREFIX), "forward"
    if "AccumulateGrad" in one["name"]:
        return "accumulate gradient", "backward"
    if said.get("Fwd thread id") and "Sequence number" in said:
        creator = creators.get(said["Sequence number"])
        return label(creator)[0] if creator is not None else "unknown", "backward"
    return outer()


def _kernels(
    events: list[dict[str, Any]], hosts: list[dict[str, Any]], parents: dict[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    if not Machine.cpu:
        return [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    inner = {id(parent) for parent in parents.values()}
    return [one for one in hosts if one["cat"] == "cpu_op" and id(one) not in inner]


def _nested(hosts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the event around each, by its id: the innermost on its thread."""
    threads: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for one in hosts:
        threads.setdefault((one["pid"], one["tid"]), []).append(one)
    parents = {}
    for thread in threads.values():
        open_now: list[dict[str, Any]] = []
        for one in sorted(thread, key=lambda one: (float(one["ts"]), -float(one["dur"]))):
            while open_now and float(open_now[-1]["ts"]) + float(open_now[-1]["dur"]) <= float(one["ts"]):
                open_now.pop()
            if open_now:
                parents[id(one)] = open_now[-1]
            open_now.append(one)
    return parents


def _add(sums: dict[tuple[str, str, str], tuple[float, int]], key: tuple[str, str, str], taken_us: float) -> None:
    key = (key[0], key[1], key[2][:NAME])
    time_s, count = sums.get(key, (0.0, 0))
    sums[key] = time_s + float(taken_us) / 1e6, count + 1


def _covered(spans: list[tuple[float, float]]) -> float:
    covered = reached = 0.0
    for first, last in sorted(spans):
        covered += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return covered / 1e6


class Table:
    """The rows so far, written every now and then."""

    def __init__(self, path: Path, fixed: dict[str, str]) -> None:
        self.path, self.fixed = path, fixed
        self.rows: list[dict[str, str]] = []
        self.cells: dict[str, str] = {}
        self.written = time.monotonic()

    @contextmanager
    def of(self, case: Case) -> Iterator[None]:
        """Take rows of a case; what it fails at becomes a row."""
        shape = shape_of(case)
        self.cells = {name: str(value) for name, value in case._asdict().items() if name != "chained"}
        self.cells |= {"hidden": str(shape.hidden), "ffn": str(shape.ffn), "num_experts": str(shape.experts)}
        self.cells |= {"topk": str(shape.topk), "router_dtype": shape.router.get("moe_router_dtype", "bf16")}
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add("whole", "", "", skipped=" ".join(f"{type(error).__name__}: {error}".split())[:200])

    def add(self, part: str, direction: str, kernel: str, **numbers: str) -> None:
        """Add a row."""
        blank = dict.fromkeys(("time_s", "count", "spread", "layers", "sm_clock_mhz", "power_w", "skipped"), "")
        names = {"range": part, "direction": direction, "kernel": kernel}
        self.rows.append(self.cells | names | blank | numbers | self.fixed)

    def write(self, now: bool = False) -> None:
        """Write all, if it is time."""
        if self.rows and (now or time.monotonic() - self.written > WRITTEN_EVERY_S):
            write(self.path, self.rows)
            self.written = time.monotonic()


def timed_layer(step: Callable[[], None], table: Table) -> float:
    """Add what a layer takes, as a whole and by kernel; return the seconds of a step."""
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    times_s = sorted(intervals(step, TIMED_STEPS))
    low, step_s, high = (times_s[len(times_s) * quarter // 4] for quarter in (1, 2, 3))
    spread = f"{(high - low) / step_s:.3g}"
    table.add("whole", "", "step_s", time_s=f"{step_s:.5g}", count="1", spread=spread, layers="1")
    host_s = statistics.median(issued(step) for _ in range(HOST_STEPS))
    table.add("whole", "host", "host_s", time_s=f"{host_s:.5g}", count="1", layers="1")
    said = attributed(traced(step, PROFILED_STEPS))
    table.add("whole", "", "busy_s", time_s=f"{said.busy_s / PROFILED_STEPS:.5g}", count="1", layers="1")
    for sums in (said.kernels, said.calls):
        for (part, direction, kernel), (time_s, count) in sorted(sums.items()):
            each = {"time_s": f"{time_s / PROFILED_STEPS:.5g}", "count": f"{count / PROFILED_STEPS:.4g}"}
            table.add(part, direction, kernel, layers="1", **each)
    return step_s


def timed_chain(step: Callable[[], None], layers: int, table: Table) -> float:
    """Add what each of some layers takes for seconds; return it."""
    for _ in range(2):
        step()
    taken_s, clock, power = sustained(step)
    each = {"time_s": f"{taken_s / layers:.5g}", "count": "1", "layers": str(layers)}
    table.add("whole", "", "sustained_s", **each, sm_clock_mhz=clock, power_w=power)
    return taken_s / layers


def freed() -> None:
    """Forget what was compiled for the last case, and free its memory."""
    torch._dynamo.reset()
    gc.collect()
    if not Machine.cpu:
        torch.cuda.empty_cache()


def compiles() -> bool:
    """Return whether functions can be compiled here."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    values = torch.ones(1024, device="cpu" if Machine.cpu else "cuda")
    try:
        torch.compile(lambda x: torch.nn.functional.silu(x) * 2)(values)
    except Exception:
        traceback.print_exc()
        return False
    return True


def main() -> int:
    """Time what the minutes allow; return the exit code."""
    parser = argparse.ArgumentParser(description="time MoE layers of Megatron Core on this machine's GPU, by kernel")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--megatron", type=Path, required=True, metavar="DIR", help="holds the folder megatron")
    parser.add_argument("--minutes", type=float, default=200 / 60)
    parser.add_argument("--layers", type=int, default=4, help="of a chain that runs for seconds; 0 for none")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first")
    parser.add_argument("--no-compile", action="store_true", help="run as they stand what Megatron compiles")
    parser.add_argument("--cpu", action="store_true", help="run small layers on the CPU, to test this script")
    given = parser.parse_args()
    begin = time.monotonic()
    fixed = {"gpu": "none", "torch": torch.__version__, "driver": "", "power_limit_w": ""}
    if given.cpu:
        without_gpu()
    else:
        torch.cuda.set_device(0)
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            fixed["driver"], fixed["power_limit_w"] = asked("driver_version,power.limit")
        fixed["gpu"] = torch.cuda.get_device_name()
    compiled = False if given.no_compile else compiles()
    megatron = loaded(given.megatron.resolve(), compiled)
    started(megatron)
    table = Table(given.out, {"compiled": str(compiled)} | fixed)

    def left() -> bool:
        return time.monotonic() - begin < 60 * float(given.minutes)

    print(f"ready after {time.monotonic() - begin:.0f} s, compiled: {compiled}", flush=True)
    for case in CASES[: given.cases]:
        if not left():
            break
        with table.of(case):
            step_s = timed_layer(stepped(megatron, case, 1), table)
            print(
                f"{case}: {1e3 * step_s:.3f} ms, {len(table.rows)} rows, {time.monotonic() - begin:.0f} s", flush=True
            )
        freed()
        if case.chained and given.layers and left():
            with table.of(case):
                each_s = timed_chain(stepped(megatron, case, given.layers), given.layers, table)
                print(f"  of {given.layers}: {1e3 * each_s:.3f} ms, {time.monotonic() - begin:.0f} s", flush=True)
            freed()
        table.write()
    table.write(now=True)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
