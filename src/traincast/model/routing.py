"""How unequally tokens are spread over experts: what the busiest of the ranks that hold them gets over the mean.

A benchmark forces routers to choose every expert equally often. A router that is left to itself prefers some experts
to others, whatever the token, above all before an auxiliary loss has had time to work. Here the popularity of an expert
is log-normal, and a token picks its experts one after the other by their popularity (Plackett and Luce's model, which
is what the largest of scores with Gumbel noise are). Each layer prefers others, and every exchange waits for the
busiest rank, so what counts is the expected maximum over the ranks.

Of a run that balances its experts, popularities still differ: a little for good, by what the balancing leaves, and
from document to document as much as at initialisation, for that is what experts are for. An exchange has the mean of
its documents, so that the fewer tokens are in it the more unequal it is, down to a single one.
"""

from collections.abc import Sequence
from math import gcd, sqrt

from traincast.shipped import constant

ROUTINGS = ("balanced", "trained", "natural", "consecutive")
"""``balanced``: each expert gets as many tokens; ``trained``: a router that a loss or a bias has balanced, as after the
first thousand steps; ``natural``: one that nothing balances, as at initialisation; ``consecutive``: a gate that
gives each token the experts after those of the token before, as of benchmarks: those of a token are on few ranks.

Sources: NVIDIA-NeMo/Automodel, components/moe/layers.py (FakeBalancedGate); pytorch/torchtitan, models/moe
(_debug_force_load_balance). Megatron-LM's --moe-router-force-load-balancing draws experts at random: ``balanced``."""

POPULARITY_DEVIATION = 1.0
"""Standard deviation of the logarithm of an expert's popularity.

Source: two traced runs of 8 experts and top-1 at initialisation on 16 GPUs (fwyc0573/moe_mg, profiles of Megatron-LM):
the busiest rank had 1.43 times the mean tokens with EP 2 and 1.79 times with EP 4, 1.3 and 1.8 expected here. Within a
domain of text a trained router is as unequal: DeepSeek-V3's busiest experts have up to ten times their share of one
(arXiv 2412.19437, figure 9), where 5 times is expected of the largest of 64 here.
"""

LEFT_BY_LOSS, LEFT_BY_BIAS = 0.22, 0.017
"""Deviation that remains over whole sets of text where an auxiliary loss balances, or a bias of each expert.

Source: Wang et al. 2024, arXiv 2408.15664, table 2, as recalled: of 64 experts the busiest has 0.72 and 0.52 more than
its share in models of 1B and 3B with the loss, and 0.04 in both with the bias; of 64 log-normal ones the largest is
expected there.
"""

DOCUMENT_TOKENS = 1000
"""Tokens that share a subject. Source: C4 has 156 billion tokens in 365 million documents (Dodge et al. 2021, arXiv
2104.08758), 427 each; a token is in one of about a thousand, as lengths are log-normal with a deviation near 1."""

_DRAWS = 256
"""Draws of all experts' popularities; the mean of their maxima is within 3 %."""


def trained_deviation(experts: int, topk: int, tokens: float, *, has_bias: bool) -> float:
    """Return the deviation of popularities in one exchange of a router that is balanced.

    Parameters
    ----------
    experts, topk : int
        Of which so many take a token.
    tokens : float
        All tokens of the exchange.
    has_bias : bool
        Whether biases of the choice balance it, or an auxiliary loss.
    """
    left = LEFT_BY_BIAS if has_bias else LEFT_BY_LOSS
    documents = max(1.0, tokens / DOCUMENT_TOKENS)
    # What remains is chance: an expert takes so many tokens, give or take its root.
    drawn = experts / (topk * max(1.0, tokens))
    return min(POPULARITY_DEVIATION, sqrt(left**2 + POPULARITY_DEVIATION**2 / documents + drawn))


def busiest_rank(experts: int, topk: int, ep: int, deviation: float = POPULARITY_DEVIATION) -> float:
    """Return the expected tokens of the busiest of `ep` expert ranks over the mean, by default where nothing balances.

    It lies between 1 and the smaller of ep and experts / topk: no expert gets a token twice.
    """
    if ep == 1 or topk == experts:
        return 1.0
    return constant(_busiest_of_draws, experts, topk, ep, deviation)


def consecutive_places(topk: int, place_E: Sequence[int]) -> float:
    """Return the mean number of places that a token's experts are on, where tokens take experts in their order.

    `place_E` is the place of each expert. Tokens start at multiples of topk, all around.
    """
    experts = len(place_E)
    starts = range(0, experts, gcd(experts, topk))
    return sum(len({place_E[(start + at) % experts] for at in range(topk)}) for start in starts) / len(starts)


def _busiest_of_draws(experts: int, topk: int, ep: int, deviation: float) -> float:
    """Return the mean over some draws of what the busiest rank gets: a constant of these numbers."""
    import numpy as np

    popularity_DE = np.exp(deviation * np.array(constant(_normal_draws, experts)).reshape(_DRAWS, experts))
    chosen_DE = np.zeros_like(popularity_DE)
    for _ in range(topk):
        # Mean over tokens: each picks its next expert among those it has not picked yet.
        left_DE = popularity_DE * (1.0 - chosen_DE)
        chosen_DE = np.minimum(chosen_DE + left_DE / left_DE.sum(axis=1, keepdims=True), 1.0)
    load_DR = chosen_DE.reshape(_DRAWS, ep, experts // ep).sum(axis=2)
    busiest_D = np.minimum(load_DR.max(axis=1) / load_DR.mean(axis=1), min(ep, experts / topk))
    return float(busiest_D.mean())


def _normal_draws(experts: int) -> tuple[float, ...]:
    """Return standard normal numbers for all draws, each expert one."""
    import random
    from statistics import NormalDist

    # Of the standard library, whose sequence stays the same between releases.
    uniform, normal = random.Random(0), NormalDist()  # noqa: S311 - no secret
    return tuple(normal.inv_cdf(uniform.random() or 0.5) for _ in range(_DRAWS * experts))
