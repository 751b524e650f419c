"""Megatron-LM's line of a step, and those of Megatron-DeepSpeed.

``training_log`` of megatron/training/training.py (core_v0.4.0 to main of August 2026), of megatron/training.py (v2.0 to
23.06), which has no date and no throughput. Megatron-DeepSpeed prints the time in seconds (BigScience) or ms
(Microsoft), and further "samples per second", "tokens per gpu per second (tgs)" and "TFLOPs". ROCm's fork says the
memory in the line; others print it once, after the first lines (``report_memory`` of megatron/training/utils.py, by
every first rank of a data-parallel group). The numbers of a line end before a bar, so that one that was cut is not
taken for a smaller one.
"""

import re

from traincast.formats.training_log.contract import Dialect, FlopsDefinition, Found, Line, MemoryDefinition
from traincast.formats.training_log.printed import Printed, Quantity

_BAR = r"(?=\s*\|)"

FLOPS = FlopsDefinition(
    text="model FLOPs without what is recomputed; causal attention halved since 2025, the full square before",
    source="megatron/training/training.py: num_floating_point_operations",
    counts=("causal", "full"),
)

_MEMORY = re.compile(r"memory \(MB\) \|.* max allocated: (\d{1,9}(?:\.\d{1,40})?)(?=\s*\|)")


def _with_memory() -> Line:
    step = _PRINTED()

    def line(text: str) -> Found | None:
        memory = _MEMORY.search(text)
        if memory is None:
            return None if "memory (MB)" in text else step(text)
        return Found(values={"memory_bytes": float(memory[1]) * 2**20})

    return line


_PRINTED = Printed(
    r"iteration\s+(?P<step>\d{1,12})/\s*(?P<steps>\d{1,12}) \|",
    (
        Quantity("step_s", (r"elapsed time per iteration \(ms\)",), _BAR, 1e-3),
        Quantity("step_s", (r"elapsed time per iteration \(s\)",), _BAR),
        Quantity(
            "flops_per_s",
            (r"throughput per GPU \(TFLOP/s/GPU\)", r"flop throughput \(TFLOP/sec/GPU\)", r"TFLOPs"),
            _BAR,
            1e12,
        ),
        Quantity("tokens_per_s", (r"tokens per gpu per second \(tgs\)", r"throughput \(token/sec/GPU\)"), _BAR),
        Quantity("memory_bytes", (r"mem-max-allocated-bytes-avg\(MB\)", r"mem-max-allocated-bytes\(MB\)"), _BAR, 2**20),
        Quantity("global_batch", ("global batch size",), _BAR),
        Quantity("loss", ("lm loss",), _BAR),
    ),
    telling="",
)
MEGATRON = Dialect(
    name="megatron",
    title="Megatron-LM",
    example="iteration 20/ 100 | ... | elapsed time per iteration (ms): 2001.5 | ...",
    marks=("elapsed time per iteration", "memory (MB) |"),
    opened=_with_memory,
    flops=FLOPS,
    memory=MemoryDefinition(
        text="the most that PyTorch's allocator gave out, of the rank that prints it",
        source="megatron/training/utils.py: report_memory",
        kind="allocated",
    ),
)
