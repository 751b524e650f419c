"""What is asked for in a job and has nothing to work on there: it is said, not ignored in silence."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from traincast.diagnostics import Note
from traincast.job.job import JobRequest
from traincast.job.parallel import Parallel


class _Need(NamedTuple):
    """What a field needs to have an effect."""

    field: str
    holds: Callable[[JobRequest, Parallel, int], bool]
    """Whether it is there, by the request, the degrees and the stage of ZeRO."""
    why: str
    """When it has no effect, and why; ``{zero}`` stands for the stage of ZeRO."""


def _has_replicas(_: JobRequest, parallel: Parallel, __: int) -> bool:
    return max(parallel.dp * parallel.cp, parallel.edp) > 1


_NEEDS = (
    _Need("overlap_tp", lambda _, parallel, __: parallel.tp > 1, "with tp 1"),
    _Need("overlap_p2p", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    _Need("embedding_as_layer", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    _Need("head_as_layer", lambda _, parallel, __: parallel.pp > 1, "with pp 1"),
    _Need("overlap_grad_reduce", _has_replicas, "with dp 1 and cp 1: no gradients are reduced"),
    _Need("overlap_param_gather", lambda _, __, zero: zero > 0, "with zero {zero}: no parameters are gathered"),
    _Need("zero", lambda _, parallel, __: parallel.dp * parallel.cp > 1, "with dp 1 and cp 1: no ranks share state"),
    _Need(
        "deduplicated_dispatch", lambda request, _, __: request.model.experts is not None, "on a model without experts"
    ),
    _Need(
        "deduplicated_dispatch",
        lambda request, parallel, _: request.model.experts is None or parallel.ep > 1,
        "with ep 1: no tokens are sent",
    ),
)


def unused_fields(request: JobRequest, parallel: Parallel, zero: int) -> Iterator[Note]:
    """Yield a note for each field that is turned on and has no effect on this job.

    Parameters
    ----------
    request : JobRequest
        What the user says; a field that is off says what is so anyway.
    parallel : Parallel
        The decided degrees.
    zero : int
        The decided stage of ZeRO.
    """
    for field, holds, why in _NEEDS:
        said = getattr(request, field)
        if said and not holds(request, parallel, zero):
            value = "" if said is True else f" {said}"
            text = f"{field}{value} has no effect {why.format(zero=zero)}"
            yield Note(f"{field.replace('_', '-')}-unused", text)
    if request.schedule == "interleaved" and parallel.pp == 1:
        yield Note("schedule-unused", "schedule interleaved has no effect with pp 1: there is no pipeline")
