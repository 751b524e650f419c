"""Which layouts need not be worked out with every choice of software: those that none of them can make fast enough.

No way to exchange tokens with experts is faster than one that takes no time, and no software launches faster than the
best of each axis. A layout with both (`ideal`) therefore bounds its steps with all choices from below; where that is
above the fastest step that was found and fits, it is not tried with the others.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from traincast.planning.options import Variant
from traincast.planning.screen.block import LayoutBlock
from traincast.planning.screen.family import LayoutFamily
from traincast.planning.screen.frontier import Frontier
from traincast.planning.screen.members import Member, ShareKey
from traincast.planning.space import Degrees

Key = tuple[Degrees, int]
"""Degrees and sequences of a microbatch."""
Blocks = Callable[[LayoutFamily], Iterator[LayoutBlock]]

SLACK = 0.05
"""How much above the fastest step a bound may be for its layouts to be tried all the same: finalists are that near."""
_FIRST = 24
"""Layouts that all choices are tried on first, those of the least bounds: one of them is nearly the fastest."""


def needed(
    families: Iterable[LayoutFamily], blocks: Blocks, frontier: Frontier, ideal: Callable[[Variant], Variant]
) -> Iterator[LayoutBlock]:
    """Yield the blocks that may hold a layout worth keeping; each is added to the frontier before the next is taken.

    The choice of software that the fastest layout has is tried on all of them, for what needs less memory. `ideal`
    returns the way of execution that no choice of software beats.
    """
    every = list(families)
    if len({_choice(each.variant) for each in every}) == 1:
        for family in every:
            yield from blocks(family)
        return
    bound = bounds(every, blocks, ideal)
    first = set(sorted(bound, key=lambda key: bound[key])[:_FIRST])
    main = _first_of_choices(every)
    for family in main:
        yield from blocks(restricted(family, first))
    best = frontier.fastest_variant
    done = first if best is not None else set()
    chosen = [each for each in every if best is None or _choice(each.variant) == _choice(best)]
    for family in chosen:
        yield from blocks(restricted(family, bound.keys() - (done if family in main else set())))
    # What recomputes so much that it cannot have the best software is slower than what does not, where that fits.
    others = every if frontier.fastest_variant is None or not _is_main(frontier, main) else main
    for family in others:
        least_s = frontier.fastest_s * (1 + SLACK)
        near = {key for key, step_s in bound.items() if step_s < least_s} - (done if family in main else set())
        yield from () if family in chosen else blocks(restricted(family, near))


def _first_of_choices(families: Iterable[LayoutFamily]) -> list[LayoutFamily]:
    """Return of each choice, and number of ranks on a node, the family with the best of what is never worse."""
    found: dict[tuple[object, ...], LayoutFamily] = {}
    for each in families:
        found.setdefault((_choice(each.variant), each.variant.precision, each.cluster.ranks_per_node), each)
    return list(found.values())


def _is_main(frontier: Frontier, main: Iterable[LayoutFamily]) -> bool:
    """Say whether the fastest layout has the best of what is never worse."""
    return any(each.variant == frontier.fastest_variant for each in main)


def bounds(
    families: Iterable[LayoutFamily], blocks: Blocks, ideal: Callable[[Variant], Variant]
) -> Mapping[Key, float]:
    """Return the least step of every layout with ideal software, whatever the memory that it needs."""
    whole: dict[tuple[Variant, int | None], LayoutFamily] = {}
    for family in families:
        variant = ideal(family.variant)
        key = variant, family.cluster.ranks_per_node
        _add(whole.setdefault(key, LayoutFamily(variant, family.cluster)), family, None)
    found: dict[Key, float] = {}
    for family in whole.values():
        for block in blocks(family):
            for rows, every_s in block.steps():
                least_K = np.min(every_s, axis=(0, *range(2, every_s.ndim)))
                for member, step_s in zip(block.members.members[rows.shares], least_K.tolist(), strict=True):
                    of = member.degrees, block.members.shares[member.share].micro_batch
                    found[of] = min(step_s, found.get(of, math.inf))
    return found


def restricted(family: LayoutFamily, wanted: Collection[Key]) -> LayoutFamily:
    """Return a family with those of its layouts alone that are wanted."""
    found = LayoutFamily(family.variant, family.cluster)
    _add(found, family, wanted)
    return found


def _add(to: LayoutFamily, family: LayoutFamily, wanted: Collection[Key] | None) -> None:
    keys: list[ShareKey] = list(family.shares)
    for place, members in family.members.items():
        kept = to.members.get(place, [])
        known = {(each.share, each.degrees) for each in kept}
        for each in members:
            key = keys[each.share]
            if wanted is None or (each.degrees, key.micro_batch) in wanted:
                number = to.shares.setdefault(key, len(to.shares))
                if (number, each.degrees) not in known:
                    known.add((number, each.degrees))
                    kept.append(Member(number, each.degrees))
        if kept:
            to.members[place] = kept


def _choice(variant: Variant) -> tuple[object, ...]:
    """Return what of a way of execution is tried, and not taken because it is never worse."""
    shared = dict(variant.software).get("moe_shared_expert_overlap")
    return variant.moe_dispatcher, variant.ways, shared
