"""Stretches of time on many ranks, against a count instant by instant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.simulation.overlap import Spans, covered, meet, most_of_a_rank, overlaps, shares, union

WHOLE = st.integers(0, 12)
RANKS = st.lists(st.lists(st.tuples(WHOLE, WHOLE).map(sorted), max_size=6), min_size=1, max_size=4)


def spans_of(ranks):
    flat = np.array([span for rank in ranks for span in rank], dtype=float).reshape(-1, 2)
    lengths = [len(rank) for rank in ranks]
    return Spans(flat[:, 0], flat[:, 1], np.cumsum([0, *lengths]), np.repeat(np.arange(len(ranks)), lengths))


def instants(spans, rank):
    """Return the unit intervals that the spans of a rank cover."""
    some = slice(spans.ptr_R1[rank], spans.ptr_R1[rank + 1])
    pairs = zip(spans.begin_s_I[some], spans.end_s_I[some], strict=True)
    return {at for begin, end in pairs for at in range(int(begin), int(end))}


@given(RANKS)
def test_the_union_covers_the_same_time_once(ranks):
    spans = spans_of(ranks)
    joined = union(spans)
    for rank in range(len(ranks)):
        some = slice(joined.ptr_R1[rank], joined.ptr_R1[rank + 1])
        assert instants(joined, rank) == instants(spans, rank)
        assert (joined.begin_s_I[some][1:] > joined.end_s_I[some][:-1]).all()


@given(RANKS, RANKS)
def test_overlaps_are_those_of_a_count(ranks, others):
    ranks, others = ranks[: len(others)], others[: len(ranks)]
    spans, disjoint = spans_of(ranks), union(spans_of(others))
    pairs = overlaps(spans, disjoint)
    covered = pairs.per_span(spans)
    for index, rank in enumerate(spans.rank_I):
        own = set(range(int(spans.begin_s_I[index]), int(spans.end_s_I[index])))
        assert covered[index] == len(own & instants(disjoint, rank))
    assert pairs.per_disjoint(disjoint).sum() == covered.sum()
    assert meet(union(spans), disjoint) == meet(disjoint, union(spans)) == bool(covered.any())


@given(RANKS, RANKS, st.floats(0.1, 1e3))
def test_the_kernel_finds_the_same_bits(ranks, others, scale):
    kernel = pytest.importorskip("traincast.simulation.overlap_kernel")
    ranks, others = ranks[: len(others)], others[: len(ranks)]
    scaled = [[[[value * scale / 3 for value in span] for span in rank] for rank in each] for each in (ranks, others)]
    spans, disjoint = spans_of(scaled[0]), union(spans_of(scaled[1]))
    for found, known in zip(kernel.covered(spans, disjoint), covered(spans, disjoint), strict=True):
        assert found.tobytes() == known.tobytes()
    for some in (spans, spans_of([sorted(rank, key=lambda span: span[side]) for rank in scaled[0] for side in (0, 1)])):
        for found, known in zip(kernel.union(some), union(some), strict=True):
            assert (found.dtype, found.tobytes()) == (known.dtype, known.tobytes())
    assert kernel.meet(union(spans), disjoint) == meet(union(spans), disjoint)


@given(RANKS, RANKS, st.floats(0.1, 1e3))
def test_what_a_rank_gets_does_not_depend_on_the_others(ranks, others, scale):
    ranks, others = ranks[: len(others)], others[: len(ranks)]
    scaled = [[[[value * scale / 3 for value in span] for span in rank] for rank in each] for each in (ranks, others)]
    spans, disjoint = spans_of(scaled[0]), union(spans_of(scaled[1]))
    together = overlaps(spans, disjoint).per_span(spans)
    alone = []
    for one, other in zip(*scaled, strict=True):
        mine = spans_of([one])
        alone += overlaps(mine, union(spans_of([other]))).per_span(mine).tolist()
    assert together.tolist() == alone


def test_a_share_is_never_above_one_and_nothing_of_no_time():
    spans = spans_of([[(0, 2), (2, 2), (2, 6)], []])
    np.testing.assert_array_equal(shares(np.array([3.0, 0.0, 1.0]), spans), [1.0, 0.0, 0.25])
    assert most_of_a_rank(np.array([1.0, 0.0, 2.0]), spans) == pytest.approx(0.5)
    assert most_of_a_rank(np.zeros(0), spans_of([[]])) == 0.0
