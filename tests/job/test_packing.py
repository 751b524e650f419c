"""Packed sequences of the lengths of a data set: what is read, how it is packed, and who waits for whom."""

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from job_parts import TINY_EXPERTS, calls_of, job_of
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.job.packing import read_lengths, tokens_met
from traincast.job.packs import Packs, pack
from traincast.job.share import rank_share
from traincast.model.blocks.attention import AttentionBlock

MIXED = "100:40,300:20,700:5,1000:2"
TWO = Packs(1024, np.array([1024.0, 512.0, 512.0]), np.array([0, 1]))
"""Packs of one sequence and of two, half of which is as much attention: as many of one kind as of the other."""


def lengths(text, folder):
    path = folder / "lengths.csv"
    path.write_text(text)
    return read_lengths(str(path))


def core(share):
    """Return the kernel of the core of attention."""
    kernels = [
        kernel
        for part in AttentionBlock().parts(share)
        if part.name.endswith("core_attention")
        for kernel in part.kernels
    ]
    return kernels[0]


def attention_flops(**fields):
    """Return the forward FLOPs of the core of attention of a microbatch in a layer."""
    return core(rank_share(job_of(global_batch=fields.get("gpus", 1), seq_length=1024, **fields))).flops


def of_two(replicas, summed):
    """Return the mean of the largest of some sums of draws of 1 or 1/2, over that of one sum."""
    found = [max(map(sum, draws)) for draws in product(product((1, 0.5), repeat=summed), repeat=replicas)]
    return sum(found) / len(found) / (0.75 * summed)


def waits(job):
    """Return by how much packs that others wait for have more attention than the mean."""
    return job.batch.packing.slowest


@pytest.mark.parametrize(
    "text",
    [
        "512\n8192\n512\n",
        "length\n512\n\n512\n8k",
        "8192,1\n512,2\n",
        "length,count\r\n512,1\r\n8192,1\r\n512,1\r\n",
    ],
)
def test_lengths_are_read_in_any_order(text, tmp_path):
    assert (
        lengths(text, tmp_path) == read_lengths("8k 512:2") == read_lengths("512:1,8192,512") == ((512, 2), (8192, 1))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length\n512\nmany\n", "lengths.csv:3: 'many' is not a number of tokens"),
        ("512,1\n700,1.5\n", "lengths.csv:2: '1.5' is not how many sequences there are; it must be a whole number"),
        ("512,0\n", "lengths.csv:1: '0' is not how many"),
        ("512,1,9\n", "lengths.csv:1: has 3 values; write a length, or a length and how many there are"),
        ("length,count\n", "lengths.csv: has no lengths; write one in each row"),
    ],
)
def test_what_is_no_length_is_told_with_its_line(text, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        lengths(text, tmp_path)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"packed_lengths": "512:x"}, ConfigError, "packed_lengths: 'x' is not how many"),
        ({"packed_lengths": "512:1:2"}, ConfigError, "has 3 values"),
        ({"packed_lengths": "512,x"}, ConfigError, "'x' is not a number of tokens"),
        ({"packed_lengths": "2026_lengths.csv"}, FormatError, "2026_lengths.csv: cannot be read"),
        ({"packed_lengths": " "}, ConfigError, "packed_lengths: is empty; give a CSV"),
        ({"packed_lengths": "none.csv"}, FormatError, "none.csv: cannot be read"),
        ({"packed_lengths": "512", "packed_length": 512}, ConfigError, "packed_length is 512; give one of the two"),
        ({"packed_length": 2048}, InfeasibleError, "sequences of 2048 tokens cannot be packed into 1024"),
    ],
)
def test_what_cannot_be_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        job_of(**fields)


def test_sequences_are_packed_first_fit_and_longer_ones_are_cut():
    """3 of 300 tokens go into 1,024, which leaves 124 free; what is longer fills a pack."""
    packs = pack(((300, 9), (5000, 1)), 1024)
    per_pack = np.diff(np.append(packs.first_P, len(packs.length_N)))
    assert {*packs.length_N} == {300, 1024}
    assert {*per_pack} == {1, 3}
    assert pack(((300, 7),), 1024).filled == 900 / 1024
    assert tokens_met(((300, 9), (5000, 1)), 1024) == (9 * 300**2 + 1024**2) / (9 * 300 + 1024)


@pytest.mark.parametrize("length", [64, 256, 512])
@pytest.mark.parametrize("fields", [{}, {"gpus": 8, "tp": 2}, {"gpus": 8, "cp": 2, "zero": 3}], ids=str)
def test_equal_lengths_are_a_packed_length(length, fields):
    """Packs that are full of equal sequences are all alike: nobody waits, to the last bit."""
    one, other = job_of(packed_length=length, **fields), job_of(packed_lengths=f"{length}:7", **fields)
    assert waits(other) == 1
    for direction in ("forward", "backward"):
        assert calls_of(one, direction) == calls_of(other, direction)


def test_sequences_of_a_whole_pack_are_not_packed():
    plain = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "tp": 2, "global_batch": 32, "seq_length": 4096}
    whole, packed = traincast.predict(**plain), traincast.predict(**plain, packed_lengths="4k:3")
    assert packed.iteration_time_s == whole.iteration_time_s
    assert packed.mfu == whole.mfu


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 4)])
def test_attention_is_the_sum_of_the_squares(tp, cp):
    """Packs of 1,024 with one sequence of 512 and two of 256, all full, are 3/8 of the pairs of whole sequences."""
    packed, whole = (
        attention_flops(gpus=tp * cp, tp=tp, cp=cp, **said) for said in ({"packed_lengths": "512:1,256:2"}, {})
    )
    assert packed == pytest.approx((512**2 + 2 * 256**2) / 1024**2 * whole, rel=2e-3)


