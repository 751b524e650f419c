"""What would do where no layout fits: the least change of one thing at a time, found by screening again.

Nothing is extrapolated: of each remedy a layout is known that fits, with its step. Screens are few, and work steps out
only where something fits: numbers of GPUs are 1.5, 2, 3, 4, 6, ... times those that there are, sequences are halved and
then searched in eighths.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from msgspec.structs import replace

from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory import JobMemory, chance_of_oom, usable_bytes
from traincast.estimate.memory.fits import WARNED_ABOVE, shown_chance
from traincast.hardware.host import host_of
from traincast.job.flags import flag_of
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.degrees import degrees_of, micro_batches_of
from traincast.planning.layout import Layout
from traincast.planning.options import AXES
from traincast.planning.remedy import Remedy
from traincast.planning.screen.family import SpaceTables
from traincast.planning.screen.screen import Screen
from traincast.units import counted, format_share, format_size, format_time

Found: TypeAlias = tuple[Layout, float, float]
"""A layout with its step and its bytes."""

LEAST_SEQUENCE = 512
"""Tokens below which no shorter sequence is proposed: nobody trains a language model of today on so short ones."""
_EIGHTHS = 8
"""Parts of a halving that the longest sequence is searched in."""
MOST_GPUS = 4096
"""Most times as many GPUs that are tried."""
_FEW = 3
"""Numbers of GPUs and batches to either side that are screened where those that there are do not divide."""
_NEAR = 512
"""How far away they may be."""
_TRIES = 6
"""Numbers of GPUs, and smaller batches, that are tried."""
_NEAREST = 3
"""Layouts that are named where none fits."""
_HELPLESS = {"seq_length": "a shorter sequence", "global_batch": "a smaller global batch"}
"""What people try first, and are told where it does nothing."""
_SPARED = ("headroom", "precision")
"""What is not freed: memory that stays free has a remedy of its own, and other types are another training."""


def nothing_fits(screen: Screen, evaluated: int, *, looks: bool = True) -> InfeasibleError:
    """Return the error of a space in which nothing fits: what is nearest, by how much it misses, and what would do.

    That is looked for unless nobody asks.
    """
    request, limit = screen.space.request, screen.limit_bytes
    usable = usable_bytes(screen.setting.cluster.gpu.memory_bytes)
    nearest = screen.lightest(_NEAREST)
    missed = "; ".join(
        f"{layout.text} needs {format_size(peak)}, over by {format_size(peak - limit)}" for peak, layout in nearest
    )
    least = nearest[0][0]
    found = remedies(screen, least) if looks else ()
    would = _told(found) if looks else "plan it alone to be told what would do"
    kept = f" ({format_size(usable)} usable, of which {format_share(1 - limit / usable, None)} stays free)"
    text = (
        f"none of {counted(evaluated, 'layout')} of {request.model.name} on {counted(request.gpus, 'GPU')} "
        f"fits into {format_size(limit)}{kept if limit < usable else ''}; nearest: {missed}; {would}"
    )
    error = InfeasibleError(text, needed_bytes=least, limit_bytes=limit, remedies=found)
    return error.typed(**flags_of(found))


def nothing_divides(screen: Screen, error: InfeasibleError, *, looks: bool = True) -> InfeasibleError:
    """Return the error of a space that has no layout, with the nearest numbers of GPUs and batches that divide."""
    if not looks:
        return error
    request, found = screen.space.request, list[Remedy]()
    for field, count in (("gpus", request.gpus), ("global_batch", request.global_batch)):
        lower, higher = range(count - 1, count // 2, -1), range(count + 1, 2 * count + 1)
        for counts in (lower[:_NEAR], higher[:_NEAR]):
            divides = (each for each in counts if _has_degrees(screen, replace(request, **{field: each})))
            for value in islice(divides, _FEW):
                best = _again(screen, replace(request, **{field: value}))
                if best is not None:
                    found.append(_remedy(screen, field, value, best))
                    break
    text = str(error) if not found else f"{str(error).partition(';')[0]}; {_told(found, helpless=False)}"
    return InfeasibleError(text, remedies=found).typed(**flags_of(found))


def _has_degrees(screen: Screen, request: JobRequest) -> bool:
    space = replace(screen.space, request=request)
    return any(micro_batches_of(space, each.dp) for each in degrees_of(space))


def flags_of(found: Iterable[Remedy]) -> dict[str, str]:
    """Return how what would do is typed in a shell, as `TraincastError.typed` takes it."""
    return {each.field: flag_of(each.field) for each in found} | {"space": "--space"}


def _told(found: Sequence[Remedy], *, helpless: bool = True) -> str:
    """Return what would do, in words."""
    if not found:
        return "no single change was found that would do: fix less, use many more GPUs, or try space=full"
    would = "; ".join(
        f"{each.change} ({each.layout}, {format_size(each.peak_bytes)}, step about {format_time(each.step_s)}"
        f"{_risk(each)})"
        for each in found
    )
    fields = {each.field for each in found}
    others = [told for name, told in _HELPLESS.items() if helpless and name not in fields]
    return f"what would do: {would}" + (f"; {' or '.join(others)} alone would not" if others else "")


def _risk(remedy: Remedy) -> str:
    chance = remedy.chance_of_oom
    return f", runs out of memory with a chance of {shown_chance(chance)}" if chance > WARNED_ABOVE else ""


def remedies(screen: Screen, least_bytes: float) -> tuple[Remedy, ...]:
    """Return what would make a layout fit, each alone: what is fixed first, then offloading, sequence, batch, GPUs.

    `least_bytes` is what the smallest layout of the space needs.
    """
    found = [*_freed(screen), *_headroom(screen, least_bytes), *_offloaded(screen)]
    for field, search in (
        ("seq_length", _longest_sequence),
        ("global_batch", _largest_batch),
        ("gpus", lambda screen: _fewest_gpus(screen, least_bytes)),
    ):
        value, best = search(screen)
        if best is not None:
            found.append(_remedy(screen, field, value, best))
    return tuple(found)


def _remedy(screen: Screen, field: str, value: Any, found: Found) -> Remedy:  # noqa: ANN401
    layout, step_s, peak = found
    usable = usable_bytes(screen.setting.cluster.gpu.memory_bytes)
    named = "+".join(value) if isinstance(value, tuple) else value
    return Remedy(
        field=field,
        value=str(named).lower() if isinstance(named, bool) else named,
        layout=layout.text,
        step_s=step_s,
        peak_bytes=peak,
        chance_of_oom=chance_of_oom(peak, usable, screen.space.framework.name),
    )


def _again(screen: Screen, request: JobRequest | None = None, **changed: Any) -> Found | None:  # noqa: ANN401
    """Return the fastest layout that fits with something else asked for; None where there is none."""
    space = replace(screen.space, request=request or screen.space.request, **changed)
    try:
        return dataclasses.replace(screen, space=space, common=SpaceTables()).fastest()
    except TraincastError:
        return None


def _freed(screen: Screen) -> Iterator[Remedy]:
    """Yield what each single thing that is fixed would have to be, where it alone is in the way."""
    space = screen.space
    for name in AXES:
        held = name in space.fixed or name in space.most or getattr(space.request, name, None) is not None
        if not held or name in _SPARED:
            continue
        fixed, most = (_without(each, name) for each in (space.fixed, space.most))
        request = replace(space.request, **({name: None} if hasattr(space.request, name) else {}))
        found = _again(screen, request, fixed=fixed, most=most)
        value = None if found is None else getattr(found[0], name)
        if found is not None and value is not None:
            yield _remedy(screen, name, value, found)


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in values.items() if each != name}


def _headroom(screen: Screen, least_bytes: float) -> Iterator[Remedy]:
    """Yield how little memory may stay free for something to fit, where it fits into what programs can use."""
    usable = usable_bytes(screen.setting.cluster.gpu.memory_bytes)
    share = math.floor(100 * (1 - least_bytes / usable)) / 100
    if share < 0:
        return
    found = dataclasses.replace(screen, limit_bytes=usable * (1 - share)).fastest()
    if found is not None:
        yield _remedy(screen, "headroom", share, found)


def _offloaded(screen: Screen) -> Iterator[Remedy]:
    """Yield what the host would have to keep, as far as the framework offloads it and the host has the memory."""
    space = screen.space
    if space.allow_offload or space.request.offload_parameters:
        return
    only = {"optimizer": ("offload_optimizer", 1.0), "activations": ("offload_optimizer", 0.0)}
    for what in (each for each in only if each in space.framework.offloads):
        name, share = only[what]
        fixed = {**space.fixed, name: (share,), **({"offload_activations": (0,)} if share else {})}
        found = _again(screen, allow_offload=True, fixed=fixed)
        if found is not None and _host_holds(screen, found[0]):
            field = f"offload_{what}"
            yield _remedy(screen, field, getattr(found[0], field), found)


def _host_holds(screen: Screen, layout: Layout) -> bool:
    """Return whether a GPU's share of the memory of its host is enough for what a layout keeps there."""
    cluster = screen.setting.cluster
    job = resolve_job(replace(screen.space.request, **layout.request()), cluster)
    room = host_of(cluster.gpu, min(cluster.ranks_per_node, job.parallel.world_size)).memory_bytes
    return max(stage.host for stage in JobMemory(job).stages) <= room


