"""Traces of PyTorch's profiler (Kineto): one JSON document per rank, of events of its host and its GPU.

`stream` cuts a document into pieces, `events` says what is read of them, and `grammar` makes columns of it;
`communication` says what collectives and their groups mean; `step`, `operators` and `record` what a rank ran in a step
and in which order; `match` and `times` what ranks did together and when; `read` makes a recorded program of all that
(`traincast.workload.recorder`), `inspection` describes a file, and `computations` finds kernels whose shapes are known.

Source: pytorch/kineto, libkineto/src/output_json.cpp.
"""

from traincast.formats.contract import FORMATS, Format
from traincast.formats.kineto.sniff import looks_like

FORMATS.register("kineto")(
    Format(
        name="kineto",
        title="PyTorch profiler trace",
        options=frozenset({"gpus", "tp", "cp", "dp", "pp", "ep", "etp", "comm", "step"}),
        looks_like=looks_like,
        reader="traincast.formats.kineto.reader",
    )
)
