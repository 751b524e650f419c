"""Megatron-LM rank traces as Echo's tracer writes them: one text file per rank, one operation per line.

Source: fwyc0573/Megatron-LM (tracer of NetX-lab/Echo).
"""

from collections.abc import Sequence
from pathlib import Path

from traincast.formats.contract import FORMATS, Inspection, Sniff
from traincast.formats.echo.generation import looks_like
from traincast.formats.echo.inspection import inspect_file
from traincast.formats.echo.read import read_workload
from traincast.spec.options import LayoutOptions
from traincast.workload.workload import Workload


class EchoFormat:
    """The format ``echo``."""

    name = "echo"
    title = "Echo/Megatron rank trace"
    options = frozenset(
        [
            "gpus",
            "tp",
            "dp",
            "pp",
            "ep",
            "etp",
            "microbatches",
            "schedule",
            "pp_message_bytes",
            "comm",
            "expert_imbalance",
            "expert_loads",
        ]
    )

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the first lines how sure it is."""
        return looks_like(head)

    def inspect(self, path: Path) -> Inspection:
        """Describe the file."""
        return inspect_file(path)

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> Workload:
        """Read the rank files of one run."""
        return read_workload(paths, self.name, options)


FORMATS.register(EchoFormat.name)(EchoFormat())
