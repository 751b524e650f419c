"""The sequences of a step: how long they are, how many a microbatch has, and what is packed into one.

Sequences of a data set are packed first fit, in an order that is always the same shuffle; those that are longer than a
pack are cut. Megatron Bridge does so: src/megatron/bridge/data/datasets/packed_sequence.py (``packing_algorithm``
"first_fit_shuffle", ``_pre_pad_data_point``) and packing_utils.py (``first_fit``). A sequence attends to itself alone,
padding to nothing; FLOPs are counted of real tokens and of the squares of real lengths, as Megatron-LM counts them
(megatron/core/datasets/data_schedule.py, ``seqlen_squared_sum_this_global_batch``).

Letters: L distinct lengths, N sequences, P packs, B bins of a distribution.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.files import csv_rows, read_text
from traincast.job.decisions import Decisions
from traincast.job.frameworks import Framework
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.units import LARGEST_WHOLE, count_of, counted, format_share, parse_tokens, quoted

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Lengths = tuple[tuple[int, int], ...]
"""Lengths of the sequences of a data set, the shortest first, each with how many there are."""

_INLINE = re.compile(r"[0-9][0-9.]*[kKmM]?([\s,:].*)?", re.DOTALL)
"""Lengths that are said, not the path of a file."""
_MOST_BYTES = 2**24
"""Largest file of lengths: four million of them; of more there is a histogram."""
_FEWEST_SEQUENCES, _MOST_SEQUENCES, _ENOUGH_PACKS = 2**12, 2**15, 2**8
"""Sequences that stand for a data set: so many that they make enough packs, between these bounds."""
_SHUFFLE = 0
"""Seed of the order in which they are packed: always the same."""
_ROUNDING = 1e-12
"""Share of the attention of packs by which they differ only as numbers are rounded."""
_CELLS, _FEWEST_BINS, _MOST_BINS = 2**14, 16, 2**9
"""Bins of the distribution of a sum, about; that of one pack has fewer the more packs are summed, between bounds."""


class Packing(Struct, frozen=True, kw_only=True):
    """What it means for attention that the sequences of a data set are packed."""

    met: float
    """Tokens of its own sequence to each token, in the mean: the sum of the squares of all lengths over their sum."""
    filled: float
    """Share of a pack that is not padding."""
    slowest: float = 1.0
    """Attention of the packs that ranks wait for, over the mean of all packs."""

    @property
    def length(self) -> int:
        """Tokens of equally long sequences that stand for all of them."""
        return max(1, round(self.met))

    @property
    def work(self) -> float:
        """Attention that a step waits for, over that of full packs of such sequences."""
        return self.filled * self.slowest * (self.met / self.length)


class Batch(Struct, frozen=True, kw_only=True):
    """What a step trains on."""

    seq_length: int
    """Tokens of a sequence."""
    micro_batch: int
    """Sequences of a microbatch on each replica."""
    global_batch: int
    """Sequences of a step."""
    packed_length: int | None = None
    """Tokens of the sequences that are packed into one and do not attend to each other; None: a sequence is one."""
    packing: Packing | None = None
    """How sequences of several lengths are packed; None: packs are full of sequences of `packed_length`."""

    @property
    def attended_length(self) -> int:
        """Tokens of what attention sees as one sequence."""
        return self.packed_length or self.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step trains on, without padding."""
        tokens = self.global_batch * self.seq_length
        return tokens if self.packing is None else round(tokens * self.packing.filled)


def note_long_sequence(request: JobRequest, decided: Decisions) -> None:
    """Note a sequence that is longer than those that the model is made for."""
    longest = request.model.max_positions
    if longest is not None and request.seq_length > longest:
        decided.note(
            "long-sequence",
            f"a sequence of {request.seq_length} tokens; {request.model.name} is made for at most {longest}",
        )


