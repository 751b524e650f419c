"""How few microbatches have as many in flight as there ever are: rules of schedules, where their orders settle.

Letters: P stages, M microbatches.
"""

from collections.abc import Callable

Fewer = Callable[[int, int, bool], int]
"""(P, M, whether passes run as one) -> the fewest microbatches whose order has the same moments as that of M."""


def as_many(stages: int, microbatches: int, pairs: bool) -> int:  # noqa: ARG001
    """Return all of them, for an order about which nothing is known."""
    return microbatches


def settled(rounds: int, step: int | None = None) -> Fewer:
    """Return the rule of orders whose number in flight stops growing at so many microbatches per stage.

    Parameters
    ----------
    step : int, optional
        In what steps they may be left out; by default one for each stage.
    """

    def fewer(stages: int, microbatches: int, pairs: bool) -> int:
        # One more warms up for pairs, and another one where there are no virtual stages.
        more = microbatches - (rounds + pairs) * stages
        return microbatches - more + more % (step or stages) if more > 0 else microbatches

    return fewer
