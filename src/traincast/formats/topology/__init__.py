"""Files that describe a network: SimAI's topology file and ASTRA-sim's network YAML.

They hold no workload, so `read` refuses; a cluster names one as ``[fabric] file = ...``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from traincast.errors import FormatError
from traincast.formats.contract import FORMATS, Inspection, Sniff
from traincast.formats.topology import astra, simai
from traincast.formats.topology.facts import inspect_dimensions, inspect_network
from traincast.hardware.network import Dimension, Network
from traincast.spec.options import LayoutOptions


class TopologyFormat:
    """A format of networks: how it is told, and how it is described."""

    options: frozenset[str] = frozenset()

    def __init__(
        self, name: str, title: str, looks_like: Callable[[str], Sniff], describe: Callable[[Path], Inspection]
    ) -> None:
        self.name, self.title = name, title
        self._looks_like, self._describe = looks_like, describe

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the first lines how sure it is."""
        return self._looks_like(head)

    def inspect(self, path: Path) -> Inspection:
        """Describe the network: counts, bisection, oversubscription."""
        return self._describe(path)

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> NoReturn:  # noqa: ARG002
        """Refuse: there is nothing to run in it.

        Raises
        ------
        FormatError
            Always.
        """
        path = paths[0]
        raise FormatError(
            f"{self.title}: a network, not a workload; name it in a cluster file ([fabric] with file = {path.name!r}) "
            "and give that with --cluster",
            str(path),
        )


def read_topology(path: Path) -> Network | tuple[Dimension, ...]:
    """Read either kind of file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Network or tuple of Dimension
        From SimAI and from ASTRA-sim.

    Raises
    ------
    FormatError
        If the file cannot be read or is neither.
    """
    text = simai.load_text(path)
    if astra.looks_like(text).confidence > simai.looks_like(text).confidence:
        return astra.read_dimensions(path)
    return simai.read_network(path)


def _inspect_simai(path: Path) -> Inspection:
    return inspect_network(path, simai.read_network(path))


def _inspect_astra(path: Path) -> Inspection:
    return inspect_dimensions(path, astra.read_dimensions(path))


for _format in (
    TopologyFormat("simai-topology", "SimAI topology file", simai.looks_like, _inspect_simai),
    TopologyFormat("astra-network", "ASTRA-sim network file", astra.looks_like, _inspect_astra),
):
    FORMATS.register(_format.name)(_format)
