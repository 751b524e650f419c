"""Stretches of time on many ranks at once: their union, and what of one lies inside another.

All ranks are handled in the same array operations, yet the numbers of a rank depend on nothing but
its own times, so that a rank has the same ones whichever others are simulated.

Letters: I spans, D disjoint spans, R ranks, P pairs.
"""

from typing import NamedTuple

import numpy as np

from traincast.workload.ops import BoolArray, FloatArray, IntArray


class Spans(NamedTuple):
    """Stretches of time, rank by rank."""

    begin_s_I: FloatArray
    end_s_I: FloatArray
    ptr_R1: IntArray
    """Those of rank r are ptr_R1[r] .. ptr_R1[r+1]-1."""

    @property
    def rank_I(self) -> IntArray:
        """Rank of each."""
        return np.repeat(np.arange(len(self.ptr_R1) - 1), np.diff(self.ptr_R1))


class Pairs(NamedTuple):
    """Spans that overlap."""

    span_P: IntArray
    disjoint_P: IntArray
    overlap_s_P: FloatArray

    def per_span(self, spans: Spans) -> FloatArray:
        """Return how much of each span is covered, [I]."""
        return _summed(self.span_P, self.overlap_s_P, len(spans.begin_s_I))

    def per_disjoint(self, disjoint: Spans) -> FloatArray:
        """Return how much of each disjoint span is covered, [D], counting twice what two spans cover."""
        return _summed(self.disjoint_P, self.overlap_s_P, len(disjoint.begin_s_I))


def union(spans: Spans) -> Spans:
    """Return the same time as disjoint spans, in order."""
    count, rank_I = len(spans.begin_s_I), spans.rank_I
    if not count:
        return spans
    # Integers in the order of the times let one maximum run over all ranks without touching a number.
    value, code = np.unique(np.concatenate([spans.begin_s_I, spans.end_s_I]), return_inverse=True)
    begin_I, end_I = rank_I * len(value) + code[:count], rank_I * len(value) + code[count:]
    order = np.argsort(begin_I, kind="stable")
    begin_I, reach_I = begin_I[order], np.maximum.accumulate(end_I[order])
    first = np.flatnonzero(np.concatenate([[True], begin_I[1:] > reach_I[:-1]]))
    last = np.concatenate([first[1:], [count]]) - 1
    ptr_R1 = np.searchsorted(rank_I[order][first], np.arange(len(spans.ptr_R1)))
    return Spans(value[begin_I[first] % len(value)], value[reach_I[last] % len(value)], ptr_R1)


def overlaps(spans: Spans, disjoint: Spans) -> Pairs:
    """Return which spans overlap with which of some disjoint ones of the same rank, and for how long.

    Parameters
    ----------
    spans : Spans
        Any.
    disjoint : Spans
        Those of a rank in order, none beginning before the one before it has ended.

    Returns
    -------
    Pairs
        In the order of `spans`, and for each in that of `disjoint`.
    """
    rank_I = spans.rank_I
    low_I, high_I = disjoint.ptr_R1[rank_I], disjoint.ptr_R1[rank_I + 1]
    first_I = _bisect(disjoint.end_s_I, low_I, high_I, spans.begin_s_I, after_equal=True)
    last_I = _bisect(disjoint.begin_s_I, low_I, high_I, spans.end_s_I, after_equal=False)
    count_I = np.maximum(last_I - first_I, 0)
    span_P = np.repeat(np.arange(len(rank_I)), count_I)
    disjoint_P = np.arange(len(span_P)) + np.repeat(first_I - np.cumsum(count_I) + count_I, count_I)
    until_P = np.minimum(spans.end_s_I[span_P], disjoint.end_s_I[disjoint_P])
    since_P = np.maximum(spans.begin_s_I[span_P], disjoint.begin_s_I[disjoint_P])
    return Pairs(span_P, disjoint_P, np.maximum(until_P - since_P, 0.0))


def most_of_a_rank(overlap_s_I: FloatArray, spans: Spans) -> float:
    """Return the share of all spans of a rank that overlaps are, on the rank where it is largest."""
    ranks, rank_I = len(spans.ptr_R1) - 1, spans.rank_I
    overlap_s_R = _summed(rank_I, overlap_s_I, ranks)
    whole_s_R = _summed(rank_I, spans.end_s_I - spans.begin_s_I, ranks)
    return float(np.divide(overlap_s_R, whole_s_R, out=np.zeros(ranks), where=whole_s_R > 0).max(initial=0.0))


def shares(overlap_s_I: FloatArray, spans: Spans) -> FloatArray:
    """Return which share of each span an overlap is; 0 for a span of no time, and never above 1."""
    length_s_I = spans.end_s_I - spans.begin_s_I
    share_I = np.divide(overlap_s_I, length_s_I, out=np.zeros(len(length_s_I)), where=length_s_I > 0)
    return np.minimum(share_I, 1.0)


def _summed(at_I: IntArray, value_I: FloatArray, count: int) -> FloatArray:
    """Add up values by number, each number's in their order."""
    sums: FloatArray = np.bincount(at_I, value_I, count).astype(np.float64, copy=False)
    return sums


def _bisect(
    value_D: FloatArray, low_I: IntArray, high_I: IntArray, wanted_I: FloatArray, after_equal: bool
) -> IntArray:
    """Return the first place from low to high whose value is above the wanted one, or equal to it if so asked."""
    low, high = low_I.copy(), high_I.copy()
    while (open_I := low < high).any():
        middle = (low + high) // 2
        value = value_D[np.where(open_I, middle, 0)]
        below: BoolArray = value <= wanted_I if after_equal else value < wanted_I
        low = np.where(open_I & below, middle + 1, low)
        high = np.where(open_I & ~below, middle, high)
    return low
