"""What tensor parallel ranks exchange around a block.

Sources: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 (sequence parallelism: an all-gather before and a
reduce-scatter after each block, the other way round in the backward pass, and the all-gather again there for the
gradient of the weight); Shoeybi et al. 2019, arXiv 1909.08053, section 3 (otherwise an all-reduce in each pass).
"""

from dataclasses import dataclass

from traincast.model.blocks.part import Exchange
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number


@dataclass(frozen=True, slots=True)
class Around:
    """Exchanges of a block, with the part that splits its outputs first and the one that sums up last."""

    enter_forward: tuple[Exchange, ...]
    enter_backward: tuple[Exchange, ...]
    leave_forward: tuple[Exchange, ...]
    leave_backward: tuple[Exchange, ...]


def around(share: Share, width: int | None = None) -> Around:
    """Return the exchanges around a block of a rank's share, or around a part that reads vectors of a width."""
    split, whole = share.splits_sequence, (share.tp > 1) & (share.sequence_parallel == 0)
    gather = exchange(share, "all_gather", split, width=width)
    scatter = exchange(share, "reduce_scatter", split, width=width)
    reduce = exchange(share, "all_reduce", whole, width=width)
    again = gather if share.trains_weights else ()
    return Around(
        enter_forward=gather,
        enter_backward=(*scatter, *again, *reduce),
        leave_forward=(*scatter, *reduce),
        leave_backward=gather,
    )


def exchange(
    share: Share, operation: str, takes_place: Number, count: Number = 1, *, width: int | None = None
) -> tuple[Exchange, ...]:
    """Return an exchange over tp of the hidden state, or of vectors of another width, where it takes place."""
    if takes_place is False:
        return ()
    size = share.tokens * (width or share.model.hidden) * share.execution.element_bytes
    return (Exchange(group="tp", operation=operation, size_bytes=size * takes_place, count=count),)