def test_padding_attends_to_nothing_and_is_not_trained_on():
    """One sequence of 600 in each pack of 1,024."""
    job = job_of(packed_lengths="600")
    assert attention_flops(packed_lengths="600") == pytest.approx((600 / 1024) ** 2 * attention_flops(), rel=2e-3)
    assert (job.batch.attended_length, job.batch.tokens_per_step) == (600, 8 * 600)


def test_more_spread_is_never_faster():
    """Lengths with the same mean, drawn further apart, in packs that stay full."""
    steps = [
        traincast.predict(
            **{"model": "llama3-8b", "cluster": "h100", "gpus": 16, "tp": 2, "global_batch": 64, "seq_length": 8192},
            packed_lengths=said,
        ).iteration_time_s
        for said in ("2048", "1024,3072", "512,1024,3072,3584", "512:3,1024:3,3072:2,4096:2,256:4,7168")
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_one_replica_waits_for_nobody():
    assert waits(job_of(packed_lengths=MIXED)) == 1
    assert waits(job_of(packed_lengths=MIXED, gpus=8, tp=8)) == 1
    assert waits(job_of(packed_lengths=MIXED, gpus=8, tp=4)) > 1


@pytest.mark.parametrize(("replicas", "summed"), [(2, 1), (4, 1), (2, 2), (3, 3)])
def test_the_slowest_replica_is_the_mean_of_the_largest_sum(replicas, summed):
    assert TWO.slowest(summed, 1, 1, replicas) == pytest.approx(of_two(replicas, summed), rel=1e-9)
    assert TWO.slowest(1, summed, 1, replicas) == pytest.approx(of_two(replicas, summed), rel=1e-9)
    # Who meets in every microbatch waits each time.
    assert TWO.slowest(1, summed, replicas, replicas) == pytest.approx(of_two(replicas, 1), rel=1e-9)


def test_sharded_parameters_and_experts_make_replicas_wait_in_every_microbatch():
    plain = {"gpus": 8, "global_batch": 64, "packed_lengths": MIXED}
    once, sharded = (waits(job_of(zero=zero, **plain)) for zero in (1, 3))
    hybrid = waits(job_of(zero=3, shard=2, **plain))
    assert 1 < once < hybrid < sharded
    experts = [waits(job_of(TINY_EXPERTS, ep=ep, **plain)) for ep in (1, 2, 8)]
    assert experts == sorted({once, *experts})
    # Experts that are split over ranks of one replica make none wait.
    assert waits(job_of(TINY_EXPERTS, tp=4, etp=1, ep=4, **plain)) == waits(job_of(TINY_EXPERTS, tp=4, **plain))


@pytest.mark.parametrize(("sequences", "most"), [((1024,), 1), ((512, 512), 1), ((512, 256, 256), 4 / 3)])
def test_cp_that_splits_packs_is_as_slow_as_its_busiest_rank(sequences, most):
    """Of quarters with 1, 3, 1 and 1 of 6 parts of the pairs, the rank with the second and third has 4, not 3."""
    packs = Packs(1024, np.array(sequences, dtype=float), np.array([0]))
    assert packs.slowest(1, 1, 1, 1, pieces=2) == pytest.approx(most, rel=1e-12)


def test_cp_splits_every_sequence_alike_unless_it_splits_packs():
    plain = {"gpus": 4, "cp": 4, "packed_lengths": MIXED}
    assert waits(job_of(**plain)) == 1 < waits(job_of(cp_splits_packs=True, **plain))
    assert waits(job_of(cp_splits_packs=True, cp_kind="all_to_all", **plain)) == 1


def test_an_assumption_says_what_the_slowest_adds():
    notes = {each.code: each.text for each in job_of(gpus=8, packed_lengths=MIXED).assumptions}
    more = waits(job_of(gpus=8, packed_lengths=MIXED)) - 1
    assert notes[
        "packs-differ"
    ] == f"packs differ: the slowest of 8 replicas has {more:.1%} more attention than the mean".replace("%", " %")
    assert "tokens in the mean, 100 to 1000, are packed first fit into 1024" in notes["packed-lengths"]


def test_as_many_replicas_wait_as_an_expert_group_has():
    """Folded, four expert ranks are the ranks of two replicas with cp 2; else each is of another replica."""
    layout = {"model": TINY_EXPERTS, "gpus": 16, "cp": 2, "ep": 4, "packed_lengths": MIXED, "zero": 0}

    def waiting(framework):
        notes = {each.code: each.text for each in job_of(**layout, framework=framework).assumptions}
        return notes["packs-differ"]

    assert "2 replicas wait" in waiting("megatron-core-2025")
    assert "4 replicas wait" in waiting("megatron-core-2024")


def test_arrays_of_shares_have_the_kernels_of_each():
    share, batches = rank_share(job_of(packed_lengths=MIXED, gpus=8, cp=2)), [1, 2, 5]

    def flops(count):
        return core(replace(share, sequences=replace(share.sequences, count=count))).flops

    assert flops(np.array(batches)) == pytest.approx([flops(each) for each in batches], rel=1e-12)


@pytest.mark.slow
def test_plans_take_lengths_along():
    plain = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 16, "seq_length": 4096, "task": "lora"}
    found = traincast.plan(**plain, packed_lengths="256:10,1k:4,4k:1")
    assert found.best[0].result.job.packed_length == round(tokens_met(((256, 10), (1024, 4), (4096, 1)), 4096))
    # Its screen knows how long each layout waits: with ZeRO-1 or FSDP, with many replicas or few.
    assert found.screen_error < 0.03
