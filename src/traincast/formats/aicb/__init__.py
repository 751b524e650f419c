"""AICB/SimAI workload text: one stage's work as rows, with times in ns and sizes in bytes.

Source: aliyun/aicb (writes it) and aliyun/SimAI, astra-sim/workload/Workload.cc (reads it).
"""

from traincast.formats.aicb.generation import looks_like
from traincast.formats.aicb.inspection import inspect_file
from traincast.formats.aicb.read import read_workload
from traincast.formats.contract import FORMATS, FileFormat, of_one_file

FORMATS.register("aicb")(
    FileFormat(
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
        describe=inspect_file,
        read_run=of_one_file("an AICB workload", read_workload),
    )
)
