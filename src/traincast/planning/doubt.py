"""How certain it is which layout is the fastest: the same errors act on all layouts, as much as each responds.

What forecasts may be off by (`traincast.simulation.differences`) is drawn from normal distributions, once for all
layouts, which are off alike by what they share; the share of draws in which a layout is the fastest is the probability
that it is the best. In addition each layout has errors of its own, and larger ones where it has settings that hardly
any published run has (`traincast.planning.published`): the fastest of many forecasts is the fastest in part by its
error, and the more so the less is known of it. So what counts for the choice is the cautious step, which its own errors
exceed in one of five cases.

Letters: N layouts, C causes of errors, D draws.
"""

import math
from collections.abc import Sequence

import numpy as np

from traincast.planning.finalists import Finalist
from traincast.planning.published import FEWEST, kind_of, unpublished
from traincast.simulation.differences import deviation_between, moves
from traincast.workload.ops import FloatArray

DRAWS = 4096
_SEED = 1
OWN_DEVIATION = 0.01
"""Deviation of what no class of work explains and layouts do not share. Assumed: a third of what families of runs show
beyond the factors (`traincast.simulation.confidence`)."""
UNPUBLISHED_DEVIATION = 0.08
"""Deviation that comes to it where hardly any published run has a setting of the layout. Published runs with a setting
that no other source has are 5.4 % from the middle of the others of their family, the others 1.4 % (medians): what is
between is a deviation of 7.7 % (`studies/published_settings.py --distances`)."""
CAUTION = 0.8416
"""Deviations that a normal distribution exceeds in one of five cases."""
FORGIVEN = math.exp(CAUTION * (math.hypot(OWN_DEVIATION, UNPUBLISHED_DEVIATION) - OWN_DEVIATION))
"""How much longer, as a factor, the step of a layout may be that is preferred to one with unpublished settings."""


def drawn_steps(finalists: Sequence[Finalist]) -> FloatArray:
    """Return the steps of layouts in every draw, [N, D] seconds, without what moves all of them alike."""
    found = [moves(each.result.doubts or {}) for each in finalists]
    names = sorted(set().union(*found), key=str)
    answer_NC = np.array([[each.get(name, 0.0) for name in names] for each in found])
    # What moves all alike tells none of them apart.
    answer_NC = answer_NC[:, np.ptp(answer_NC, axis=0) > 0]
    draws = np.random.default_rng(_SEED)
    shared = draws.standard_normal((answer_NC.shape[1], DRAWS))
    own = draws.standard_normal((len(finalists), DRAWS)) * np.array(list(map(own_deviation, finalists)))[:, None]
    step_N = np.array([each.step_s for each in finalists])
    steps: FloatArray = step_N[:, None] * np.exp(answer_NC @ shared + own)
    return steps


def own_deviation(finalist: Finalist) -> float:
    """Return the deviation of the logarithm of a layout's step that no other layout shares."""
    risky = bool(unpublished(finalist.layout, finalist.done.job))
    return math.hypot(OWN_DEVIATION, UNPUBLISHED_DEVIATION * risky)


def cautious_s(finalist: Finalist) -> float:
    """Return the step that a layout's own errors exceed in one of five cases."""
    return finalist.step_s * math.exp(CAUTION * own_deviation(finalist))


def risks(finalist: Finalist) -> tuple[str, ...]:
    """Return what is risky about a layout, in words."""
    found: dict[str, list[str]] = {}
    for name, value in unpublished(finalist.layout, finalist.done.job):
        found.setdefault(name, []).append(value)
    job, settings = finalist.done.job, ", ".join(f"{name} {' '.join(values)}" for name, values in found.items())
    of = f"published runs of {kind_of(job.model)} models in code like that of {job.framework.name}"
    return (f"fewer than {FEWEST} {of} have {settings}",) if found else ()


def probabilities(steps_ND: FloatArray) -> tuple[float, ...]:
    """Return the probability of each layout to be the fastest."""
    wins = np.bincount(np.argmin(steps_ND, axis=0), minlength=len(steps_ND))
    return tuple((wins / steps_ND.shape[1]).tolist())


def regrets(steps_ND: FloatArray) -> tuple[float, ...]:
    """Return how much longer the step of each layout is than the fastest one's on average, as a share."""
    return tuple((steps_ND / steps_ND.min(axis=0) - 1).mean(axis=1).tolist())


def tied(finalists: Sequence[Finalist]) -> tuple[bool, ...]:
    """Return which layouts are nearer to the first, the fastest, than the difference is uncertain: not to be told."""
    first = finalists[0]

    def spread(each: Finalist) -> float:
        shared = deviation_between(first.result.doubts or {}, each.result.doubts or {})
        return math.hypot(shared, own_deviation(first), own_deviation(each))

    return tuple(each is first or math.log(each.step_s / first.step_s) <= spread(each) for each in finalists)


def chance_faster(one: Finalist, other: Finalist) -> float:
    """Return the probability that one layout's step is shorter than another's."""
    one_D, other_D = drawn_steps((one, other))
    return float((one_D < other_D).mean())
