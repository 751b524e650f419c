"""Chakra execution traces: one ``PREFIX.RANK.et`` for each rank, and perhaps ASTRA-sim's comm-group file.

`wire` reads and writes protobuf's wire format, `grammar` the messages of the schema in both dialects; `groups` and
`files` tell which ranks communicate and which files are one run; `read` makes recorded operations of the nodes,
`inspection` describes a file, and `write` writes a simulated run.

Source: mlcommons/chakra, schema/protobuf/et_def.proto; ASTRA-sim, astra-sim/workload.
"""

from traincast.formats.chakra.sniff import looks_like
from traincast.formats.contract import FORMATS, Format
from traincast.formats.writer import WRITERS

FORMATS.register("chakra")(
    Format(
        name="chakra",
        title="Chakra execution trace",
        options=frozenset({"gpus", "tp", "cp", "dp", "pp", "ep", "etp", "comm"}),
        looks_like=looks_like,
        reader="traincast.formats.chakra.reader",
    )
)
WRITERS.registered_in("traincast.formats.chakra.write", "chakra")
