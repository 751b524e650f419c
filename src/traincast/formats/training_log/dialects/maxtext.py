"""MaxText: ``log_metrics`` of src/MaxText/metric_logger.py (2023 to 2026; tokens since 2024)."""

from traincast.formats.training_log.contract import Dialect, FlopsDefinition
from traincast.formats.training_log.printed import Printed, Quantity

FLOPS = FlopsDefinition(
    text="model FLOPs without what is recomputed; causal attention halved since 2025, the full square before",
    source="src/MaxText/maxtext_utils.py: calculate_tflops_training_per_device",
    counts=("causal", "full"),
)

MAXTEXT = Dialect(
    name="maxtext",
    title="MaxText",
    example="completed step: 9, seconds: 5.120, TFLOP/s/device: 400.5, ...",
    marks=("completed step: ",),
    opened=Printed(
        r"completed step: (?P<step>\d{1,12}), (?=seconds: )",
        (
            Quantity("step_s", ("seconds",), "(?=,)"),
            Quantity("flops_per_s", ("TFLOP/s/device",), "(?=,)", 1e12),
            Quantity("tokens_per_s", ("Tokens/s/device",), "(?=,)"),
            Quantity("loss", (r"\bloss",)),
        ),
        telling="",
        first=0,
    ),
    flops=FLOPS,
)
