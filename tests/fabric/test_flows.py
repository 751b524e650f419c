"""Max-min fair rates, finish times and bottlenecks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import ProgramError
from traincast.fabric import flows
from traincast.fabric.flows import bottleneck, finish_times, rates

ENGINES = ("reference", "kernel")


def textbook(routes, capacity):
    """Raise all rates together; freeze at the first full link. Plain loops, one link a round."""
    left, rate = dict(enumerate(capacity)), {}
    live = {flow: [link for link in row if link >= 0] for flow, row in enumerate(routes.tolist())}
    while any(live.values()):
        shares = {}
        for link, free in left.items():
            crossing = sum(links.count(link) for links in live.values())
            if crossing:
                shares[link] = free / crossing
        tight = min(shares, key=shares.get)
        for flow in [flow for flow, links in live.items() if tight in links]:
            rate[flow] = shares[tight]
            for link in live.pop(flow):
                left[link] -= rate[flow]
    return np.array([rate.get(flow, np.inf) for flow in range(len(routes))])


@st.composite
def problems(draw, most_flows=12):
    links = draw(st.integers(1, 8))
    flows = draw(st.integers(1, most_flows))
    capacity = draw(st.lists(st.floats(0.1, 100), min_size=links, max_size=links))
    row = st.lists(st.integers(0, links - 1), min_size=0, max_size=4, unique=True)
    rows = [draw(row) for _ in range(flows)]
    routes = np.array([each + [-1] * (4 - len(each)) for each in rows])
    return routes, np.array(capacity)


@pytest.mark.parametrize("engine", ENGINES)
@given(problem=problems())
@settings(deadline=None)
def test_rates_are_those_of_the_textbook(engine, problem):
    routes, capacity = problem
    np.testing.assert_allclose(rates(routes, capacity, engine), textbook(routes, capacity), rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@given(problem=problems())
@settings(deadline=None)
def test_no_link_carries_too_much_and_every_flow_has_a_bottleneck(engine, problem):
    routes, capacity = problem
    rate = rates(routes, capacity, engine)
    load = np.array([sum(rate[(routes == link).any(axis=1)]) for link in range(len(capacity))])
    assert np.all(load <= capacity * (1 + 1e-9))
    held = bottleneck(routes, rate, capacity)
    # Max-min fair: each flow crosses a full link on which no flow has more.
    for flow, link in enumerate(held.tolist()):
        if not (routes[flow] >= 0).any():
            assert link == -1 and rate[flow] == np.inf
            continue
        assert load[link] == pytest.approx(capacity[link])
        others = (routes == link).any(axis=1)
        assert np.all(rate[others] <= rate[flow] * (1 + 1e-9))


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_the_order_of_flows_does_not_matter(problem, seed):
    routes, capacity = problem
    order = np.random.default_rng(seed).permutation(len(routes))
    np.testing.assert_allclose(rates(routes[order], capacity), rates(routes, capacity)[order], rtol=1e-9)


def test_engines_agree_on_many_flows():
    rng = np.random.default_rng(1)
    routes, capacity = rng.integers(-1, 500, (20_000, 5)), rng.uniform(1, 10, 500)
    reference, kernel = (rates(routes, capacity, engine=engine) for engine in ENGINES)
    np.testing.assert_allclose(kernel, reference, rtol=1e-9)


def test_equal_flows_need_one_solve_and_it_is_exact(monkeypatch):
    rng = np.random.default_rng(2)
    routes, capacity = rng.integers(0, 40, (200, 3)), rng.uniform(1, 10, 40)
    calls, solve = [], flows._fill

    def counted(*args, **kwargs):
        calls.append(1)
        return solve(*args, **kwargs)

    monkeypatch.setattr(flows, "_fill", counted)
    ends = finish_times(routes, np.full(200, 7.0), capacity)
    assert len(calls) == 1
    # The same, one completion after the other: sizes that differ by nothing that shows.
    nearly = finish_times(routes, 7.0 * (1 + 1e-9 * rng.random(200)), capacity)
    assert len(calls) > 50
    np.testing.assert_allclose(nearly, ends, rtol=1e-6)


def test_what_a_flow_leaves_behind_is_used():
    # Two flows share a link of 1 B/s: the small one ends at 2 s, the other one then has it alone.
    ends = finish_times(np.array([[0], [0]]), np.array([1.0, 3.0]), np.array([1.0]))
    np.testing.assert_allclose(ends, [2.0, 4.0])


@pytest.mark.parametrize("tolerance", [0.02, 0.05, 0.2])
def test_windows_end_late_by_no_more_than_the_tolerance(tolerance):
    rng = np.random.default_rng(3)
    routes, capacity = rng.integers(0, 64, (400, 4)), rng.uniform(5, 10, 64)
    sizes = rng.uniform(0.2, 1.8, 400)
    exact, coarse = (finish_times(routes, sizes, capacity, each) for each in (0.0, tolerance))
    assert abs(coarse.max() / exact.max() - 1) <= tolerance
    assert np.abs(coarse - exact).max() <= tolerance * exact.max()


def test_empty_flows_end_at_once_and_links_bound_the_rest():
    ends = finish_times(np.array([[0], [-1], [0]]), np.array([0.0, 5.0, 4.0]), np.array([2.0]))
    np.testing.assert_allclose(ends, [0.0, 0.0, 2.0])
    assert finish_times(np.zeros((0, 1), dtype=int), np.zeros(0), np.ones(1)).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([[0, 2]], [1.0, 1.0]), "names a link that is not one of the 2"),
        (([[0, -2]], [1.0, 1.0]), "names a link"),
        (([[0]], [0.0]), "positive capacity"),
        (([0], [1.0]), "must be a table"),
        (([[0]], [1.0], "magic"), "unknown engine"),
    ],
)
def test_wrong_input_says_so(arguments, said):
    routes, capacity, *rest = arguments
    with pytest.raises(ProgramError, match=said):
        rates(np.array(routes), np.array(capacity), *rest)


def test_negative_sizes_and_tolerances_say_so():
    for size, tolerance in ((-1.0, 0.0), (np.nan, 0.0), (1.0, -0.1)):
        with pytest.raises(ProgramError, match="negative"):
            finish_times(np.array([[0]]), np.array([size]), np.ones(1), tolerance)


def test_finish_times_refuse_unknown_links_and_rates_of_nothing():
    with pytest.raises(ProgramError, match="names a link that is not one of the 1"):
        finish_times(np.array([[3]]), np.ones(1), np.ones(1))
    with pytest.raises(ProgramError, match="positive capacity"):
        finish_times(np.array([[0]]), np.ones(1), np.zeros(1))


@pytest.mark.parametrize("numba", [True, False])
def test_numba_is_loaded_where_it_pays(monkeypatch, numba):
    pytest.importorskip("numba")
    solved = []
    monkeypatch.setattr(flows, "find_spec", lambda _: numba)
    monkeypatch.setattr(flows, "_fill", lambda *_: solved.append("reference"))
    monkeypatch.setattr("traincast.fabric.flows_kernel.fill", lambda *_: solved.append("kernel"))
    for engine, hops in (("auto", -1), ("auto", 0), ("reference", 0)):
        rates(np.zeros((flows.KERNEL_FROM_HOPS + hops, 1), dtype=int), np.ones(1), engine=engine)
    assert solved == ["reference", "kernel" if numba else "reference", "reference"]


def test_without_numba_the_reference_runs(monkeypatch):
    monkeypatch.setattr(flows, "find_spec", lambda _: None)
    routes = np.zeros((flows.KERNEL_FROM_HOPS, 1), dtype=int)
    assert rates(routes, np.ones(1))[0] == 1 / flows.KERNEL_FROM_HOPS
    with pytest.raises(ProgramError, match="needs numba"):
        rates(routes, np.ones(1), engine="kernel")
