"""The table of nccl-tests without the GPUs: the cost of one collective over a range of sizes."""

from collections.abc import Sequence

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.collectives.cost import estimate_collective, table_of
from traincast.estimate.contention import one_group
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster, MeasuredTable
from traincast.job.parallel import MAX_WORLD_SIZE
from traincast.units import counted, format_size, format_time
from traincast.workload.words import Operation, bus_factor


class CollectiveRow(Struct, frozen=True):
    """One line of the table."""

    size_bytes: int
    """Size as `Operation` defines it."""
    time_s: float
    """Seconds from the arrival of the last member to the end."""
    algbw_bytes_per_s: float | None
    """As nccl-tests defines it, and so is the bus bandwidth; None where it takes no time."""
    busbw_bytes_per_s: float | None
    algorithm: str
    protocol: str | None


class CollectiveTable(Struct, frozen=True, kw_only=True):
    """One collective over a range of sizes."""

    op: str
    """Name of the `Operation` in lower case."""
    ranks: int
    nodes: int
    members_per_node: tuple[int, ...]
    """Members on each node, in descending order."""
    cluster: str
    rows: tuple[CollectiveRow, ...]
    """In the order of the sizes."""
    assumptions: tuple[Note, ...] = ()
    """What was not specified, and what a fabric does to the group."""

    def __repr__(self) -> str:
        """Say what is estimated, in a line."""
        last = self.rows[-1]
        took = f"{format_size(last.size_bytes)} in {format_time(last.time_s)}"
        return f"<CollectiveTable: {self.op} of {counted(self.ranks, 'rank')} on {self.cluster}, {took}>"


def doubling(first_bytes: int, last_bytes: int) -> list[int]:
    """Return sizes from the first, each twice the one before, up to the last; refuse an empty range."""
    if not 0 < first_bytes <= last_bytes:
        raise ConfigError(f"from {first_bytes} to {last_bytes} bytes is not a range of sizes; write it like 1KiB..8GiB")
    sizes = [first_bytes]
    while sizes[-1] * 2 <= last_bytes:
        sizes.append(sizes[-1] * 2)
    return sizes


def members_on(ranks: int, nodes: int | None, gpus_per_node: int) -> Placement:
    """Return a group spread evenly over a number of nodes, or over as few as hold it; refuse what does not fit."""
    chosen = -(-ranks // gpus_per_node) if nodes is None else nodes
    if ranks > chosen * gpus_per_node:
        raise InfeasibleError(
            f"{ranks} ranks do not fit on {counted(chosen, 'node')} of {counted(gpus_per_node, 'GPU')}; "
            f"they need {-(-ranks // gpus_per_node)}"
        )
    if chosen > ranks:
        raise InfeasibleError(f"{ranks} ranks cannot sit on {chosen} nodes; there are {chosen - ranks} nodes too many")
    return spread(ranks, chosen)


def spread(ranks: int, nodes: int) -> Placement:
    """Return a group spread over nodes as evenly as it goes: 10 ranks on 4 nodes are 3, 3, 2, 2."""
    if ranks > MAX_WORLD_SIZE:
        raise InfeasibleError(f"{ranks:,} ranks are above the limit of {MAX_WORLD_SIZE:,}; use fewer GPUs")
    each, more = divmod(ranks, nodes)
    return Placement((each + 1,) * more + (each,) * (nodes - more))


def collective_table(
    operation: Operation,
    sizes_bytes: Sequence[int],
    placement: Placement,
    cluster: Cluster,
    algorithm: str | None = None,
) -> CollectiveTable:
    """Return the cost of a collective at each of some positive sizes; on a fabric the group is alone.

    Raises
    ------
    ConfigError
        If the fabric does not fit the nodes.
    ProgramError, UnknownNameError
        If the algorithm that is asked for cannot do it, or is not known.
    """
    seen, notes = one_group(operation, placement, cluster)
    factor = bus_factor(operation, placement.ranks)
    rows = []
    for size_bytes in sizes_bytes:
        cost = estimate_collective(operation, size_bytes, placement, seen, algorithm=algorithm)
        algbw = size_bytes / cost.time_s if cost.time_s else None
        busbw = None if algbw is None else algbw * factor
        rows.append(CollectiveRow(size_bytes, cost.time_s, algbw, busbw, cost.algorithm, cost.protocol))
    measured = table_of(operation, placement, cluster) if algorithm is None else None
    return CollectiveTable(
        op=operation.name.lower(),
        ranks=placement.ranks,
        nodes=placement.nodes,
        members_per_node=placement.members_per_node,
        cluster=cluster.name,
        rows=tuple(rows),
        assumptions=notes if measured is None else (*notes, _from_table(measured, sizes_bytes)),
    )


def _from_table(table: MeasuredTable, sizes_bytes: Sequence[int]) -> Note:
    """Say that the times were measured, and how far the formula extends them."""
    first, last = table.size_bytes[0], table.size_bytes[-1]
    text = f"times are measured ones ({table.source}), on straight lines between their sizes on logarithmic scales"
    if not first <= min(sizes_bytes) <= max(sizes_bytes) <= last:
        text += f"; below {format_size(first)} and above {format_size(last)} by the formula, scaled to join them"
    return Note("measured-table", text)
