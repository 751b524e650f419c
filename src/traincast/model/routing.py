"""How many nodes the experts of a token are on.

Node-limited routing picks some groups of experts for a token, then its experts among these alone; with a group on
each node that bounds the nodes it reaches. Source: DeepSeek-AI, arXiv 2405.04434, section 2.2.2, and arXiv 2412.19437,
section 2.1.2; Megatron-LM, megatron/core/transformer/moe/moe_utils.py (group_limited_topk).
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import comb

from traincast.model.model import Experts


@cache
def expected_nodes(node_of_expert: tuple[int, ...], topk: int, groups: int = 1, group_topk: int = 1) -> float:
    """Return the expected number of distinct nodes that the experts of a token are on.

    Parameters
    ----------
    node_of_expert : tuple of int
        The node of each expert; consecutive experts form the groups.
    topk : int
        Experts of a token, drawn evenly without replacement from the groups that were drawn before.
    groups : int
        Groups of equal size, of which `group_topk` are drawn evenly; 1: no limit.
    group_topk : int
        Groups that a token may use.

    Notes
    -----
    A node is missed if none of the k experts is one of its own c among the e experts of the chosen groups, with a
    chance of C(e - c, k) / C(e, k); that is averaged over the choices of groups by how many of them give each c.
    """
    size = len(node_of_expert) // groups
    allowed = group_topk * size
    total = 0.0
    for node in set(node_of_expert):
        held = [node_of_expert[at : at + size].count(node) for at in range(0, len(node_of_expert), size)]
        missed = sum(
            ways * comb(allowed - own, topk) for own, ways in _choices(held, group_topk).items() if own <= allowed
        )
        total += 1 - missed / (comb(groups, group_topk) * comb(allowed, topk))
    return total


def _choices(held: Sequence[int], chosen: int) -> Counter[int]:
    """Return in how many choices of groups a node has each number of experts, from what it has of each group."""
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for own in held:
        ways += Counter({(count + 1, total + own): number for (count, total), number in ways.items() if count < chosen})
    return Counter({total: number for (count, total), number in ways.items() if count == chosen})


def nodes_of_token(experts: Experts, ep: int, etp: int, ranks_per_node: int, *, limited: bool = True) -> float | None:
    """Return the expected nodes that a token's experts are on; None where one node holds all experts.

    Parameters
    ----------
    experts : Experts
        Of the model.
    ep, etp : int
        Ranks that share the experts out, and ranks that split each of them.
    ranks_per_node : int
        Ranks that reach each other without the network.
    limited : bool
        Whether groups limit the routing; else as if there were none.
    """
    each = experts.experts // ep
    node_E = tuple(at // each * etp // ranks_per_node for at in range(experts.experts))
    if len(set(node_E)) == 1:
        return None
    return expected_nodes(node_E, experts.topk, *((experts.groups, experts.group_topk) if limited else (1, 1)))