def decide_batches(request: JobRequest, decided: Decisions, dp: int) -> tuple[int, int]:
    """Return sequences per microbatch, and microbatches per step."""
    micro_batch = request.micro_batch
    if micro_batch is None:
        micro_batch = 1
        decided.note("assumed-micro-batch", "micro_batch is not given: 1 sequence")
    if request.global_batch % (dp * micro_batch):
        raise InfeasibleError(
            f"a global batch of {counted(request.global_batch, 'sequence')} does not divide into dp {dp} x micro_batch "
            f"{micro_batch} = {dp * micro_batch}; {_near_batches(request.global_batch, dp * micro_batch)}"
        )
    microbatches = request.global_batch // (dp * micro_batch)
    decided.note(
        "microbatches-from-batch",
        f"microbatches = {request.global_batch} sequences / (dp {dp} x micro_batch {micro_batch}) = {microbatches}",
    )
    return micro_batch, microbatches


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


def packing_of(
    request: JobRequest, framework: Framework, parallel: Parallel, micro_batch: int, *, zero: int, splits_heads: bool
) -> Packing:
    """Return what packing the lengths of a request means for a layout; errors as `decide_packing`."""
    lengths, size = read_lengths(request.packed_lengths or ""), request.seq_length
    meet = _replicas_that_meet(parallel, zero, framework)
    pieces = parallel.cp if request.cp_splits_packs and not splits_heads else 1
    slowest = _slowest(lengths, size, micro_batch, parallel.microbatches, meet, parallel.dp, pieces)
    return Packing(met=tokens_met(lengths, size), filled=pack(lengths, size).filled, slowest=slowest)


def _replicas_that_meet(parallel: Parallel, zero: int, framework: Framework) -> int:
    """Return how many replicas wait for each other in every microbatch; those of a pipeline may gather once a step."""
    once = parallel.pp > 1 and framework.pipelined_fsdp
    of_experts = parallel.ep * parallel.expert_tp // (parallel.tp * parallel.cp) if parallel.ep > 1 else 1
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


def _near_batches(batch: int, multiple: int) -> str:
    """Say which global batches near one are possible."""
    below, above = batch // multiple * multiple, -(-batch // multiple) * multiple
    return f"use {below} or {above}" if below else f"use {above}"


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


