"""One clock for the ranks of a measured run, from plain arrays: offsets that are known by construction come back."""

import numpy as np
import pytest

from traincast.workload.clocks import Ends, align


def ends_of(clock_s, groups, count=9, spread_s=2e-4, seed=1):
    """Let the ranks of each group end collectives together, each on its own clock and a little apart."""
    random = np.random.default_rng(seed)
    rendezvous_J, rank_J, end_s_J = [], [], []
    for number, group in enumerate(groups):
        for time in range(count):
            for rank in group:
                rendezvous_J.append(number * count + time)
                rank_J.append(rank)
                end_s_J.append(clock_s[rank] + 1.0 + time + random.uniform(0, spread_s))
    order_J = random.permutation(len(rank_J))
    return Ends.of_collectives(*(np.array(each)[order_J] for each in (rendezvous_J, rank_J, end_s_J)))


@pytest.mark.parametrize("ahead_s", [-0.004, 0.004, 7.0, -1e6])
def test_hosts_of_eight_are_aligned_by_collectives_over_both(ahead_s):
    """Also where the clocks are nearer than ranks of one host may be: sixteen ranks are two hosts."""
    clock_s = {rank: 1e7 + ahead_s * (rank // 8) for rank in range(16)}
    groups = [range(8), range(8, 16), *((rank, rank + 8) for rank in range(8))]
    found = align(clock_s, ends_of(clock_s, groups))
    assert found.hosts == (tuple(range(8)), tuple(range(8, 16)))
    assert found.offset_s[8] - found.offset_s[0] == pytest.approx(ahead_s, abs=2e-4)
    assert min(clock_s[rank] - offset_s for rank, offset_s in found.offset_s.items()) == pytest.approx(0, abs=1e-9)


def test_clocks_are_followed_from_host_to_host():
    clock_s = {rank: 5e4 * (rank // 8) ** 2 for rank in range(32)}
    chain = [(8 * host + rank, 8 * host + 8 + rank) for host in range(3) for rank in range(8)]
    found = align(clock_s, ends_of(clock_s, chain))
    offsets_s = [found.offset_s[8 * host] - found.offset_s[0] for host in range(4)]
    assert offsets_s == pytest.approx([0.0, 5e4, 2e5, 4.5e5], abs=1e-3)


def test_ends_that_are_now_here_and_now_there_were_of_no_one_rendezvous():
    assert ends_of({0: 0.0, 1: 9.0}, [(0, 1)], spread_s=0.5).apart_s == {}


def test_a_collective_without_direction_counts_both_ways():
    apart_s = Ends.of_collectives([4, 4, 4], [2, 0, 1], [1.5, 1.0, 1.25]).apart_s
    assert apart_s == {(0, 1): [0.25], (1, 0): [-0.25], (1, 2): [0.25], (2, 1): [-0.25]}


def test_what_tells_better_counts_where_both_tell():
    messages, together = Ends({(0, 1): [1.0], (1, 2): [2.0]}), Ends({(0, 1): [3.0]})
    assert (messages | together).apart_s == {(0, 1): [3.0], (1, 2): [2.0]}


def test_a_rank_without_times_gets_the_offset_of_the_first_host():
    found = align({0: 5.0, 1: None}, Ends.of_messages([0], [1], [6.0], [7.0]))
    assert found.offset_s == {0: 5.0, 1: 5.0}
    assert found.hosts == ((0,),)


def test_ends_that_coincide_in_one_direction_are_of_one_clock():
    """Messages back wait 5 s for their receiver; those that go arrive at once, and so no clock is ahead."""
    first_s = {0: 0.0, 1: 7200.0}
    assert align(first_s, Ends({(0, 1): [0.001] * 3, (1, 0): [5.0] * 3})).hosts == ((0, 1),)
    # Where both directions wait nothing is shown, and starts two hours apart are of two boots.
    assert align(first_s, Ends({(0, 1): [4.0] * 3, (1, 0): [5.0] * 3})).hosts == ((0,), (1,))


def test_what_arrives_before_it_was_sent_shows_another_clock():
    ends = Ends({(0, 1): [1000.5] * 3, (1, 0): [-999.5] * 3})
    found = align({0: 0.0, 1: 1000.0}, ends)
    assert found.hosts == ((0,), (1,))
    assert found.offset_s == {0: 0.0, 1: 1000.0}
    (note,) = found.notes
    assert note.text.endswith(
        "brought to that of ranks 0 by what both ended together: that of ranks 1 is 1000.0000 s ahead of it"
    )


def test_six_other_hosts_are_four_and_two_more():
    clock_s = {rank: 1e4 * (rank // 8) for rank in range(56)}
    pairs = [(8 * host + rank, 8 * host + 8 + rank) for host in range(6) for rank in range(8)]
    (note,) = align(clock_s, ends_of(clock_s, pairs)).notes
    assert "that of ranks 32 to 39 is 40000.0000 s ahead of it, 2 more" in note.text
    assert "ranks 40" not in note.text
    shorter_s = {rank: clock_s[rank] for rank in range(40)}
    (note,) = align(shorter_s, ends_of(shorter_s, [pair for pair in pairs if pair[1] < 40])).notes
    assert note.text.endswith("that of ranks 32 to 39 is 40000.0000 s ahead of it")
