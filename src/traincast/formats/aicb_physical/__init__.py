"""AICB workload of the physical kind: a rank's communications in program order, as CSV.

AICB replays such files on real GPUs, and writes them again with times. Source: aliyun/aicb
(``workload/physical``, ``log_analyzer/log.py``).
"""

from traincast.formats.aicb_physical.sniff import looks_like
from traincast.formats.contract import FORMATS, Format
from traincast.formats.writer import WRITERS

FORMATS.register("aicb-physical")(
    Format(
        name="aicb-physical",
        title="AICB physical workload",
        options=frozenset(
            {
                *("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule"),
                *("pp_message_bytes", "comm"),
            }
        ),
        looks_like=looks_like,
        most_sure=0.95,
        reader="traincast.formats.aicb_physical.reader",
    )
)
WRITERS.registered_in("traincast.formats.aicb_physical.write", "aicb-physical")
