"""Which layouts need not be worked out with every choice of software: those that none of them can make fast enough.

No way to exchange tokens with experts is faster than one that takes no time, and no software launches faster than the
best of each axis. A layout with both (`ideal`), one microbatch at a time or two of which one hides the other's host,
therefore bounds its steps with all choices from below; where that is above the fastest step that was found and fits,
it is not tried with the others.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from traincast.crew import Crew
from traincast.planning.execution import Variant
from traincast.planning.screen.block import LayoutBlock
from traincast.planning.screen.blocks import FamilyBlocks, Key
from traincast.planning.screen.family import LayoutFamily
from traincast.planning.screen.frontier import Frontier

Choice = tuple[object, ...]
"""What of a way of execution is tried, and not taken because it is never worse."""


SLACK = 0.02
"""How much above the fastest step a bound may be for its layouts to be tried all the same: finalists are that near."""


_AT_ONCE = 6
"""Parts that are worked out before the fastest step is looked at again, or more: several processes have some to do."""


def work_out(
    every: Sequence[FamilyBlocks],
    frontier: Frontier,
    ideal: Callable[[Iterable[LayoutFamily]], Iterable[FamilyBlocks]],
    is_usual: Callable[[Variant], bool],
    crew: Crew,
) -> None:
    """Add every layout to a frontier that may be worth keeping.

    The choice of software that recipes have is tried on all layouts, for a first step and for what needs less memory;
    the others on the pipelines that are the most promising first. `ideal` returns all layouts with the software that
    no choice beats. The processes of a crew share the work.
    """
    choices = list(dict.fromkeys(_choice(family.family.variant) for family in every))
    usual = [_choice(family.family.variant) for family in every if is_usual(family.family.variant)] or choices
    chosen = [family for family in every if _choice(family.family.variant) == usual[0]]
    if len(choices) == 1:
        frontier.work_out(blocks_of(chosen), crew)
        return
    bounds = bounds_of(ideal(family.family for family in every))
    bound = least_of_all(frontier.work_out_with(blocks_of(chosen), bounds, crew)[1])
    main, rest = _first_of_choices(every), [family for family in every if family not in chosen]
    best = frontier.fastest_variant
    first = [family for family in rest if family in main]
    fits = _work_out_promising(first, bound, frontier, crew)
    # What recomputes so much that it cannot have the best software is slower than what does not, where that fits.
    whole = best is None or all(family.family.variant != best for family in main)
    left = [f for f in rest if f not in main and (whole or _choice(f.family.variant) not in fits)]
    _work_out_promising(left, bound, frontier, crew)


def blocks_of(families: Iterable[FamilyBlocks]) -> list[Iterator[LayoutBlock]]:
    """Return the blocks of families, those together that have work in common."""
    return [family.blocks(stages) for family in families for stages in family.stages]


def _work_out_promising(
    families: Sequence[FamilyBlocks], bound: Mapping[Key, float], frontier: Frontier, crew: Crew
) -> set[Choice]:
    """Work out what the fastest step so far does not rule out, and return the choices of which something fits."""
    fits, of_stages = set[Choice](), dict[int, dict[Key, float]]()
    for key, step_s in bound.items():
        of_stages.setdefault(key[0].pp, {})[key] = step_s
    promising = sorted(of_stages, key=lambda stages: min(of_stages[stages].values()))
    at_once = -(-_AT_ONCE // max(1, len(families)))
    for begin in range(0, len(promising), at_once):
        least_s = frontier.fastest_s * (1 + SLACK)
        of_some = {stages: of_stages[stages].items() for stages in promising[begin : begin + at_once]}
        wanted = {stages: {key for key, step_s in of if step_s < least_s} for stages, of in of_some.items()}
        todo = [(each, stages) for each in families for stages in each.stages if wanted.get(stages)]
        found = frontier.work_out([each.blocks(stages, wanted[stages]) for each, stages in todo], crew)
        fits |= {_choice(each.family.variant) for (each, _), of in zip(todo, found, strict=True) if of.feasible}
    return fits


def bounds_of(families: Iterable[FamilyBlocks]) -> list[Callable[[], Mapping[Key, float]]]:
    """Return what works out the least step of every layout of families, whatever the memory that it needs."""
    return [partial(_least_s, each) for each in blocks_of(families)]


def least_of_all(bounds: Iterable[Mapping[Key, float]]) -> Mapping[Key, float]:
    """Return the least step of every layout of several families."""
    found: dict[Key, float] = {}
    for each in bounds:
        for key, step_s in each.items():
            found[key] = min(step_s, found.get(key, math.inf))
    return found


def _least_s(blocks: Iterable[LayoutBlock]) -> Mapping[Key, float]:
    found: dict[Key, float] = {}
    for block in blocks:
        pipeline = block.job.pipeline.schedule, block.job.parallel.vpp
        for rows, every_s in block.steps():
            least_K = np.min(every_s, axis=(0, *range(2, every_s.ndim)))
            for member, step_s in zip(block.members.members[rows.shares], least_K.tolist(), strict=True):
                key = member.degrees, block.members.shares[member.share].micro_batch, *pipeline
                found[key] = min(step_s, found.get(key, math.inf))
    return found


def _first_of_choices(families: Iterable[FamilyBlocks]) -> list[FamilyBlocks]:
    """Return of each choice, and number of ranks on a node, the family with the best of what is never worse."""
    found: dict[tuple[object, ...], FamilyBlocks] = {}
    for each in families:
        variant = each.family.variant
        found.setdefault((_choice(variant), variant.precision, each.family.cluster.ranks_per_node), each)
    return list(found.values())


def _choice(variant: Variant) -> Choice:
    shared = dict(variant.software).get("moe_shared_expert_overlap")
    return variant.moe_dispatcher, variant.ways, shared
