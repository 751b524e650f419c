"""Machine code of kernels: made once, kept, and loaded by processes that do not import numba."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

machine_code = pytest.importorskip("traincast.machine_code")

ADDS = """
from traincast.machine_code import part


@part
def _sum(of, count):
    total = 0
    for at in range(count):
        total += of[at]
    return total


def add(of, count, into):
    into[0] = 0.5 * _sum(of, count)
    return _sum(of, count)


def calls_python(of):
    print(of[0])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "adding.py").write_text(ADDS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    yield "adding"
    sys.modules.pop("adding", None)


def added(kernel, of=(1, 2, 39)):
    into = np.zeros(1)
    return kernel(np.array(of, np.int32), len(of), into), float(into[0])


def test_what_is_kept_is_found_again_without_a_compiler(module, tmp_path, monkeypatch):
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 21.0)
    (kept,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr(machine_code, "_compiled", None)
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 21.0)
    assert kept.name.startswith("add-")


def test_no_process_but_the_first_imports_numba():
    code = (
        "import sys, traincast\n"
        "job = {'model': 'llama3-8b', 'cluster': 'h100', 'gpus': 8, 'pp': 2, 'global_batch': 8, 'seq_length': 4096}\n"
        "traincast.predict(**job, engine='kernel')\n"
        "print('numba' in sys.modules, 'traincast.engine.visits' in sys.modules)"
    )
    for _ in range(2):
        told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8").stdout
    assert told == "False False\n"


@pytest.mark.parametrize("damage", [lambda kept: kept[:100], lambda kept: kept[:-1] + b"x", lambda _: b""])
def test_a_damaged_file_is_made_again(module, tmp_path, damage, monkeypatch):
    added(machine_code.CompiledKernel(module, "add", "ind"))
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 21.0)
    monkeypatch.setattr(machine_code, "_compiled", None)
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 21.0)


def test_other_code_has_another_file(module, tmp_path):
    added(machine_code.CompiledKernel(module, "add", "ind"))
    (tmp_path / "adding.py").write_text(ADDS.replace("0.5", "0.25"), encoding="utf-8")
    sys.modules.pop("adding")
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 10.5)
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_where_nothing_can_be_kept_it_runs_all_the_same(module, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert added(machine_code.CompiledKernel(module, "add", "ind")) == (42, 21.0)


@pytest.mark.parametrize("of", [np.zeros(4, np.int64), np.zeros(8, np.int32)[::2], 7])
def test_arrays_of_another_kind_are_refused(module, of):
    with pytest.raises(TypeError, match="is not an array of int32 without gaps"):
        machine_code.CompiledKernel(module, "add", "ind")(of, 4, np.zeros(1))


def test_what_calls_python_is_no_kernel(module):
    from traincast.errors import ProgramError

    with pytest.raises(ProgramError, match="makes no plain function of calls_python"):
        machine_code.CompiledKernel(module, "calls_python", "i")(np.zeros(1, np.int32))


def test_threads_that_load_it_at_once_find_the_same(module):
    kernel, ready = machine_code.CompiledKernel(module, "add", "ind"), threading.Barrier(8)

    def run(_):
        ready.wait()
        return [added(kernel) for _ in range(200)]

    added(machine_code.CompiledKernel(module, "add", "ind"))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(8)))
    assert {each for of in found for each in of} == {(42, 21.0)}
