"""Which layouts need not be worked out with every choice of software: those that none of them can make fast enough.

No way to exchange tokens with experts is faster than one that takes no time, and no software launches faster than the
best of each axis. A layout with both (`ideal`), one microbatch at a time or two of which one hides the other's host,
therefore bounds its steps with all choices from below; where that is above the fastest step that was found and fits,
it is not tried with the others.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from traincast.planning.options import Variant
from traincast.planning.screen.block import LayoutBlock
from traincast.planning.screen.blocks import FamilyBlocks, Key
from traincast.planning.screen.family import LayoutFamily
from traincast.planning.screen.frontier import Frontier

Choice = tuple[object, ...]
"""What of a way of execution is tried, and not taken because it is never worse."""

SLACK = 0.02
"""How much above the fastest step a bound may be for its layouts to be tried all the same: finalists are that near."""


def needed(
    every: Sequence[FamilyBlocks],
    frontier: Frontier,
    ideal: Callable[[Iterable[LayoutFamily]], Iterable[FamilyBlocks]],
    is_usual: Callable[[Variant], bool],
) -> Iterator[LayoutBlock]:
    """Yield the blocks that may hold a layout worth keeping; each is added to the frontier before the next is taken.

    The choice of software that recipes have is tried on all layouts, for a first step and for what needs less memory.
    `ideal` returns all layouts with the software that no choice beats.
    """
    choices = list(dict.fromkeys(_choice(each.family.variant) for each in every))
    usual = [_choice(each.family.variant) for each in every if is_usual(each.family.variant)] or choices
    chosen = [each for each in every if _choice(each.family.variant) == usual[0]]
    for family in chosen:
        yield from family.blocks()
    if len(choices) == 1:
        return
    bound, main, fits = bounds(ideal(each.family for each in every)), _first_of_choices(every), set[Choice]()
    best = frontier.fastest_variant
    # What recomputes so much that it cannot have the best software is slower than what does not, where that fits.
    whole = best is None or all(each.family.variant != best for each in main)
    for family in every:
        choice, had = _choice(family.family.variant), frontier.feasible
        if family in chosen or not (whole or family in main or choice not in fits):
            continue
        least_s = frontier.fastest_s * (1 + SLACK)
        yield from family.blocks({key for key, step_s in bound.items() if step_s < least_s})
        if frontier.feasible > had:
            fits.add(choice)


def bounds(families: Iterable[FamilyBlocks]) -> Mapping[Key, float]:
    """Return the least step of every layout of families with ideal software, whatever the memory that it needs."""
    found: dict[Key, float] = {}
    for family in families:
        for block in family.blocks():
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
