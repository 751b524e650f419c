"""Threads that forecast at the same time get what each would get alone."""

import multiprocessing
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from support import rich_rows, write_aicb
from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.files import warnings_of_python
from traincast.report.json import to_json

THREADS = 8


@pytest.fixture
def restless():
    """Threads take turns after every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def at_once(calls, times=1):
    """Return what each call returns to each of the threads, all begun at another of them."""
    shifted = [calls[turn % len(calls) :] + calls[: turn % len(calls)] for turn in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda mine: [call() for _ in range(times) for call in mine], shifted)
        return [each[-turn % len(calls) :] + each[: -turn % len(calls)] for turn, each in enumerate(found)]


def program(seed, count=60):
    """Return the arrays of a program; those of all seeds have one length."""
    rng = np.random.default_rng(seed)
    source_E = np.sort(rng.integers(0, count - 1, count)).astype(np.int32)
    target_E = np.array([rng.integers(each + 1, count) for each in source_E], dtype=np.int32)
    return rng.integers(0, 4, count).astype(np.int32), source_E, target_E, np.full(count, -1, dtype=np.int32)


def columns(graph):
    return [getattr(graph, name).tolist() for name in ("next_N", "edge_ptr_N1", "edge_dst_E", "waits_N")]


@pytest.mark.usefixtures("restless")
def test_graphs_of_threads_are_their_own():
    programs = [program(seed) for seed in range(5)]
    expected = [columns(build_graph(*each)) for each in programs]
    durations = np.linspace(0.0, 1.0, 60)
    steps = [float(run(build_graph(*each), durations)[2].max()) for each in programs]

    def call(arrays):
        graph = build_graph(*(each.copy() for each in arrays))
        return columns(graph), float(run(graph, durations)[2].max())

    for found in at_once([lambda arrays=each: call(arrays) for each in programs], times=20):
        assert found == list(zip(expected, steps, strict=True)) * 20


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
def test_eight_threads_are_as_one(tmp_path):
    write_aicb(tmp_path / "work.txt", rich_rows(), tp=2, pp=2, ga=4, gpus=8)
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_length": 1024}
    calls = [
        lambda: to_json(traincast.predict(**job, cluster="h100", tp=2, pp=2)),
        lambda: to_json(traincast.predict(**job, cluster="a100", tp=1, pp=2, allow_oom=True)),
        lambda: to_json(traincast.simulate(tmp_path / "work.txt", cluster="h100")),
        lambda: [each.layout for each in traincast.plan(**job, cluster="h100", top=2).best],
    ]
    alone = [call() for call in calls]
    for found in at_once(calls):
        assert found == alone


JOB = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_length": 1024, "allow_oom": True}


def step_of(number):
    """Return a forecast of one of many jobs, or a simulation, as it is written; processes are handed its number."""
    if number % 5 == 4:
        path = "examples/aicb_scaled_512gpu.txt"
        return to_json(traincast.simulate(path, cluster="h100", gpus=512 * (1 + number % 2)))
    layout = {"tp": (1, 2, 4)[number % 3], "pp": (1, 2)[number // 3 % 2], "seq_length": 1024 + 64 * (number % 7)}
    result = traincast.predict(**{**JOB, **layout}, cluster=("h100", "a100")[number % 2])
    # What advice tries are ten forecasts more: a few jobs are asked for it.
    return to_json(result if number % 16 == 0 else replace(result, advice=()))


@cache
def alone(number):
    """Return a step as this process finds it while nothing else runs."""
    return step_of(number)


def numbers(count):
    """Return jobs in turn and every other one again."""
    return [*range(count), *range(0, count, 2)]


# Jobs repeat after 210, and what goes wrong between threads does so within some dozens of forecasts at once.
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_many_steps_in_eight_threads_are_as_one_after_the_other(count):
    expected = [alone(number) for number in numbers(count)]
    with ThreadPoolExecutor(THREADS) as pool:
        for known, found in zip(expected, pool.map(step_of, numbers(count)), strict=True):
            assert found == known


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_processes_are_as_one(start, count):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"processes are not started by {start} here")
    expected = [alone(number) for number in numbers(count)]
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as pool:
        for known, found in zip(expected, pool.map(step_of, numbers(count), chunksize=4), strict=True):
            assert found == known


def test_threads_that_read_python_leave_the_filters_of_warnings():
    before = list(warnings.filters)
    entered, first_ends = threading.Event(), threading.Event()

    def hold(action, until):
        with warnings_of_python(action):
            entered.set()
            until.wait(0.2)

    first = threading.Thread(target=hold, args=("error", first_ends))
    first.start()
    entered.wait()
    second = threading.Thread(target=hold, args=("ignore", threading.Event()))
    second.start()
    first.join(0.05)
    first_ends.set()
    first.join()
    second.join()
    assert warnings.filters == before
