"""Tables of measurements for tests: runs as their sources print them, kernels and collectives as prices make them."""

import csv

from traincast.calibration.collectives import estimate_measured, read_collectives
from traincast.calibration.tables import MeasurementTable, Row
from traincast.estimate.clocks import loop_slowdown
from traincast.estimate.operators import OperatorCall, estimate_operator

COLUMNS = (
    *("id", "source", "model", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "vocab", "experts"),
    *("topk", "moe_ffn", "seq_len", "global_batch", "micro_batch", "gpu", "num_gpus", "gpus_per_node", "tp", "pp"),
    *("vpp", "cp", "ep", "zero_or_fsdp", "recompute", "precision", "framework", "measured_metric", "measured_value"),
    *("notes", "x_task"),
)
_8B = {"model": "llama3-8b", "layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8,
       "head_dim": 128, "vocab": 128256, "seq_len": 8192, "gpu": "H100-SXM-80GB", "num_gpus": 8, "gpus_per_node": 8,
       "tp": 1, "pp": 1, "cp": 1, "x_task": "pretrain", "measured_metric": "tokens_per_s_per_gpu"}  # fmt: skip
_7B = {**_8B, "model": "internlm-7b", "ffn_hidden": 11008, "kv_heads": 32, "vocab": 103168, "seq_len": 2048,
       "gpu": "A100-SXM-80GB", "framework": "InternEvo", "precision": "bf16", "source": "internevo",
       "zero_or_fsdp": "zero1(all dp)", "recompute": "none"}  # fmt: skip
_GPT = {**_8B, "model": "gpt3-5b", "layers": 24, "ffn_hidden": 16384, "kv_heads": 32, "vocab": 51200, "seq_len": 2048,
        "global_batch": 2048, "micro_batch": 4, "num_gpus": 64, "precision": "fp8", "source": "nemo-perf-docs",
        "framework": "NeMo 24.x (Megatron-Core)"}  # fmt: skip
ROWS = [
    # Megatron-LM, examples/llama/README; NeMo's performance page; torchtitan's benchmarks; InternEvo's table.
    {**_8B, "id": "megatron-1", "source": "megatron-lm-examples", "global_batch": 128, "micro_batch": 1, "cp": 2,
     "precision": "fp8", "framework": "Megatron-LM", "measured_value": 13812},
    {**_GPT, "id": "nemo-1", "measured_value": 23406},
    # Half as many GPUs at the same batch per GPU; the same with bf16: 0.62 x as fast. Made up for the ratios.
    {**_GPT, "id": "nemo-2", "num_gpus": 32, "global_batch": 1024, "measured_value": 23800},
    {**_GPT, "id": "nemo-3", "precision": "bf16", "measured_value": 14500},
    {**_8B, "id": "titan-1", "source": "torchtitan-benchmarks", "global_batch": 16, "micro_batch": 2,
     "zero_or_fsdp": "fsdp2-8", "recompute": "selective", "precision": "bf16", "framework": "torchtitan 2024-12",
     "measured_value": 5762},
    {**_7B, "id": "intern-1", "global_batch": 64, "micro_batch": 2, "measured_value": 4062},
    # No pretraining: shown apart, not fitted to.
    {**_8B, "id": "lora-1", "source": "nemo-perf-docs", "global_batch": 32, "micro_batch": 1, "precision": "bf16",
     "framework": "NeMo 24.x (Megatron-Core)", "measured_value": 14000, "x_task": "lora"},
]  # fmt: skip
SKIPPED = [
    {**_8B, "id": "no-batch", "source": "x", "framework": "Megatron-LM", "measured_value": 1},
    {**_8B, "id": "no-gpu", "source": "x", "framework": "Megatron-LM", "gpu": "abacus", "global_batch": 8,
     "micro_batch": 1, "measured_value": 1},
    {**_7B, "id": "indivisible", "tp": 3, "num_gpus": 9, "global_batch": 3, "micro_batch": 1, "measured_value": 1},
]  # fmt: skip


def write_runs(path, rows):
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


LLAMA = {
    "id": "x-1",
    "source": "dgxc-benchmarking",
    "source_url_or_repo_path": "NVIDIA/dgxc-benchmarking@v25.02:llama3/README.md",
    "model": "llama3-70b",
    "layers": "80",
    "hidden": "8192",
    "ffn_hidden": "28672",
    "heads": "64",
    "kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "seq_len": "8192",
    "global_batch": "128",
    "micro_batch": "1",
    "gpu": "H100-SXM-80GB",
    "num_gpus": "64",
    "gpus_per_node": "8",
    "tp": "4",
    "pp": "4",
    "vpp": "5",
    "cp": "2",
    "precision": "bf16",
    "framework": "NeMo/Megatron-Core",
    "measured_metric": "iter_time_s",
    "measured_value": "10",
    "x_task": "pretrain",
}
"""A full row of a table of runs."""


def run_row(cells=LLAMA, **changes):
    """Make a row of a table of runs; None takes a cell away."""
    filled = {name: value for name, value in {**cells, **changes}.items() if value is not None}
    return Row("runs.csv", 2, filled)


def run_table(*rows):
    """Make a table of such rows."""
    return MeasurementTable("runs.csv", tuple(dict.fromkeys(name for each in rows for name in each.cells)), rows)


SHAPES = [(m, n, k) for m in (512, 2048, 8192, 16384) for n in (1024, 6144, 16384) for k in (1024, 4096, 12288)]
SIZES = [2**size for size in range(10, 31, 2)]


def in_a_loop(gpu, times_s):
    """Return what a benchmark times of GEMMs, each of which it runs again and again."""
    return times_s * loop_slowdown(gpu, times_s)


def write_gemms(tmp_path, gpu, shapes, factor=1.0, name="t.csv"):
    """Write timings that are prices times a factor."""
    lines = ["gpu,family,shape,dtype,direction,time_s"]
    for shape in shapes:
        call = OperatorCall(family="gemm", shape=shape, dtype="bf16")
        time_s = factor * float(in_a_loop(gpu, estimate_operator(call, gpu).time_s))
        lines.append(f"{gpu.name},gemm,{'x'.join(map(str, shape))},bf16,forward,{time_s!r}")
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def write_collectives(path, cluster, groups=((2, 1), (4, 1), (8, 1)), gpu="a100"):
    """Write what a cluster would measure."""
    rows = [
        (op, ranks, nodes, size) for op in ("all_reduce", "all_gather") for ranks, nodes in groups for size in SIZES
    ]
    head = "gpu,op,ranks,nodes,size_bytes,time_s\n"
    path.write_text(head + "".join(f"{gpu},{op},{ranks},{nodes},{size},1\n" for op, ranks, nodes, size in rows))
    prices = estimate_measured(read_collectives([path]).measurements, cluster)
    lines = [f"{gpu},{','.join(map(str, row))},{price.time_s!r}" for row, price in zip(rows, prices, strict=True)]
    path.write_text(head + "\n".join(lines) + "\n")
    return path
