"""AICB/SimAI workload text: one stage's work as rows, with times in ns and sizes in bytes.

Source: aliyun/aicb (writes it) and aliyun/SimAI, astra-sim/workload/Workload.cc (reads it).
"""

from traincast.formats.aicb.sniff import looks_like
from traincast.formats.contract import FORMATS, Format
from traincast.formats.writer import WRITERS

FORMATS.register("aicb")(
    Format(
        name="aicb",
        title="AICB/SimAI workload",
        options=frozenset(
            {
                *("gpus", "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "microbatches", "schedule"),
                *("stage_roles", "overlap_grad_reduce", "pp_message_bytes"),
                *("expert_imbalance", "expert_loads"),
            }
        ),
        looks_like=looks_like,
        reader="traincast.formats.aicb.reader",
    )
)
WRITERS.registered_in("traincast.formats.aicb.write", "aicb")
