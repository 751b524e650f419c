"""Files that describe a network: SimAI's topology file and ASTRA-sim's network YAML.

They hold no workload, so `read` refuses; a cluster names one as ``[fabric] file = ...``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from traincast.errors import FormatError
from traincast.formats.contract import FORMATS, FileFormat, Inspection
from traincast.formats.topology import astra, simai
from traincast.formats.topology.facts import inspect_dimensions, inspect_network
from traincast.hardware.network import Dimension, Network
from traincast.job.options import LayoutOptions


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


def _refuse(paths: Sequence[Path], name: str, options: LayoutOptions) -> NoReturn:  # noqa: ARG001
    """Refuse: there is nothing to run in it."""
    path, title = paths[0], FORMATS.get(name).title
    raise FormatError(
        f"{title}: a network, not a workload; name it in a cluster file ([fabric] with file = {path.name!r}) "
        "and give that with --cluster",
        str(path),
    )


for _name, _title, _looks_like, _describe in (
    ("simai-topology", "SimAI topology file", simai.looks_like, _inspect_simai),
    ("astra-network", "ASTRA-sim network file", astra.looks_like, _inspect_astra),
):
    FORMATS.register(_name)(
        FileFormat(
            name=_name,
            title=_title,
            options=frozenset(),
            looks_like=_looks_like,
            describe=_describe,
            read_run=_refuse,
        )
    )
