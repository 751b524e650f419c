"""AICB workload of the physical kind: a rank's communications in program order, as CSV.

AICB replays such files on real GPUs, and writes them again with times. Source: aliyun/aicb
(``workload/physical``, ``log_analyzer/log.py``).
"""

from traincast.formats.contract import later, text_format

text_format(
    "aicb-physical",
    "AICB physical workload",
    one="a physical AICB workload",
    options=(
        *("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule"),
        *("pp_message_bytes", "comm"),
    ),
    looks_like=later("traincast.formats.aicb_physical.grammar:looks_like"),
    most_sure=0.95,
    parse=later("traincast.formats.aicb_physical.grammar:parse"),
    describe=later("traincast.formats.aicb_physical.steps:describe"),
    build=later("traincast.formats.aicb_physical.read:build"),
)