class Packs(Struct, frozen=True):
    """Packs that stand for those of a data set."""

    size: int
    """Tokens of a pack."""
    length_N: FloatArray
    """The sequences, pack by pack."""
    first_P: IntArray
    """The first sequence of each pack."""

    @property
    def filled(self) -> float:
        """The share of them that is not padding."""
        return float(self.length_N.sum()) / (self.size * len(self.first_P))

    @property
    def sequences(self) -> float:
        """Sequences of a pack, in the mean."""
        return len(self.length_N) / len(self.first_P)

    def slowest(self, summed: int, microbatches: int, meet: int, replicas: int, pieces: int = 1) -> float:
        """Return the attention that a step waits for, over the mean of all packs.

        Each of so many replicas draws its packs from all of them: `summed` for a microbatch, for which `meet` replicas
        wait for each other, and so for every microbatch; after the last one all replicas do. What they wait for is the
        mean of the largest of so many sums. With several `pieces` ranks of CP split packs by tokens.
        """
        pairs_P, cost_P = self.costs(1), self.costs(pieces)
        often = summed * microbatches
        low, width = cost_P.min(), np.ptp(cost_P)
        if replicas == 1 or width <= _ROUNDING * low:
            return float(cost_P.mean() / pairs_P.mean())
        bins = min(max(_CELLS // often, _FEWEST_BINS), _MOST_BINS)
        of_one_B = _distribution((cost_P - low) * ((bins - 1) / width), bins)
        of_microbatch_B = _largest(_sum(of_one_B, summed), meet)
        of_step_B = _largest(_sum(of_microbatch_B, microbatches), replicas / meet)
        longest = often * low + width / (bins - 1) * float(of_step_B @ np.arange(len(of_step_B)))
        return float(longest / (often * pairs_P.mean()))

    def costs(self, pieces: int) -> FloatArray:
        """Return the pairs of tokens that meet in each pack, twice what a mask leaves of them: [P].

        With several `pieces` those of the rank that has most of them, times so many.
        """
        square_N = np.square(self.length_N)
        if pieces == 1:
            pairs_P: FloatArray = np.add.reduceat(square_N, self.first_P)
            return pairs_P
        packs, end_N = len(self.first_P), np.cumsum(self.length_N)
        # Packs lie one after the other, each with its padding.
        padding_P = self.size * np.arange(packs) - np.concatenate(([0.0], end_N))[self.first_P]
        end_N = end_N + np.repeat(padding_P, np.diff(np.append(self.first_P, len(end_N))))
        bound_PB = self.size * (np.arange(packs)[:, None] + np.arange(2 * pieces + 1) / (2 * pieces))
        ended_PB = np.searchsorted(end_N, bound_PB, side="right")
        begun_PB = bound_PB - np.append(end_N - self.length_N, np.inf)[ended_PB]
        of_piece_PB = np.diff(np.append(0.0, np.cumsum(square_N))[ended_PB] + np.maximum(begun_PB, 0.0) ** 2)
        cost_P: FloatArray = pieces * (of_piece_PB[:, :pieces] + of_piece_PB[:, : pieces - 1 : -1]).max(axis=1)
        return cost_P


@lru_cache(maxsize=16)
def pack(lengths: Lengths, size: int) -> Packs:
    """Return packs of a size that stand for those of a data set: what a plan asks for with every layout.

    The last pack, for which few sequences may be left, is not among them where there are others.
    """
    length_L = np.minimum([length for length, _ in lengths], size)
    count_L = np.array([count for _, count in lengths], dtype=np.float64)
    total = count_L.sum()
    mean = (length_L * count_L).sum() / total
    count = min(max(ceil(_ENOUGH_PACKS * size / mean), _FEWEST_SEQUENCES), _MOST_SEQUENCES)
    at_N = (np.arange(count) + 0.5) / count * total
    drawn_N = length_L[np.minimum(np.searchsorted(np.cumsum(count_L), at_N, side="right"), len(length_L) - 1)]
    found = _first_fit(np.random.default_rng(_SHUFFLE).permutation(drawn_N).tolist(), size)
    kept = found[:-1] or found
    first_P = np.cumsum([0, *map(len, kept[:-1])])
    return Packs(size, np.array([length for each in kept for length in each], dtype=np.float64), first_P)


@lru_cache(maxsize=1024)
def _slowest(lengths: Lengths, size: int, *numbers: int) -> float:
    """Return `Packs.slowest` of packs of some lengths: many layouts of a plan have the same numbers."""
    return pack(lengths, size).slowest(*numbers)


def _first_fit(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the sequences of each pack: each goes into the first pack that has room for it."""
    packs: list[list[int]] = []
    least = min(lengths)
    # Packs with room for the shortest, in the order in which they were begun.
    room, open_packs = np.zeros(len(lengths), dtype=np.int64), list[list[int]]()
    for length in lengths:
        count = len(open_packs)
        place = int((room[:count] >= length).argmax()) if count else 0
        if place == count or room[place] < length:
            place = count
            packs.append([])
            open_packs.append(packs[-1])
            room[place] = size
        open_packs[place].append(length)
        room[place] -= length
        if room[place] < least:
            del open_packs[place]
            room[place : len(open_packs)] = room[place + 1 : len(open_packs) + 1]
    return packs


def _distribution(values: FloatArray, bins: int) -> FloatArray:
    """Return the distribution of values over whole numbers, each shared by the two around it: their mean stays."""
    below = np.minimum(values.astype(np.int64), bins - 2)
    above = (values - below) / len(values)
    density_B = np.zeros(bins)
    np.add.at(density_B, below, 1 / len(values) - above)
    np.add.at(density_B, below + 1, above)
    return density_B


def _sum(density_B: FloatArray, count: int) -> FloatArray:
    """Return the distribution of the sum of so many draws from one."""
    size = count * (len(density_B) - 1) + 1
    points = 1 << size.bit_length()
    found_B = np.maximum(np.fft.irfft(np.fft.rfft(density_B, points) ** count, points)[:size], 0.0)
    found_B /= found_B.sum()
    return found_B


def _largest(density_B: FloatArray, count: float) -> FloatArray:
    """Return the distribution of the largest of so many draws from one."""
    return np.diff(np.cumsum(density_B) ** count, prepend=0.0)
