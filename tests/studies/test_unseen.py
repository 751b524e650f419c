"""Steps in no fit: no run of theirs is among those that factors and widths are fitted to."""

from forecasts import published_rows
from judges.unseen import slow_runs, unseen_runs


def test_no_run_is_counted_twice_or_fitted_to():
    tables = [*unseen_runs().values(), *slow_runs().values()]
    found = [run.id for runs in tables for run in runs]
    assert all(tables)
    assert len(found) == len(set(found))
    assert not {run.id for run in published_rows()} & set(found)


def test_runs_that_are_slow_for_a_reason_of_their_own_are_those_left_of_their_tables():
    cards, swept, faulty = slow_runs().values()
    assert all("performance item" not in run.cells["notes"] for run in cards)
    assert all((run.request.gpus or 0) >= 64 for run in swept)
    assert all("known slow" in run.cells["notes"] for run in faulty)
