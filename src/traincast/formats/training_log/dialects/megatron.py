"""Megatron-LM's line of a step, and those of Megatron-DeepSpeed.

``training_log`` of megatron/training/training.py (core_v0.4.0 to main of August 2026), of megatron/training.py (v2.0 to
23.06), which has no date and no throughput. Megatron-DeepSpeed prints the time in seconds (BigScience) or ms
(Microsoft), and further "samples per second", "tokens per gpu per second (tgs)" and "TFLOPs". ROCm's fork says the
memory in the line. The numbers of a line end before a bar, so that one that was cut is not taken for a smaller one.
"""

from traincast.formats.training_log.contract import Dialect, FlopsDefinition, MemoryDefinition
from traincast.formats.training_log.printed import Quantity, printed

_BAR = r"(?=\s*\|)"

FLOPS = FlopsDefinition(
    text="model FLOPs without what is computed again; causal attention halved since 2025, the full square before",
    source="megatron/training/training.py: num_floating_point_operations",
    counts=("causal", "full"),
)

MEGATRON = Dialect(
    name="megatron",
    title="Megatron-LM",
    example="iteration 20/ 100 | ... | elapsed time per iteration (ms): 2001.5 | ...",
    marks=("elapsed time per iteration",),
    opened=printed(
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
            Quantity(
                "memory_bytes", (r"mem-max-allocated-bytes-avg\(MB\)", r"mem-max-allocated-bytes\(MB\)"), _BAR, 2**20
            ),
            Quantity("global_batch", ("global batch size",), _BAR),
            Quantity("loss", ("lm loss",), _BAR),
        ),
        telling="",
    ),
    flops=FLOPS,
    memory=MemoryDefinition(
        text="the most that PyTorch's allocator gave out, of the rank that prints it",
        source="megatron/training/utils.py: report_memory",
        kind="allocated",
    ),
)
