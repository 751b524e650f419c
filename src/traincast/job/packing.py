"""Packed sequences with the lengths of a data set: how a job says them, and what ranks wait for.

FLOPs are counted of real tokens and of the squares of real lengths, as Megatron-LM counts them
(megatron/core/datasets/data_schedule.py, ``seqlen_squared_sum_this_global_batch``).
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.files import csv_rows, read_text
from traincast.job.batch import Batch, Packing
from traincast.job.decisions import Decisions
from traincast.job.frameworks import Framework
from traincast.job.packs import Lengths, Packs, pack, slowest_packs
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.units import LARGEST_WHOLE, count_of, format_share, parse_tokens, quoted

_INLINE = re.compile(r"[0-9][0-9.]*[kKmM]?([\s,:].*)?", re.DOTALL)
"""Lengths that are said, not the path of a file."""
PACKS_UP_TO = 4096
"""Longest sequence that is taken to be packed of short examples where a job does not say it: recipes that do so have
2,048 or 4,096 tokens, and who asks for more has examples that need them (MLPerf's, GovReport, fill 8,192)."""
_MOST_BYTES = 2**24
"""Largest file of lengths: four million of them; of more there is a histogram."""


def decide_packing(
    request: JobRequest, decided: Decisions, batch: Batch, parallel: Parallel, *, zero: int, splits_heads: bool
) -> Batch:
    """Return the batch with what its sequences are packed of, and by how much the longest packs hold others up.

    Replicas meet once a step; those that shard parameters or share experts do in every layer, so that each microbatch
    lasts as long as the longest among them. Ranks of CP hold a piece of each half of every sequence (Transformer
    Engine, ``thd_get_partitioned_indices``), which is as much for all of them, as are heads; or of each half of the
    pack (`JobRequest.cp_splits_packs`), where one may hold most of a long sequence.

    Raises
    ------
    ConfigError, InfeasibleError
        If lengths are given twice, or are longer than what they are packed into.
    FormatError
        If the file of lengths cannot be read.
    """
    packed, said, size = request.packed_length, request.packed_lengths, batch.seq_length
    if packed is not None and packed > size:
        raise InfeasibleError(f"sequences of {packed} tokens cannot be packed into {size}")
    if said is None:
        return batch
    if packed is not None:
        raise ConfigError(f"is {quoted(said)}, and packed_length is {packed}; give one of the two", "packed_lengths")
    lengths, micro_batch = read_lengths(said), batch.micro_batch
    packing = packing_of(request, decided.framework, parallel, micro_batch, zero=zero, splits_heads=splits_heads)
    decided.note("packed-lengths", _told(lengths, size, pack(lengths, size)))
    if packing.slowest > 1:
        meet = _replicas_that_meet(parallel, zero, decided.framework)
        who = f"the slowest of {parallel.dp} replicas has" if parallel.dp > 1 else "the slowest rank of CP has"
        who = f"in each microbatch {meet} replicas wait for the longest pack:" if meet > 1 else who
        more = format_share(packing.slowest - 1)
        decided.note("packs-differ", f"packs differ: {who} {more} more attention than the mean")
    return replace(batch, packed_length=packing.length, packing=packing)


def decide_packed_length(request: JobRequest, decided: Decisions) -> int | None:
    """Return the tokens of what is packed into a sequence; of fine-tuning that says nothing, as the framework does."""
    usual = decided.framework.finetuning_length
    open_ = request.packed_length is None and request.packed_lengths is None
    if not open_ or request.task == "pretrain" or not usual or not usual < request.seq_length <= PACKS_UP_TO:
        return request.packed_length
    decided.note(
        "assumed-packed-length",
        f"packed_length is not given: examples of {usual} tokens are packed into each sequence of "
        f"{request.seq_length}, as {decided.framework.name} fine-tunes by default",
    )
    return usual


def packing_of(
    request: JobRequest, framework: Framework, parallel: Parallel, micro_batch: int, *, zero: int, splits_heads: bool
) -> Packing:
    """Return what packing the lengths of a request means for a layout; errors as `decide_packing`."""
    lengths, size = read_lengths(request.packed_lengths or ""), request.seq_length
    meet = _replicas_that_meet(parallel, zero, framework)
    pieces = parallel.cp if request.cp_splits_packs and not splits_heads else 1
    slowest = slowest_packs(lengths, size, micro_batch, parallel.microbatches, meet, parallel.dp, pieces)
    return Packing(met=tokens_met(lengths, size), filled=pack(lengths, size).filled, slowest=slowest)


def _replicas_that_meet(parallel: Parallel, zero: int, framework: Framework) -> int:
    """Return how many replicas wait for each other in every microbatch; those of a pipeline may gather once a step."""
    once = parallel.pp > 1 and framework.pipelined_fsdp
    of_experts = parallel.expert_ranks // (parallel.tp * parallel.cp) if parallel.ep > 1 else 1
    of_parameters = parallel.sharing // parallel.cp if zero == 3 and not once else 1
    return min(parallel.dp, max(1, of_experts, of_parameters))


def _told(lengths: Lengths, size: int, packs: "Packs") -> str:
    """Say what was packed, and what became of it."""
    total = sum(count for _, count in lengths)
    mean = sum(min(length, size) * count for length, count in lengths) / total
    cut = sum(count for length, count in lengths if length > size) / total
    text = (
        f"sequences of {mean:.0f} tokens in the mean, {lengths[0][0]} to {lengths[-1][0]}, are packed first fit into "
        f"{size}: {packs.sequences:.1f} in a pack, {format_share(packs.filled)} of it filled; attention is that of "
        f"{tokens_met(lengths, size):.0f}, the mean weighted by tokens"
    )
    return text + (f"; {format_share(cut)} of them are longer, and cut" if cut else "")


def read_lengths(said: str) -> Lengths:
    """Return the lengths that a text says (``512:1000,8k:3``, each with how many there are), or a CSV of that path.

    A CSV has in each row a length, or a length and how many there are; it may begin with a header.

    Raises
    ------
    ConfigError, FormatError
        If it says no lengths; with the line of a file.
    """
    text = said.strip()
    if not text:
        raise ConfigError("is empty; give a CSV of lengths, or lengths such as 512:1000,8k:3", "packed_lengths")
    if not _INLINE.fullmatch(text):
        return _of_csv(read_text(Path(said), _MOST_BYTES), said)
    found = Counter[int]()
    for each in re.split(r"[\s,]+", text):
        try:
            length, count = _entry(each.split(":"))
        except ConfigError as error:
            raise ConfigError(str(error), "packed_lengths") from None
        found[length] += count
    return tuple(sorted(found.items()))


@lru_cache(maxsize=4)
def _of_csv(text: str, shown: str) -> Lengths:
    """Return the lengths of a CSV: a plan asks for those of the same text with every layout."""
    found, known = Counter[int](), dict[tuple[str, ...], tuple[int, int]]()
    for line, row in csv_rows(text, shown):
        cells = tuple(map(str.strip, row))
        if not any(cells) or (line == 1 and not re.search("[0-9]", "".join(cells))):
            continue
        if cells not in known:
            try:
                known[cells] = _entry(cells)
            except ConfigError as error:
                raise FormatError(str(error), shown, line) from None
        length, count = known[cells]
        found[length] += count
    if not found:
        raise FormatError("has no lengths; write one in each row, or one and how many there are", shown)
    return tuple(sorted(found.items()))


def _entry(cells: Sequence[str]) -> tuple[int, int]:
    """Return a length, and how many there are of it."""
    if len(cells) > 2:
        raise ConfigError(f"has {len(cells)} values; write a length, or a length and how many there are")
    count = count_of(cells[1]) if len(cells) > 1 else 1
    if count is None or count > LARGEST_WHOLE:
        raise ConfigError(f"{quoted(cells[1])} is not how many sequences there are; it must be a whole number from 1")
    return parse_tokens(cells[0]), count


def tokens_met(lengths: Lengths, size: int) -> float:
    """Return the tokens of its own sequence to each token, of sequences that are cut to a size."""
    cut = [(min(length, size), count) for length, count in lengths]
    return sum(length**2 * count for length, count in cut) / sum(length * count for length, count in cut)
