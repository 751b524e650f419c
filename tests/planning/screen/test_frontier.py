"""What is kept of layouts that several processes found."""

from hypothesis import given
from hypothesis import strategies as st

from traincast.planning.screen.frontier import Frontier, _best, _Kept

FEW = st.integers(1, 6)
PIECES = st.lists(st.lists(st.tuples(FEW, FEW), max_size=6), min_size=1, max_size=6)


@given(PIECES, st.data())
def test_nothing_is_kept_that_a_process_did_not_send(pieces, data):
    parts = dict[int, Frontier]()
    for number, of in enumerate(pieces):
        parts[number] = Frontier(limit_bytes=10.0, keep=3)
        parts[number]._found = [_Kept(step_s, peak, None, None) for step_s, peak in of]
        parts[number].feasible = len(of)
    mine = data.draw(st.permutations(list(parts)))[: data.draw(st.integers(0, len(parts)))]
    sent = Frontier(limit_bytes=10.0, keep=3)._sent({**{number: parts[number] for number in mine}, 99: "else"})
    assert (list(sent), sent.pop(99)) == ([*mine, 99], "else")
    assert all(each.feasible == parts[number].feasible for number, each in sent.items())
    assert [len(part._found) for part in parts.values()] == list(map(len, pieces))
    whole, received = (
        [one for number in sorted(each) for one in each[number]._found] for each in (parts, {**parts, **sent})
    )
    assert list(map(id, _best(received, 3))) == list(map(id, _best(whole, 3)))
