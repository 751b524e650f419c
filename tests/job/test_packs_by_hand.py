"""Packs of sequences: what fits where, the pairs of tokens that meet, and distributions of sums and of the largest."""

import numpy as np
import pytest

from job_parts import TINY_EXPERTS, job_of
from traincast.job.batch import Packing
from traincast.job.frameworks import load_framework
from traincast.job.packing import packing_of, read_lengths, tokens_met
from traincast.job.packs import Packs, _distribution, _first_fit, _largest, _sum, pack, slowest_packs
from traincast.job.parallel import Parallel


def packs(size, *rows):
    """Packs of some sequences each."""
    first = np.cumsum([0, *map(len, rows[:-1])])
    return Packs(size, np.array([each for row in rows for each in row], dtype=float), first)


@pytest.mark.parametrize(
    ("lengths", "size", "found"),
    [
        ([5, 5], 10, [[5, 5]]),
        ([6, 5, 4, 5], 10, [[6, 4], [5, 5]]),
        # What fits exactly does; a pack that has room for the shortest stays open.
        ([7, 8, 3, 2], 10, [[7, 3], [8, 2]]),
        ([7, 7, 7, 3, 3, 3], 10, [[7, 3], [7, 3], [7, 3]]),
        ([10, 10], 10, [[10], [10]]),
        ([4, 4, 4], 10, [[4, 4], [4]]),
        ([1, 9, 9, 1], 10, [[1, 9], [9, 1]]),
        ([8, 6, 1, 1, 3, 1], 10, [[8, 1, 1], [6, 3, 1]]),
    ],
)
def test_a_sequence_goes_into_the_first_pack_with_room(lengths, size, found):
    assert _first_fit(lengths, size) == found


def test_what_is_filled_and_how_many_sequences_a_pack_has():
    found = packs(10, (4, 4), (10,), (3, 3, 2))
    assert found.filled == (8 + 10 + 8) / 30
    assert found.sequences == 6 / 3


def test_packs_of_a_data_set_are_drawn_in_its_proportions():
    """Half of 4,096 sequences are of each length: a pack has one of 600, or two of 400 with 200 of padding."""
    found = pack(((400, 5), (600, 5)), 1000)
    assert set(found.length_N) == {400.0, 600.0}
    short = (found.length_N == 400).sum() / len(found.length_N)
    assert short == pytest.approx(0.5, abs=1e-3)
    assert 0.99 < found.filled <= 1
    assert np.add.reduceat(found.length_N, found.first_P).max() == 1000
    # One in four, drawn in the middle of equal parts.
    rare = pack(((100, 3), (900, 1)), 1000)
    assert (rare.length_N == 900).sum() / len(rare.length_N) == pytest.approx(0.25, abs=1e-3)


def test_as_many_sequences_are_drawn_of_each_length_as_its_share():
    """Four lengths of which each fills a pack, 1,024 of each, but for the one in the pack that is left out."""
    found = pack(((997, 2), (998, 2), (999, 2), (1000, 2)), 1000)
    counts = [int((found.length_N == length).sum()) for length in (997, 998, 999, 1000)]
    assert sorted(counts) == [1023, 1024, 1024, 1024]


