"""AICB workload of the physical kind: a rank's communications in program order, as CSV.

AICB replays such files on real GPUs, and writes them again with times. Source: aliyun/aicb
(``workload/physical``, ``log_analyzer/log.py``).
"""

from traincast.formats.aicb_physical.grammar import looks_like
from traincast.formats.aicb_physical.inspection import inspect_file
from traincast.formats.aicb_physical.read import read_workload
from traincast.formats.contract import FORMATS, FileFormat, of_one_file

FORMATS.register("aicb-physical")(
    FileFormat(
        name="aicb-physical",
        title="AICB physical workload",
        options=frozenset(
            {
                *("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule"),
                *("pp_message_bytes", "comm"),
            }
        ),
        looks_like=looks_like,
        describe=inspect_file,
        read_run=of_one_file("a physical AICB workload", read_workload),
    )
)
