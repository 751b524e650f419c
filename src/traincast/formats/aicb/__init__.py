"""AICB/SimAI workload text: one stage's work as rows, with times in ns and sizes in bytes.

Source: aliyun/aicb (writes it) and aliyun/SimAI, astra-sim/workload/Workload.cc (reads it).
"""

from collections.abc import Sequence
from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.aicb.generation import looks_like
from traincast.formats.aicb.inspection import inspect_file
from traincast.formats.aicb.read import read_workload
from traincast.formats.contract import FORMATS, Inspection, Sniff
from traincast.spec.options import LayoutOptions
from traincast.workload.workload import Workload


class AicbFormat:
    """The format ``aicb``."""

    name = "aicb"
    title = "AICB/SimAI workload"
    options = frozenset(
        {
            *("gpus", "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "microbatches", "schedule"),
            *("stage_roles", "overlap_grad_reduce", "pp_message_bytes"),
            *("expert_imbalance", "expert_loads"),
        }
    )

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the first line how sure it is."""
        return looks_like(head)

    def inspect(self, path: Path) -> Inspection:
        """Describe the file."""
        return inspect_file(path)

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> Workload:
        """Read the one file of a run.

        Raises
        ------
        FormatError
            If there is more than one: such a file describes a whole run.
        """
        if len(paths) != 1:
            raise FormatError("an AICB workload is one file for a whole run; give one file", str(paths[1]))
        return read_workload(paths[0], self.name, options)


FORMATS.register(AicbFormat.name)(AicbFormat())
