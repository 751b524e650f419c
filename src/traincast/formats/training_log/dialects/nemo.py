"""NeMo: the lines of NeMo 2's ``ProgressPrinter``, and the progress bar of NeMo and other users of Lightning.

nemo/lightning/pytorch/callbacks/progress_printer.py (v2.4); the bar is NeMo's ``MegatronProgressBar``, NeMo 1.x's and
that of plain Lightning, by tqdm, which rewrites its line.
"""

from traincast.formats.training_log.contract import Dialect, FlopsDefinition, MemoryDefinition
from traincast.formats.training_log.printed import Printed, Quantity

FLOPS = FlopsDefinition(
    text="model FLOPs by the formula of the model's family, without what is recomputed; causal attention halved in "
    "the newer formulas",
    source="nemo/lightning/pytorch/callbacks/flops_callback.py; nemo/utils/flops_formulas.py",
    counts=("causal", "full"),
)
MEMORY = MemoryDefinition(
    text="the most that PyTorch's allocator gave out so far, of the rank that prints it",
    source="nemo/lightning/pytorch/callbacks/memory_callback.py: MemoryMonitor, allocated_bytes.all.peak / 1e9; "
    "peak_memory_usage where a recipe logs that, in bytes",
    kind="allocated",
)

_END = r"(?=\s*(?:\||$))"

NEMO = Dialect(
    name="nemo",
    title="NeMo",
    example="Training epoch 0, iteration 9/99 | ... | train_step_timing in s: 5.12",
    marks=("Training epoch ",),
    opened=Printed(
        r"Training epoch (?P<epoch>\d{1,12}), iteration (?P<step>\d{1,12})/(?P<steps>\d{1,12}) \|",
        (
            Quantity("step_s", ("train_step_timing in s",), _END),
            Quantity("flops_per_s", ("TFLOPS_per_GPU",), _END, 1e12),
            Quantity("tokens_per_s", ("tokens_per_sec_per_gpu",), _END),
            Quantity("memory_bytes", ("memory/peak_allocated_mem",), _END, 1e9),
            Quantity("memory_bytes", ("peak_memory_usage",), _END),
            Quantity("global_batch", ("global_batch_size",), _END),
            Quantity("loss", ("reduced_train_loss",), _END),
        ),
        telling="",
        first=0,
    ),
    flops=FLOPS,
    memory=MEMORY,
)

LIGHTNING = Dialect(
    name="lightning",
    title="Lightning progress bar (NeMo and others)",
    example="Epoch 0: ... 10/100 [01:05<09:45, ..., train_step_timing in s=5.120]",
    marks=("Epoch ",),
    opened=Printed(
        r"Epoch (?P<epoch>\d{1,12}): :?\s*(?:\d{1,12}%\|[^|]*\|\s*)?(?P<step>\d{1,12})/(?P<steps>\d{1,12}) "
        r"\[(?P<clock>\d[\d:]{0,11})<[^\],]*(?:,|\])",
        (
            Quantity("step_s", ("train_step_timing in s",), r"(?=[,\]])"),
            Quantity("flops_per_s", ("TFLOPS_per_GPU",), r"(?=[,\]])", 1e12),
            Quantity("tokens_per_s", ("tokens_per_sec_per_gpu",), r"(?=[,\]])"),
            Quantity("global_batch", ("global_batch_size",), r"(?=[,\]])"),
            Quantity("loss", ("reduced_train_loss", "train_loss", "loss"), r"(?=[,\]])"),
        ),
    ),
    flops=FLOPS,
)
