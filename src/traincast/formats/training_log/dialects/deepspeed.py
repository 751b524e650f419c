"""DeepSpeed: what its engine's throughput timer logs, and what its pipeline engine prints.

deepspeed/utils/timer.py: ``ThroughputTimer.stop``; deepspeed/runtime/pipe/engine.py: ``train_batch``. The engine counts
sequences of all GPUs (``batch_size=self.train_batch_size()``); versions before 0.8 counted those of one microbatch.
"""

from traincast.formats.training_log.contract import Dialect, MemoryDefinition
from traincast.formats.training_log.printed import Printed, Quantity

DEEPSPEED = Dialect(
    name="deepspeed",
    title="DeepSpeed",
    example="epoch=0/micro_step=80/global_step=10, RunningAvgSamplesPerSec=51.2, CurrSamplesPerSec=51.9, ...",
    marks=("CurrSamplesPerSec",),
    opened=Printed(
        r"/global_step=(?P<step>\d{1,12}), ",
        (
            Quantity("samples_per_s", ("CurrSamplesPerSec",), "(?=,)"),
            Quantity("memory_bytes", ("MaxMemAllocated",), "GB", 2**30),
        ),
    ),
    memory=MemoryDefinition(
        text="the most that PyTorch's allocator gave out so far, of the first rank",
        source="deepspeed/utils/timer.py: ThroughputTimer.stop, max_memory_allocated / 1024**3",
        kind="allocated",
    ),
)

PIPELINE = Dialect(
    name="deepspeed-pipeline",
    title="DeepSpeed's pipeline engine",
    example="steps: 10 loss: 2.5000 iter time (s): 1.250 samples/sec: 51.200",
    marks=("iter time (s):",),
    opened=Printed(
        r"steps?: +(?P<step>\d{1,12}) (?:/ +(?P<steps>\d{1,12}) )?loss: ",
        (
            Quantity("step_s", (r"iter time \(s\)",), r"(?=\s)"),
            Quantity("samples_per_s", ("samples/sec",), r"(?=\s|$)"),
            Quantity("loss", (r"\d loss",), r"(?=\s)"),
        ),
        telling="",
    ),
)