@pytest.mark.parametrize(
    ("length", "size", "count"),
    [
        # At least 4,096 sequences, so many that there are 256 packs, and at most 32,768; the last pack is left out.
        (1000, 1000, 4096 - 1),
        (50, 1000, 5120 - 20),
        (100, 1000, 4096 - 6),
        (1, 1000, 32768 - 768),
    ],
)
def test_as_many_sequences_stand_for_a_data_set_as_make_enough_packs(length, size, count):
    found = pack(((length, 7),), size)
    assert len(found.length_N) == count
    assert len(found.first_P) == -(-count // (size // length))


def test_a_pack_alone_is_not_left_out():
    found = pack(((1, 1),), 2**20)
    assert len(found.first_P) == 1
    assert len(found.length_N) == 2**15


def test_pairs_of_tokens_are_the_squares_of_lengths():
    found = packs(10, (4, 4), (10,), (3, 3, 2))
    assert found.costs(1).tolist() == [32, 100, 22]


def quarters(size, row, pieces):
    """Count by hand, token by token, the keys that each rank's two pieces of a causal pack meet; twice, less itself.

    A token at place t of its sequence stands for (t + 1)^2 - t^2 of the square.
    """
    places = [place for length in row for place in range(length)] + [None] * (size - sum(row))
    work = [0 if place is None else (place + 1) ** 2 - place**2 for place in places]
    wide = size // (2 * pieces)
    of_piece = [sum(work[begin : begin + wide]) for begin in range(0, size, wide)]
    return pieces * max(of_piece[each] + of_piece[-1 - each] for each in range(pieces))


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize(
    "rows", [((16,),), ((8, 8),), ((3, 5, 8), (16,)), ((12, 2), (4, 4, 4), (7, 9)), ((1,), (15, 1))]
)
def test_ranks_that_split_a_pack_have_the_work_of_a_first_and_a_last_piece(pieces, rows):
    assert packs(16, *rows).costs(pieces).tolist() == [quarters(16, row, pieces) for row in rows]


def test_ranks_that_split_a_pack_wait_for_the_busiest_on_average():
    rows = ((3, 5, 8), (16,), (12, 2))
    found = packs(16, *rows)
    busiest = [quarters(16, row, 2) for row in rows]
    pairs = [sum(each**2 for each in row) for row in rows]
    assert sum(busiest) > sum(pairs)
    assert found.slowest(1, 1, 1, 1, pieces=2) == pytest.approx(sum(busiest) / sum(pairs))
    assert found.slowest(1, 1, 1, 1) == 1
    # So they do with several replicas where all packs take as long.
    alike = packs(16, (16,), (16,))
    assert alike.slowest(2, 3, 1, 8, pieces=2) == pytest.approx(quarters(16, (16,), 2) / 256)


def test_a_value_is_shared_by_the_whole_numbers_around_it():
    assert _distribution(np.array([0.0, 1.0, 2.0]), 3) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert _distribution(np.array([0.25]), 3) == pytest.approx([0.75, 0.25, 0])
    assert _distribution(np.array([2.0]), 3) == pytest.approx([0, 0, 1])
    many = _distribution(np.array([0.3, 2.6, 3.9]), 5)
    assert many.sum() == pytest.approx(1)
    assert many @ np.arange(5) == pytest.approx((0.3 + 2.6 + 3.9) / 3)


@pytest.mark.parametrize(
    ("summed", "microbatches", "bins"), [(1, 1, 512), (2, 16, 512), (4, 16, 256), (8, 128, 16), (64, 256, 16)]
)
def test_the_more_packs_are_summed_the_fewer_bins_has_each(summed, microbatches, bins, monkeypatch):
    """About 2^14 of the sum, between 16 and 512 of one pack."""
    asked = []
    monkeypatch.setattr(
        "traincast.job.packs._distribution",
        lambda values, count: [asked.append((count, values.min(), values.max())), _distribution(values, count)][1],
    )
    slowest = packs(2, (2,), (1, 1)).slowest(summed, microbatches, 1, 2)
    assert asked == [(bins, 0, bins - 1)]
    assert 1 < slowest < 4 / 3


def test_sums_of_dice():
    die = np.full(6, 1 / 6)
    two = _sum(die, 2)
    assert two == pytest.approx([min(each, 12 - each) / 36 for each in range(1, 12)])
    assert _sum(die, 1) == pytest.approx(die)
    four = _sum(die, 4)
    assert len(four) == 21
    assert four[-1] == pytest.approx(6**-4)


def test_the_largest_of_dice():
    die = np.full(6, 1 / 6)
    assert _largest(die, 3) == pytest.approx([((k + 1) ** 3 - k**3) / 216 for k in range(6)])
    assert _largest(die, 1) == pytest.approx(die)


def test_replicas_meet_in_groups_first_and_all_of_them_at_the_end():
    """Packs of 4 and of 2 pairs, as many of each; two pairs of replicas, each of which meets in two microbatches."""
    found = packs(2, (2,), (1, 1))
    # A pair has the larger with a chance of 3/4 in each microbatch; of two pairs the slower one, 2 + 2 * (0, 1, 2).
    chance = [1 / 16, 6 / 16, 9 / 16]
    below = [sum(chance[: k + 1]) ** 2 for k in range(3)]
    longest = sum((4 + 2 * k) * (below[k] - (below[k - 1] if k else 0)) for k in range(3))
    assert found.slowest(1, 2, 2, 4) == pytest.approx(longest / (2 * 3), rel=1e-9)
    assert slowest_packs(((1, 1),), 1, 1, 2, 2, 4) == 1


@pytest.mark.parametrize(
    ("lengths", "size", "met"),
    [
        (((512, 3),), 1024, 512),
        (((100, 1), (300, 1)), 1024, 250),
        (((1024, 1), (4096, 1)), 2048, (2**20 + 2**22) / 3072),
    ],
)
def test_a_token_meets_its_own_sequence(lengths, size, met):
    assert tokens_met(lengths, size) == pytest.approx(met)


def meets(framework="megatron-core-2025", zero=1, **degrees):
    """Return how long the replicas of a layout wait, and as if so many met in every microbatch."""
    request, layout = job_request(), Parallel(**{"dp": 8, "microbatches": 4} | degrees)
    packing = packing_of(request, load_framework(framework), layout, 1, zero=zero, splits_heads=False)
    lengths = read_lengths(request.packed_lengths)
    alone = {each: slowest_packs(lengths, 1024, 1, 4, each, layout.dp, 1) for each in (1, 2, 4, 8)}
    return next(each for each, slowest in alone.items() if slowest == packing.slowest)


def job_request():
    from traincast.job.request import JobRequest

    return JobRequest(
        model=TINY_EXPERTS, gpus=8, seq_length=1024, global_batch=32, packed_lengths="100:40,300:20,700:5"
    )


@pytest.mark.parametrize(
    ("layout", "together"),
    [
        ({}, 1),
        ({"zero": 3}, 8),
        ({"zero": 3, "shard": 2}, 2),
        ({"zero": 2}, 1),
        ({"zero": 3, "cp": 2}, 8),
        ({"zero": 3, "cp": 2, "shard": 8}, 4),
        ({"zero": 3, "pp": 2}, 8),
        ({"zero": 3, "pp": 2, "framework": "torchtitan-2025"}, 1),
        ({"zero": 3, "framework": "torchtitan-2025"}, 8),
        ({"ep": 4}, 4),
        ({"ep": 2}, 2),
        # Experts of two tensor parallel ranks, whole on each or split.
        ({"ep": 4, "tp": 2, "etp": 1}, 2),
        ({"ep": 4, "tp": 2}, 4),
        ({"ep": 4, "cp": 2}, 2),
        ({"ep": 2, "cp": 2}, 1),
        # One expert rank meets nobody however its experts are split.
        ({"etp": 4}, 1),
        ({"ep": 2, "zero": 3, "shard": 4}, 4),
        ({"dp": 4, "ep": 8, "tp": 2, "etp": 1}, 4),
    ],
)
def test_replicas_wait_for_those_that_share_experts_or_parameters(layout, together):
    assert meets(**layout) == together


def test_a_length_that_stands_for_all_keeps_their_work():
    packing = Packing(met=250.4, filled=0.9, slowest=1.2)
    assert packing.length == 250
    assert packing.work == pytest.approx(0.9 * 1.2 * 250.4 / 250)
    assert Packing(met=0.3, filled=1.0).length == 1
    assert Packing(met=1.6, filled=1.0).length == 2


def test_a_step_trains_on_tokens_that_are_no_padding():
    plain, packed = job_of().batch, job_of(packed_lengths="600").batch
    assert (plain.tokens_per_step, plain.attended_length) == (8 * 1024, 1024)
    assert packed.tokens_per_step == 8 * 600
    assert (plain.sequences.packed_length, plain.sequences.packed_work) == (0, 0)
    assert (packed.sequences.packed_length, packed.sequences.packed_work) == (600, packed.packing.work)
    whole = job_of(packed_length=512).batch
    assert (whole.attended_length, whole.sequences.packed_length, whole.sequences.packed_work) == (512, 512, 0)


@pytest.mark.parametrize(
    ("said", "lengths"),
    [
        ("512", ((512, 1),)),
        ("1k:2, 512", ((512, 1), (1024, 2))),
        ("512:2,512:3", ((512, 5),)),
        (f"512:{2**53 - 1}", ((512, 2**53 - 1),)),
    ],
)
def test_lengths_are_said_with_their_counts(said, lengths):
    assert read_lengths(said) == lengths


def told(**fields):
    return {each.code: each.text for each in job_of(**fields).assumptions}


def test_what_was_packed_is_told_in_numbers():
    text = told(packed_lengths="600:2,2048:1,1000:1")["packed-lengths"]
    mean = (600 * 2 + 1024 + 1000) / 4
    assert text.startswith(
        f"sequences of {mean:.0f} tokens in the mean, 600 to 2048, are packed first fit into 1024: 1.0"
    )
    assert "25.0 % of them are longer, and cut" in text
    whole = told(packed_lengths="1024")["packed-lengths"]
    assert "cut" not in whole
    assert "longer" not in told(packed_lengths="600:2,1024")["packed-lengths"]


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        ({"gpus": 8}, "packs differ: the slowest of 8 replicas has "),
        ({"gpus": 2}, "packs differ: the slowest of 2 replicas has "),
        ({"gpus": 8, "zero": 3, "shard": 2}, "packs differ: in each microbatch 2 replicas wait for the longest pack: "),
        ({"gpus": 8, "zero": 3}, "packs differ: in each microbatch 8 replicas wait for the longest pack: "),
        ({"gpus": 4, "cp": 4, "cp_splits_packs": True}, "packs differ: the slowest rank of CP has "),
    ],
)
def test_who_waits_is_told(fields, who):
    assert told(packed_lengths="100:40,700:5", **fields)["packs-differ"].startswith(who)
