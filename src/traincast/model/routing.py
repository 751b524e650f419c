"""How unequally tokens are spread over experts: what the busiest of the ranks that hold them gets over the mean.

A benchmark forces routers to choose every expert equally often. A router that is left to itself prefers some experts
to others, whatever the token, above all before an auxiliary loss has had time to work. Here the popularity of an expert
is log-normal, and a token picks its experts one after the other by their popularity (Plackett and Luce's model, which
is what the largest of scores with Gumbel noise are). Each layer prefers others, and every exchange waits for the
busiest rank, so what counts is the expected maximum over the ranks.
"""

from traincast.shipped import constant

ROUTINGS = ("balanced", "natural")
"""``balanced``: each expert gets as many tokens; ``natural``: a router that nothing balances, as at initialisation."""

POPULARITY_DEVIATION = 1.0
"""Standard deviation of the logarithm of an expert's popularity.

Source: two traced runs of 8 experts and top-1 at initialisation on 16 GPUs (fwyc0573/moe_mg, profiles of Megatron-LM):
the busiest rank had 1.43 times the mean tokens with EP 2 and 1.79 times with EP 4, 1.3 and 1.8 expected here.
"""

_DRAWS = 256
"""Draws of all experts' popularities; the mean of their maxima is within 3 %."""


def busiest_rank(experts: int, topk: int, ep: int, deviation: float = POPULARITY_DEVIATION) -> float:
    """Return the expected tokens of the busiest of `ep` expert ranks over the mean, where nothing balances them.

    It lies between 1 and the smaller of ep and experts / topk: no expert gets a token twice.
    """
    if ep == 1 or topk == experts:
        return 1.0
    return constant(_busiest_of_draws, experts, topk, ep, deviation)


def _busiest_of_draws(experts: int, topk: int, ep: int, deviation: float) -> float:
    """Return the mean over some draws of what the busiest rank gets: a constant of these numbers."""
    import random
    from statistics import NormalDist

    import numpy as np

    # Of the standard library, whose sequence stays the same between releases.
    uniform, normal = random.Random(0), NormalDist()  # noqa: S311 - no secret
    drawn = [normal.inv_cdf(uniform.random() or 0.5) for _ in range(_DRAWS * experts)]
    popularity_DE = np.exp(deviation * np.array(drawn).reshape(_DRAWS, experts))
    chosen_DE = np.zeros_like(popularity_DE)
    for _ in range(topk):
        # Mean over tokens: each picks its next expert among those it has not picked yet.
        left_DE = popularity_DE * (1.0 - chosen_DE)
        chosen_DE = np.minimum(chosen_DE + left_DE / left_DE.sum(axis=1, keepdims=True), 1.0)
    load_DR = chosen_DE.reshape(_DRAWS, ep, experts // ep).sum(axis=2)
    busiest_D = np.minimum(load_DR.max(axis=1) / load_DR.mean(axis=1), min(ep, experts / topk))
    return float(busiest_D.mean())
