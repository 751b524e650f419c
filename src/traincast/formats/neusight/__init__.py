"""NeuSight operator forecasts: one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (forecasts the operators), and an exporter that writes them as rows with
the fields of AICB's ``Work_Item``.
"""

from collections.abc import Sequence
from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.contract import FORMATS, Inspection, Sniff
from traincast.formats.neusight.inspection import inspect_file
from traincast.formats.neusight.read import read_workload
from traincast.formats.neusight.recognise import looks_like
from traincast.spec.options import LayoutOptions
from traincast.workload.workload import Workload


class NeusightFormat:
    """The format ``neusight``."""

    name = "neusight"
    title = "NeuSight operator forecast"
    options = frozenset(
        {
            *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
            *("layers", "layer_block", "dtype", "forward_only"),
        }
    )

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the names of the columns how sure it is."""
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
            raise FormatError("a NeuSight forecast is one file for a whole run; give one file", str(paths[1]))
        return read_workload(paths[0], self.name, options)


FORMATS.register(NeusightFormat.name)(NeusightFormat())
