"""Same inputs, same bytes: whatever the hash seed, the engine, and whether compiled code was cached."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import traincast
from support import rich_rows, write_aicb
from traincast.report.json import to_json

SCRIPT = r"""
import sys
import traincast
from traincast.report.json import to_json

path, *engines = sys.argv[1:]
for engine in engines:
    for unfold in (False, True):
        result = traincast.simulate(
            path, cluster="a100", tp=2, dp=12, pp=2, vpp=2, ep=2, unfold=unfold, engine=engine,
            overlap_grad_reduce=True, compute_slowdown={5: 1.5},
        )
        sys.stdout.buffer.write(to_json(result) + b"\0")
"""


@pytest.fixture
def workload(tmp_path):
    return write_aicb(tmp_path / "w.txt", rich_rows(microbatches=4), ga=4, pp_comm=1 << 20)


def run_with_seed(seed, path, *engines):
    """Return the documents of a fresh interpreter, one for each engine and fold."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-c", SCRIPT, str(path), *engines]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    return done.stdout.removesuffix(b"\0").split(b"\0")


@pytest.mark.slow
def test_hash_seed_and_engine_do_not_show(workload):
    engines = ["auto", "reference", *(["kernel"] if find_spec("numba") else [])]
    first, *others = (run_with_seed(seed, workload, *engines) for seed in (0, 1, 2))
    assert others == [first, first]
    # They alternate between folded and unfolded; each engine says the same.
    assert len(first) == 2 * len(engines)
    assert set(first[::2]) == {first[0]}
    assert set(first[1::2]) == {first[1]}
    assert first[0] != first[1]


def test_a_second_run_in_one_process_is_the_same(workload):
    texts = {to_json(traincast.simulate(workload, cluster="h100", tp=2, pp=2, dp=2)) for _ in range(2)}
    assert len(texts) == 1


def test_options_given_in_another_order_are_the_same(workload):
    slow = {3: 1.5, 0: 1.25}
    rates = {"tp": 1e11, "dp": 2e10}
    texts = {
        to_json(
            traincast.simulate(
                workload, cluster="h100", tp=2, pp=2, dp=2, compute_slowdown=slow_, busbw_bytes_per_s=rates_
            )
        )
        for slow_, rates_ in ((slow, rates), (dict(reversed(slow.items())), dict(reversed(rates.items()))))
    }
    assert len(texts) == 1
