"""The Pareto set: what it keeps nothing beats, and whatever it leaves out something beats."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

from traincast.planning.pareto import pareto


@dataclass(frozen=True)
class Stub:
    """What the set looks at of a layout."""

    model: str
    tokens_per_s: float
    peak_bytes: float
    gpus: int
    cost: float | None = None
    energy_mwh: float | None = None
    layout: object = field(init=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "layout", SimpleNamespace(gpus=self.gpus))

    def per_token(self, name):
        return getattr(self, name)


def figures(one):
    return -one.tokens_per_s, one.peak_bytes, one.gpus, one.cost, one.energy_mwh


def test_it_is_what_no_other_beats():
    draw = random.Random(3)  # noqa: S311 - the same numbers every time
    choices = [Stub(draw.choice("ab"), *(draw.randint(1, 9) for _ in range(5))) for _ in range(200)]
    kept = pareto(choices)
    for one in choices:
        beaten = any(
            other.model == one.model
            and all(x <= y for x, y in zip(figures(other), figures(one), strict=True))
            and figures(other) != figures(one)
            for other in choices
        )
        assert beaten != any(figures(one) == figures(other) and one.model == other.model for other in kept)
    assert len(set(kept)) == len(kept)


def test_models_are_not_compared_and_an_unknown_cost_counts_nowhere():
    one, slow = Stub("a", 9.0, 1.0, 8, 1.0), Stub("a", 8.0, 1.0, 8, None)
    assert pareto([one, slow, Stub("b", 1.0, 5.0, 8)]) == (one, Stub("b", 1.0, 5.0, 8))
    assert pareto([one, Stub("a", 8.0, 1.0, 8, 0.5)]) == (one, Stub("a", 8.0, 1.0, 8, 0.5))
