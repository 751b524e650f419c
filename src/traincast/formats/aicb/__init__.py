"""AICB/SimAI workload text: one stage's work as rows, with times in ns and sizes in bytes.

Source: aliyun/aicb (writes it) and aliyun/SimAI, astra-sim/workload/Workload.cc (reads it).
"""

from traincast.formats.aicb.grammar import parse
from traincast.formats.aicb.inspection import describe, looks_like
from traincast.formats.aicb.read import build
from traincast.formats.contract import text_format

text_format(
    "aicb",
    "AICB/SimAI workload",
    one="an AICB workload",
    options=(
        *("gpus", "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "microbatches", "schedule"),
        *("stage_roles", "overlap_grad_reduce", "pp_message_bytes"),
        *("expert_imbalance", "expert_loads"),
    ),
    looks_like=looks_like,
    parse=parse,
    describe=describe,
    build=build,
)
