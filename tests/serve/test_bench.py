"""What a worker keeps from call to call, and what it lets go of."""

import gc
import weakref

import pytest

from traincast.serve.answers import bench as module
from traincast.serve.answers.bench import Workbench


class Ring:
    """Something that holds itself, as programs do."""

    def __init__(self):
        self.own = self


@pytest.fixture
def bench(monkeypatch):
    # That of these tests may be as large as any.
    monkeypatch.setattr(module, "resident_bytes", lambda _: 0)
    gc.collect()
    gc.disable()
    yield Workbench(lambda *_: None)
    gc.enable()
    gc.unfreeze()


def test_what_a_call_left_goes_and_what_was_prepared_stays(bench):
    left, study = weakref.ref(Ring()), bench.study
    assert left() is not None
    bench.let_go()
    assert left() is None
    assert bench.study is study


def test_what_outlived_a_call_goes_within_some(bench):
    ring = Ring()
    bench.let_go()
    left = weakref.ref(ring)
    del ring
    for _ in range(20):
        bench.let_go()
    assert left() is None


def test_a_worker_that_is_too_large_forgets_what_was_prepared(bench, monkeypatch):
    study = bench.study
    monkeypatch.setattr(module, "resident_bytes", lambda _: 2**40)
    bench.let_go()
    assert bench.study is not study


def test_what_is_loaded_is_not_looked_through_again(bench):
    bench.settle()
    assert gc.get_freeze_count() > 10_000
