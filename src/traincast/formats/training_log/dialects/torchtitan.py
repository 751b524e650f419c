"""torchtitan: ``MetricsProcessor.log`` of torchtitan/components/metrics.py (main of August 2026).

In colours unless they are turned off; train.py of 2024 calls the tokens per second and GPU "wps". A line is the mean of
the steps since the one before (``log_freq``).
"""

from traincast.formats.training_log.contract import Dialect, FlopsDefinition, MemoryDefinition
from traincast.formats.training_log.printed import Printed, Quantity

FLOPS = FlopsDefinition(
    text="model FLOPs, 6 x parameters and attention as the full square (not halved), nothing that is recomputed",
    source="torchtitan/models/utils.py: get_dense_model_nparams_and_flops",
    counts=("full",),
)
MEMORY = MemoryDefinition(
    text="the most that PyTorch's allocator reserved since the line before, of the rank that prints it",
    source="torchtitan/components/metrics.py: DeviceMemoryMonitor.get_peak_stats",
    kind="reserved",
)

TORCHTITAN = Dialect(
    name="torchtitan",
    title="torchtitan",
    example="step: 10  loss: 8.0  ...  tps: 6,400  tflops: 412.34  mfu: 41.70%",
    marks=("loss:",),
    opened=Printed(
        r"(?<!validate )step:\s+(?P<step>\d{1,12})\s+loss:\s(?=.*\b(?:tps|wps):)",
        (
            Quantity("tokens_per_s", ("tps", "wps"), r"(?=\s)"),
            Quantity("flops_per_s", ("tflops",), r"(?=\s)", 1e12),
            Quantity("memory_bytes", ("memory",), "GiB", 2**30),
            Quantity("loss", ("loss",)),
        ),
        telling=r"^(?!.*validate step:).*(?:\bstep:.*loss:|loss:.*\b[tw]ps:)",
    ),
    flops=FLOPS,
    memory=MEMORY,
)
