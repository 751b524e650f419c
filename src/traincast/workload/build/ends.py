"""What stands before the first layer and after the last one, in the order of a pass."""

from collections.abc import Iterable

from traincast.model.blocks.part import Part
from traincast.model.structure import FIRST_BLOCKS, MTP_ENDS, last_blocks, parts_of
from traincast.workload.build.emit import Emitter
from traincast.workload.build.kernels import Counted, Exchange, Work, work_of
from traincast.workload.words import Phase


def head_rows(emit: Emitter, *, backward: bool) -> list[int]:
    """Return the final norm, LM head and loss, of further tokens, too, with what tensor parallel ranks exchange."""
    share, model = emit.share, emit.job.model
    found = [(_work(emit, parts_of(last_blocks(model, with_embedding=False), share)), 1)]
    if model.mtp_layers:
        found.append((_work(emit, parts_of(MTP_ENDS, share)), model.mtp_layers))
    calls: list[Counted] = []
    exchanges: list[Exchange] = []
    for work, count in found:
        calls += times([*work.backward, *work.weight] if backward else work.forward, count)
        exchanges += exchanged(work.backward_exchanges if backward else work.forward_exchanges, count)
    phase = Phase.BACKWARD if backward else Phase.FORWARD
    rows = emit.compute(f"head {'backward' if backward else 'forward'}", phase, calls)
    return rows + [row for each in merged(exchanges) for row in emit.exchange(each, phase)]


def embedding(emit: Emitter) -> Work:
    """Return the lookup of the tokens' vectors, with what tensor parallel ranks exchange for it."""
    return _work(emit, parts_of(FIRST_BLOCKS, emit.share))


def times(calls: list[Counted], count: float) -> list[Counted]:
    """Return calls that run so many times as often."""
    return [(call, often * count) for call, often in calls]


def exchanged(exchanges: list[Exchange], count: float) -> list[Exchange]:
    """Return exchanges that are done so many times as often."""
    return [Exchange(each.group, each.operation, each.size_bytes, each.count * count) for each in exchanges]


def merged(exchanges: list[Exchange]) -> list[Exchange]:
    """Add up equal exchanges, in the order of their first."""
    counts: dict[tuple[object, ...], Exchange] = {}
    for each in exchanges:
        key = (each.group, each.operation, each.size_bytes)
        before = counts[key].count if key in counts else 0.0
        counts[key] = Exchange(each.group, each.operation, each.size_bytes, before + each.count)
    return list(counts.values())


def _work(emit: Emitter, parts: Iterable[Part]) -> Work:
    return work_of(parts, trains_weights=emit.share.trains_weights)
