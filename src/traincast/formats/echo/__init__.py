"""Megatron-LM rank traces as Echo's tracer writes them: one text file per rank, one operation per line.

`lines` and `grammar` read bytes into records with their places; `files` tells which are one run; `layout`,
`clocks`, `rendezvous` and `experts` find out what happened; `work` and `stages` turn it into operations of the run
to simulate; `read` makes the workload of them, and `inspection` describes a file.

Source: fwyc0573/Megatron-LM (tracer of NetX-lab/Echo).
"""

from traincast.formats.contract import FORMATS, Format
from traincast.formats.echo.sniff import looks_like
from traincast.formats.writer import WRITERS

FORMATS.register("echo")(
    Format(
        name="echo",
        title="Echo/Megatron rank trace",
        options=frozenset(
            {
                *("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule", "pp_message_bytes", "comm"),
                *("expert_imbalance", "expert_loads"),
            }
        ),
        looks_like=looks_like,
        most_sure=0.98,
        reader="traincast.formats.echo.reader",
    )
)
WRITERS.registered_in("traincast.formats.echo.write", "echo")
