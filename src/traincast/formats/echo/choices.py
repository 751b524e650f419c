"""The layouts that rank traces allow, the likeliest first.

What is not written has to agree with everything the traces say: the rank and stage of each file bound the ranks of a
stage; experts are spread evenly over ranks of a stage; tokens that leave one rank of a group of experts arrive at
another; who reduces gradients has replicas. Of what agrees, degrees that are powers of two are likelier than others,
then experts of a usual width, or with the tokens that a lone GPU found for its own, then fewer ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import fsum, gcd, isqrt, log2
from typing import NamedTuple

from traincast.diagnostics import Notebook
from traincast.formats.echo import experts
from traincast.formats.echo.files import Run

_USUAL_WIDTH = 3 * 3.5
"""Weights of an expert over the square of the hidden size: three matrices 3.5 times as wide (Mixtral 8x7B, 8x22B: 3.5
and 2.7)."""
_FEW_EXPERTS = 16
"""Experts up to which they are as wide as a feed-forward part without experts."""
_FURTHER = 4
"""How many times the ranks of a stage are doubled where nothing limits them."""
_OTHERS = 4
"""Numbers of ranks of a stage that are not a power of two and are looked at."""
_MOST_CHOICES = 12
_UNUSUAL = 2
"""Places by which a layout of an unusual size stands further back."""
_FOR_A_STAGE = 4
"""Microbatches for each stage, with which a pipeline stands still for a fifth of its time."""


class StageLayout(NamedTuple):
    """How the ranks of a stage share its work, in addition to tp and cp."""

    dp: int
    ep: int


class Known(NamedTuple):
    """What is known of a stage besides: degrees that names or the user give (None: open), and whether dp is above 1."""

    dp: int | None
    ep: int | None
    replicated: bool | None


def stage_layouts(
    run: Run, tp_cp: int, bounds: tuple[int, int | None], known: Known, experts_of_layer: int | None
) -> list[StageLayout]:
    """Return the layouts of a stage that agree with the traces, the likeliest first; at least one.

    Parameters
    ----------
    run : Run
    tp_cp : int
        Ranks that share one replica of the data.
    bounds : tuple
        Least and most ranks of a stage.
    known : Known
    experts_of_layer : int, optional
        0 where their number is not known, None where there are none.
    """
    sizes = [known.dp * tp_cp] if known.dp else list(_sizes(tp_cp, *bounds))
    found = [StageLayout(size // tp_cp, ep) for size in sizes for ep in _ep_degrees(size, known.ep, experts_of_layer)]
    if known.replicated is not None and known.dp is None:
        found = [each for each in found if (each.dp > 1) == known.replicated] or found
    arrive = {each: _tokens_arrive(run, each.dp * tp_cp, each.ep) for each in found}
    found = [each for each in found if arrive[each] is not False] or found
    # Several groups together are a group in which tokens arrive, too.
    fewest = min((each.ep for each in found if arrive[each]), default=None)
    found = [each for each in found if fewest in (None, each.ep)]
    if not found:
        return [StageLayout(known.dp or 1, known.ep or 1)]
    misfit = {each.ep: _misfit(run, each.ep, experts_of_layer) for each in found}
    return sorted(found, key=lambda each: (not _is_power(each.dp), misfit[each.ep], each.dp))


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


def _sizes(tp_cp: int, least: int, most: int | None) -> Iterator[int]:
    """Yield numbers of ranks that a stage may have: doubled from the fewest on, then a few others."""
    fewest = -(-least // tp_cp)
    first = 1 << max(fewest - 1, 0).bit_length()
    doubled = [first << step for step in range(_FURTHER + 1) if most is None or (first << step) * tp_cp <= most]
    yield from (each * tp_cp for each in doubled)
    if most is not None:
        others = (each for each in range(fewest, min(most // tp_cp, fewest + 2 * _OTHERS) + 1) if not _is_power(each))
        yield from (each * tp_cp for _, each in zip(range(_OTHERS), others, strict=False))


def _ep_degrees(size: int, known: int | None, experts_of_layer: int | None) -> list[int]:
    if experts_of_layer is None or known is not None:
        return [known or 1]
    both = gcd(size, experts_of_layer)
    small = [each for each in range(1, isqrt(both) + 1) if both % each == 0]
    return sorted({*small, *(both // each for each in small)} - {1})


def _tokens_arrive(run: Run, size: int, ep: int) -> bool | None:
    """Tell whether what leaves the ranks of each traced group of experts arrives there, layer by layer.

    None where no group was traced as a whole.
    """
    if ep == 1 or run.is_profile:
        return None
    arrive = None
    stages: dict[tuple[int | None, int], list[int]] = {}
    for rank, trace in run.traces.items():
        stages.setdefault((trace.stage, rank % size // ep), []).append(rank)
    for ranks in stages.values():
        if len(ranks) == ep:
            layers = [experts.layers_of(run.traces[rank].named("forward_step")) for rank in ranks]
            for of_ranks in zip(*layers, strict=False):
                if sum(each.routed for each in of_ranks) != sum(each.traced for each in of_ranks):
                    return False
                arrive = True
    return arrive


def _misfit(run: Run, ep: int, experts_of_layer: int | None) -> float:
    """Return how far experts on so many ranks are from what is usual, as a binary logarithm; 0 where nothing tells."""
    layers = experts.layers_of(run.first.named("forward_step")[:1])
    if not experts_of_layer or not layers:
        return 0.0
    if run.is_profile:
        routed = fsum(each.routed for each in layers)
        share = fsum(each.traced for each in layers) / routed if routed else 0.0
        return abs(log2(share * ep)) if share else 0.0
    reduced = max((op.shape[0] for op in run.first.named("edp_allreduce") if op.shape), default=0)
    if not reduced or not layers[0].hidden or experts_of_layer > _FEW_EXPERTS:
        return 0.0
    own = experts_of_layer / ep
    return abs(log2(reduced / len(layers) / layers[0].hidden ** 2 / own / _USUAL_WIDTH))


def other_layouts(
    tps: Sequence[int], pps: Sequence[int], stages: Mapping[int, Sequence[StageLayout]], microbatches: int | None
) -> list[dict[str, int]]:
    """Return the other layouts that the traces allow, the likeliest first, as fields of a layout.

    Parameters
    ----------
    tps, pps : sequence of int
        Likely degrees, the one that is taken first.
    stages : mapping
        Of each tp the layouts of a stage.
    microbatches : int or None
        Of the run; None where a lone GPU played one of them, and a run had as many as its stages need to be busy.
    """
    found: list[tuple[int, dict[str, int]]] = []
    for (t, tp), (p, pp) in product(enumerate(tps), enumerate(pps)):
        batches = (1, _FOR_A_STAGE * pp) if microbatches is None and pp > 1 else (microbatches or 1,)
        for (s, (dp, ep)), (m, batch) in product(enumerate(stages[tp]), enumerate(batches)):
            unlikely = t + p + s + m + (0 if _is_power(dp) else _UNUSUAL)
            found.append((unlikely, {"tp": tp, "dp": dp, "pp": pp, "ep": ep, "microbatches": batch}))
    return [fields for _, fields in sorted(found, key=lambda each: each[0])[1 : 1 + _MOST_CHOICES]]


def say_of_stage(
    run: Run, stages: list[StageLayout], bounds: tuple[int, int | None], experts_of_layer: int | None, notes: Notebook
) -> None:
    """Note what the layout of a stage follows from, and warn where others agree with the traces as well."""
    (least, most), has_experts = bounds, experts_of_layer is not None
    ranks = ", ".join(f"rank {rank} is of stage {trace.stage}" for rank, trace in list(run.traces.items())[:2])
    between = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
    why = f"{ranks}{' ...' if len(run.traces) > 2 else ''}, so a stage has {between} ranks"
    if has_experts:
        why += f"; {f'{experts_of_layer} experts' if experts_of_layer else 'experts'} are spread over some of them"
        layers = experts.layers_of(run.first.named("forward_step")[:1])
        if run.is_profile and layers:
            why += f", and {layers[0].traced:,} of {layers[0].routed:,} tokens go to those of the traced rank"

    def shown(layout: StageLayout) -> str:
        return f"dp {layout.dp}" + (f" ep {layout.ep}" if has_experts else "")

    code = "ep-from-experts" if has_experts else "dp-from-stage"
    if len(stages) == 1:
        if has_experts:
            notes.assume(code, f"{shown(stages[0])}: {why}", None)
        return
    others = ", ".join(map(shown, stages[1:4])) + (" ..." if len(stages) > 4 else "")
    flags = "--dp and --ep" if has_experts else "--dp"
    notes.warn(code, f"{shown(stages[0])} is taken: {why}; {others} would agree as well (give {flags})", None)
