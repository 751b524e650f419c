"""What a fabric may cost: links and routes are counted from the numbers alone, before any is built.

Limits are such that what is allowed takes about ten seconds and two gigabytes on one core.
"""

from collections.abc import Sequence

from traincast.errors import InfeasibleError

MOST_LINKS = 2**24
"""Directed links of a network: 24 bytes each, and as much again while they are built."""

MOST_HOPS = 2**25
"""Links on the routes of all flows that are solved together, a flow over several queue pairs counted by its parts."""

MOST_SWITCHES = 2**15
"""Switches of a topology file: the hops between all of them are kept, two bytes a pair."""

MOST_LINKED_SWITCHES = 2**12
"""Those of them with links to others: the hops are found by products of matrices of that many rows."""

MOST_ENTRIES = 2**27
"""Vertices of a topology file times the links of the one with most."""


def check_links(links: int, what: str) -> None:
    """Refuse a network of too many links.

    Parameters
    ----------
    links : int
        Directed links.
    what : str
        The network, for the message.

    Raises
    ------
    InfeasibleError
        If they are more than `MOST_LINKS`.
    """
    if links > MOST_LINKS:
        raise InfeasibleError(
            f"{what} has {links:,} links, above the limit of {MOST_LINKS:,}; use fewer GPUs or switches, or leave "
            "[fabric] out"
        )


def check_hops(flows: int, queue_pairs: int, longest: int, patterns: Sequence[str]) -> None:
    """Refuse flows whose routes are too long together.

    Parameters
    ----------
    flows : int
        Flows between GPUs.
    queue_pairs : int
        Parts of each.
    longest : int
        Links of the longest route.
    patterns : sequence of str
        Who sends to whom, for the message.

    Raises
    ------
    InfeasibleError
        If their product is above `MOST_HOPS`.
    """
    if flows * queue_pairs * longest > MOST_HOPS:
        parts = f" x {queue_pairs:,} queue pairs" if queue_pairs > 1 else ""
        raise InfeasibleError(
            f"{flows:,} flows ({', '.join(patterns)}){parts} over up to {longest:,} links each are "
            f"{flows * queue_pairs * longest:,} hops to solve, above the limit of {MOST_HOPS:,}; use smaller groups or "
            "fewer queue pairs, or --network analytical, with which nothing shares links"
        )


def check_topology(switches: int, linked: int, vertices: int, most_links: int) -> None:
    """Refuse a topology file whose tables of routes would be too large.

    Parameters
    ----------
    switches, linked : int
        All switches, and those with links to other switches.
    vertices, most_links : int
        All vertices, and the links of the one with most.

    Raises
    ------
    InfeasibleError
        If one of the limits above is exceeded.
    """
    for count, most, what in (
        (switches, MOST_SWITCHES, "switches"),
        (linked, MOST_LINKED_SWITCHES, "switches that are linked to others"),
        (vertices * most_links, MOST_ENTRIES, f"entries ({vertices:,} vertices x {most_links:,} links of one)"),
    ):
        if count > most:
            raise InfeasibleError(
                f"the topology file has {count:,} {what}, above the limit of {most:,}; describe its family in [fabric]"
            )
