"""Estimates of single things: a collective over sizes, an operator."""

from os import PathLike
from typing import Any

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.estimate.collective_table import CollectiveTable, collective_table, doubling, members_on
from traincast.estimate.operators import FAMILIES
from traincast.estimate.operators.cost import OperatorCost, operator_cost
from traincast.fabric.placement import with_used_gpus
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import Gpu
from traincast.simulation.reproducible import DEFAULT_CLUSTER
from traincast.units import parse_size_range
from traincast.workload.words import operation_named

StrPath = str | PathLike[str]
SIZE_ALIASES = {"seq": "queries", "head_dim": "qk_dim", "vocab": "vocabulary"}
"""More common names of some sizes of operators; a size of that name goes first (``head_dim`` of rotary)."""


def collective(
    operation: str,
    size: int | str | tuple[int, int] = "1KiB..8GiB",
    gpus: int | None = None,
    nodes: int | None = None,
    cluster: StrPath | Cluster | None = None,
    algorithm: str | None = None,
) -> CollectiveTable:
    """Return the cost of one collective over a range of sizes.

    Parameters
    ----------
    operation : str
        ``"all_reduce"``, ``"all-to-all"``, ...: any spelling.
    size : int, str or (int, int)
        A size in bytes, or the first and last of a range in which each is twice the one before; or a text such as
        ``64MiB`` or ``1KiB..8GiB``.
    gpus : int, optional
        Ranks that take part; those of a full node by default.
    nodes : int, optional
        Nodes they are spread over; the fewest by default.
    cluster : str, path or Cluster, optional
        Cluster; the default cluster, as an assumption, where it is not given.
    algorithm : str, optional
        The algorithm, whatever a library would choose; the cheapest of those by default.

    Examples
    --------
    >>> import traincast
    >>> table = traincast.collective("all_reduce", "1GiB", gpus=16, cluster="h100")
    >>> table.rows[0].algorithm, 300e9 < table.rows[0].busbw_bytes_per_s < 400e9
    ('ring', True)
    """
    known = load_cluster(cluster or DEFAULT_CLUSTER)
    known = with_used_gpus(known, known.ranks_per_node)
    said = parse_size_range(size) if isinstance(size, str) else size
    first, last = (said, said) if isinstance(said, int) else said
    placement = members_on(known.ranks_per_node if gpus is None else gpus, nodes, known.ranks_per_node)
    table = collective_table(operation_named(operation), doubling(first, last), placement, known, algorithm)
    table = replace(table, assumptions=(*(Note("cluster-assumed", text) for text in known.assumed), *table.assumptions))
    if cluster is not None:
        return table
    note = Note("cluster-default", f"no cluster was given; taken as {DEFAULT_CLUSTER}")
    return replace(table, assumptions=(note, *table.assumptions))


def operator(
    family: str,
    gpu: StrPath | Gpu | None = None,
    constants: str | None = None,
    **described: Any,  # noqa: ANN401
) -> OperatorCost:
    """Return the cost of one operator on a GPU, and why.

    Parameters
    ----------
    family : str
        ``"gemm"``, ``"attention"``, ``"norm"``, ``"grouped_gemm"``, ...: a name of `operator_sizes`.
    gpu : str, path or Gpu, optional
        ``"h100"``, ``"A100-SXM-80GB"``, ..., or a cluster file, of which ``[gpu]`` is read; h100, as an
        assumption, where it is not given.
    constants : str, optional
        File of ``traincast calibrate --gpu``.
    **described
        The operator's sizes by name (``m=8192``; also ``seq``, ``head_dim`` and ``vocab``, as of flags), and perhaps
        ``dtype``, ``direction``, ``causal``, ``window`` and ``options``.

    Examples
    --------
    >>> import traincast
    >>> traincast.operator("gemm", "h100", m=8192, n=8192, k=8192).cost.bound
    'compute'
    """
    words = ("dtype", "direction", "causal", "window", "options")
    known = operator_sizes().get(family.replace("-", "_"), ())
    sizes: dict[str, int] = {}
    for name, size in described.items():
        own = name if name in known else SIZE_ALIASES.get(name, name)
        if own in sizes:
            raise ConfigError(f"is the same as {own}; give one of them", name)
        if name not in words:
            sizes[own] = size
    chosen = {name: value for name, value in described.items() if name in words}
    return operator_cost(family, sizes, gpu=gpu, constants=constants, **chosen)


def operator_sizes() -> dict[str, tuple[str, ...]]:
    """Return the names of the sizes of every family of operators, in the order of a call's shape.

    Examples
    --------
    >>> import traincast
    >>> traincast.operator_sizes()["gemm"]
    ('batch', 'm', 'n', 'k')
    """
    return {name: tuple(size.name for size in FAMILIES.get(name).sizes) for name in FAMILIES.names()}
