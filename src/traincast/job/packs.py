"""Sequences of a data set packed into sequences of one length, and how much longer some packs take than others.

They are packed first fit, in an order that is always the same shuffle; those that are longer than a pack are cut.
Megatron Bridge does so: src/megatron/bridge/data/datasets/packed_sequence.py (``packing_algorithm``
"first_fit_shuffle", ``_pre_pad_data_point``) and packing_utils.py (``first_fit``). A sequence attends to itself alone,
padding to nothing.

Letters: L distinct lengths, N sequences, P packs, B bins of a distribution.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt
from msgspec import Struct

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Lengths = tuple[tuple[int, int], ...]
"""Lengths of the sequences of a data set, the shortest first, each with how many there are."""

_FEWEST_SEQUENCES, _MOST_SEQUENCES, _ENOUGH_PACKS = 2**12, 2**15, 2**8
"""Sequences that stand for a data set: so many that they make enough packs, between these bounds."""
_SHUFFLE = 0
"""Seed of the order in which they are packed: always the same."""
_ROUNDING = 1e-12
"""Share of the attention of packs by which they differ only as numbers are rounded."""
_CELLS, _FEWEST_BINS, _MOST_BINS = 2**14, 16, 2**9
"""Bins of the distribution of a sum, about; that of one pack has fewer the more packs are summed, between bounds."""


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
def slowest_packs(lengths: Lengths, size: int, *numbers: int) -> float:
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
