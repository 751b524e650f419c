"""Megatron-Bridge: Megatron-LM's line on the last rank, and another one without a number of the step on the first.

src/megatron/bridge/training/utils/train_utils.py (main of August 2026): ``training_log``.
"""

from traincast.formats.training_log.contract import Dialect, MemoryDefinition
from traincast.formats.training_log.dialects.megatron import FLOPS
from traincast.formats.training_log.printed import Printed, Quantity

BRIDGE = Dialect(
    name="megatron-bridge",
    title="Megatron-Bridge",
    example="Step Time : 5.39s GPU utilization: 812.3MODEL_TFLOP/s/GPU",
    marks=("MODEL_TFLOP/s/GPU",),
    opened=Printed(
        "Step Time ?:",
        (
            Quantity("step_s", ("Step Time",), "s"),
            Quantity("flops_per_s", ("GPU utilization",), " ?MODEL_TFLOP/s/GPU", 1e12),
        ),
    ),
    flops=FLOPS,
    memory=MemoryDefinition(
        text="the most that PyTorch's allocator gave out, of the rank that logs it",
        source="src/megatron/bridge/training/utils/train_utils.py: report_memory, memory/peak_allocated_gigabytes",
        kind="allocated",
    ),
)