def _longest_sequence(screen: Screen) -> tuple[int, Found | None]:
    """Return the longest sequence with which something fits, to an eighth of a halving."""
    request = screen.space.request

    def fits(length: int) -> Found | None:
        return _again(screen, replace(request, seq_length=length))

    halves = [request.seq_length >> each for each in range(1, 40) if request.seq_length >> each >= LEAST_SEQUENCE]
    if not halves or fits(halves[-1]) is None:
        return 0, None
    length, best = _first(halves, fits)
    part = length // _EIGHTHS
    longer = [] if part * _EIGHTHS != length else [length + part * each for each in range(_EIGHTHS - 1, 0, -1)]
    further, found = _first(longer, fits)
    return (length, best) if found is None else (further, found)


def _first(values: list[int], fits: Callable[[int], Found | None]) -> tuple[int, Found | None]:
    """Return the first of values, of which later ones fit sooner, that fits: bisected."""
    low, high, best = 0, len(values), None
    while low < high:
        middle = (low + high) // 2
        found = fits(values[middle])
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return (values[low], best) if best is not None else (0, None)


def _largest_batch(screen: Screen) -> tuple[int, Found | None]:
    """Return the largest half, quarter, ... of the batch with which something fits.

    It helps seldom: where fewer microbatches than a pipeline has stages are in flight.
    """
    request = screen.space.request
    for each in range(1, _TRIES + 1):
        batch = request.global_batch >> each
        if batch < 1 or batch << each != request.global_batch:
            break
        found = _again(screen, replace(request, global_batch=batch))
        if found is not None:
            return batch, found
    return 0, None


def _fewest_gpus(screen: Screen, least_bytes: float) -> tuple[int, Found | None]:
    """Return the fewest GPUs on which something fits, of 1.5, 2, 3, 4, ... times as many.

    More GPUs divide at best everything: that much fewer need not be tried.
    """
    request, least = screen.space.request, least_bytes / screen.limit_bytes
    doubled = (1 << each for each in range(1, MOST_GPUS.bit_length()))
    halves = [request.gpus * each for one in doubled for each in (one + one // 2, 2 * one)]
    counts = [each // 2 for each in halves if each % 2 == 0]
    for gpus in [each for each in counts if each >= least * request.gpus][:_TRIES]:
        found = _again(screen, replace(request, gpus=gpus))
        if found is not None:
            return gpus, found
    return 0, None
