"""AICB workload of the physical kind: a rank's communications in program order, as CSV.

AICB replays such files on real GPUs, and writes them again with times. Source: aliyun/aicb
(``workload/physical``, ``log_analyzer/log.py``).
"""

from traincast.formats.aicb_physical.grammar import looks_like, parse
from traincast.formats.aicb_physical.read import build
from traincast.formats.aicb_physical.steps import describe
from traincast.formats.contract import text_format

text_format(
    "aicb-physical",
    "AICB physical workload",
    one="a physical AICB workload",
    options=(
        *("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule"),
        *("pp_message_bytes", "comm"),
    ),
    looks_like=looks_like,
    parse=parse,
    describe=describe,
    build=build,
)
