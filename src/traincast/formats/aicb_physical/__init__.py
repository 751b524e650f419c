"""AICB workload of the physical kind: a rank's communications in program order, as CSV.

AICB replays such files on real GPUs, and writes them again with times. Source: aliyun/aicb
(``workload/physical``, ``log_analyzer/log.py``).
"""

from collections.abc import Sequence
from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import HEADER
from traincast.formats.aicb_physical.inspection import inspect_file
from traincast.formats.aicb_physical.read import read_workload
from traincast.formats.contract import FORMATS, Inspection, Sniff
from traincast.spec.options import LayoutOptions
from traincast.workload.workload import Workload

_LINES = 4


class AicbPhysicalFormat:
    """The format ``aicb-physical``."""

    name = "aicb-physical"
    title = "AICB physical workload"
    options = frozenset(
        {*("gpus", "tp", "dp", "pp", "ep", "etp", "microbatches", "schedule"), "pp_message_bytes", "comm"}
    )

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the header, which may follow a title."""
        lines = [line.strip() for line in head.lstrip("\ufeff").splitlines() if line.strip()][:_LINES]
        if not any(line.startswith(HEADER) for line in lines):
            return Sniff(0.0, f"no header begins with {HEADER}")
        return Sniff(0.95, "a header of AICB's columns")

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
            raise FormatError("a physical AICB workload is one file for a whole run; give one file", str(paths[1]))
        return read_workload(paths[0], self.name, options)


FORMATS.register(AicbPhysicalFormat.name)(AicbPhysicalFormat())
