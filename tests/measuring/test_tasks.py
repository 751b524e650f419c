"""What there is to time for a job: its own operators and collectives by their share, and what calibrate reads of it."""

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_gpu import FakeGpu
from traincast import api
from traincast.calibration.collectives import read_collectives
from traincast.calibration.operator_fit import FEWEST
from traincast.calibration.operators import operators_of
from traincast.calibration.tables import read_table
from traincast.cli.main import main
from traincast.estimate.operators import estimate_operator, shipped_constants, work_of
from traincast.files import read_text
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import load_gpu
from traincast.job.draft import Draft
from traincast.job.options import StepOptions
from traincast.measuring import run
from traincast.measuring.collectives import TorchCollectives, per_node_of
from traincast.measuring.kernels import Call
from traincast.measuring.tasks import MOST_ELEMENTS, calls_of, collective_cells, operator_cells, tasks_of
from traincast.measuring.timing import CannotTimeError, Task, measure
from traincast.simulation.job_step import run_job
from traincast.simulation.reproducible import decide
from traincast.simulation.step import Setting
from traincast.workload.ops import OperatorCall

JOB = Path(__file__).parents[2] / "examples" / "llama3_70b_512gpu.toml"


def step_of(model="llama3-8b", **fields):
    cluster = load_cluster("h100")
    said = {"gpus": 16, "tp": 2, "pp": 2, "global_batch": 32, "seq_length": 4096} | fields
    _, _, job, _ = decide(Draft(model=model, fields=said), cluster)
    return run_job(job, Setting.from_options(StepOptions(), cluster))


@pytest.fixture(scope="module")
def dense():
    return step_of()


def test_the_operators_are_those_of_the_step_with_their_counts(dense):
    job, counts = dense.job, calls_of(dense)
    layers, microbatches = job.model.layers // 2, job.parallel.microbatches
    forward = [call for call in counts if call.family == "attention" and call.direction == "forward"]
    assert [counts[call] for call in forward] == [layers * microbatches]
    assert {call.family for call in counts} >= {"gemm", "attention", "norm", "optimizer", "cross_entropy", "embedding"}
    tasks = tasks_of(dense).operators
    assert len({task.key for task in tasks}) == len(tasks)
    assert sum(task.share for task in tasks) == pytest.approx(1.0)
    largest = max(tasks, key=lambda task: task.share)
    assert largest.cells["family"] == "gemm"
    assert all(task.count > 0 for task in tasks if task.share)


def test_each_kind_has_sizes_enough_for_a_fit(dense):
    kinds = {}
    for task in tasks_of(dense).operators:
        cells = {**task.cells, "shape": ""}
        kinds.setdefault(tuple(cells.values()), set()).add(task.cells["shape"])
    assert min(len(shapes) for shapes in kinds.values()) > FEWEST


def test_what_pytorch_cannot_run_is_timed_as_what_it_can(dense):
    cells = [task.cells for task in tasks_of(dense).operators]
    assert all(each["options"] == "accumulate=none" for each in cells if each["direction"] == "wgrad")
    assert {each["dtype"] for each in cells if each["family"] == "optimizer"} == {"fp32"}
    long = step_of("llama3-70b", gpus=16, tp=1, pp=1, zero=0)
    shapes = [int(task.cells["shape"]) for task in tasks_of(long).operators if task.cells["family"] == "optimizer"]
    assert max(shapes) == MOST_ELEMENTS


def test_what_is_made_of_parts_is_timed_by_them():
    call = OperatorCall(family="unfused_attention", shape=(1, 8, 8, 2, 2, 4, 4), dtype="bf16")
    parts = {part.family for part in work_of(call).parts}
    step = step_of("gpt2-xl", seq_length=1024, attention_kernel="unfused", tp=1)
    families = {task.cells["family"] for task in tasks_of(step).operators}
    assert parts <= families
    assert "unfused_attention" not in families


def test_collectives_are_those_of_the_step_and_a_ladder_below(dense):
    tasks = tasks_of(dense).collectives
    own = [task for task in tasks if task.count]
    assert sum(task.share for task in own) == pytest.approx(1.0)
    assert {(task.cells["op"], task.cells["per_node"]) for task in own} >= {("send_recv", "2x1"), ("all_gather", "2")}
    for op, spread in {(task.cells["op"], task.cells["per_node"]) for task in own}:
        sizes = [int(task.cells["size_bytes"]) for task in tasks if task.cells["op"] == op]
        largest = max(int(task.cells["size_bytes"]) for task in own if task.cells["op"] == op)
        assert max(sizes) == largest
        assert spread


@pytest.mark.parametrize(
    ("per_node", "text"), [((8,), "8"), ((1, 1), "2x1"), ((8, 8, 8, 2), "3x8+2"), ((4, 3, 2), "4+3+2")]
)
def test_a_spread_over_nodes_is_written_short_and_read_again(per_node, text):
    cells = collective_cells("all_reduce", 8, per_node)
    assert (cells["per_node"], cells["ranks"], cells["nodes"]) == (text, str(sum(per_node)), str(len(per_node)))
    assert per_node_of(text) == list(per_node)


def test_a_group_is_played_by_the_first_gpus_of_the_fullest_nodes():
    ranks = object.__new__(TorchCollectives)
    ranks.nodes = [[0, 1], [2, 3, 4, 5]]
    assert ranks.members([2]) == (2, 3)
    assert ranks.members([1, 1]) == (0, 2)
    assert ranks.members([4, 2]) == (0, 1, 2, 3, 4, 5)
    with pytest.raises(CannotTimeError, match=r"needs 8 GPUs, 4 on each of 2 node\(s\); torchrun started 4\+2"):
        ranks.members([4, 4])


def kernel_gpu(gpu, factor):
    """Return a GPU whose kernels take what the model says of another one, times a factor."""

    class Kernels(FakeGpu):
        def prepare(self, cells):
            self.alive += 1
            call = Call.from_cells(cells)
            asked = OperatorCall(**{**call._asdict(), "options": tuple(call.options.items())})
            assert operator_cells(asked) == cells
            return factor * estimate_operator(asked, gpu).time_s

    return Kernels({}, "NVIDIA A100-SXM4-80GB")


@pytest.mark.slow
def test_calibrate_finds_the_gpu_that_the_times_are_of(dense, tmp_path):
    """From a job to its tasks, the file, the fit: a GPU that is 1.3 times slower than the model says, is found."""
    gpu, out = load_gpu("A100-SXM-80GB"), tmp_path / "a100.csv"
    tasks = [task for task in tasks_of(dense).operators if task.cells["family"] in ("gemm", "norm")]
    measure(tasks, kernel_gpu(gpu, 1.3), out, read_text=read_text)
    read = operators_of(read_table(out))
    assert (len(read), read.skipped) == (len(tasks), ())
    assert {each.name for each in read.gpu} == {gpu.name}
    fit = api.calibrate_operators(out, "a100")
    assert {each.family for each in fit.constants} >= {"gemm", "gemm_wgrad", "norm"}
    known = fit.over(shipped_constants())
    for task in tasks[:6]:
        call = Call.from_cells(task.cells)
        asked = OperatorCall(**{**call._asdict(), "options": tuple(call.options.items())})
        ratio = estimate_operator(asked, gpu, known).time_s / estimate_operator(asked, gpu).time_s
        assert ratio == pytest.approx(1.3, rel=0.04)


def test_calibrate_reads_what_torchrun_wrote(dense, tmp_path):
    out = tmp_path / "c.csv"

    class Links(FakeGpu):
        def prepare(self, cells):
            self.alive += 1
            return 1e-5 + int(cells["size_bytes"]) / 1e11

        def host_s(self, _):
            return None

    tasks = tasks_of(dense).collectives
    measure(tasks, Links({}, "NVIDIA H100 80GB HBM3"), out, read_text=read_text)
    read = read_collectives([out])
    assert (len(read.measurements), read.skipped) == (len(tasks), ())
    expected = 1e-5 + read.measurements.size_bytes / 1e11
    assert np.allclose(read.measurements.time_s, expected, rtol=1e-5)


def test_the_script_runs_without_traincast_and_times_the_same(dense, tmp_path):
    script, found = tmp_path / "measure.py", tasks_of(dense)
    with pytest.raises(SystemExit) as end:
        main(["measure", str(JOB), "--script", str(script)])
    assert end.value.code == 0
    text = script.read_text()
    assert "from traincast" not in text
    assert "import traincast" not in text
    # Isolated, and with no torch to find, whatever this machine has.
    blocked = (
        "import sys, runpy; sys.modules['torch'] = None; script = sys.argv.pop(1); "
        "runpy.run_path(script, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", blocked, str(script), str(tmp_path / "t.csv")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: PyTorch is not installed here")
    assert len(done.stderr.splitlines()) == 1
    script.write_text(
        api.measuring_script(
            Draft(model="llama3-8b", fields={"gpus": 16, "tp": 2, "pp": 2, "global_batch": 32, "seq_length": 4096})
        )
    )
    names = runpy.run_path(str(script))
    assert [(task.key, task.count, task.share) for task in names["OPERATORS"]] == [
        (task.key, task.count, task.share) for task in found.operators
    ]
    assert [task.cells for task in names["COLLECTIVES"]] == [task.cells for task in found.collectives]
    names["measure"](names["OPERATORS"][:3], kernel_gpu(load_gpu("h100"), 1.0), tmp_path / "s.csv", read_text=read_text)
    measure(found.operators[:3], kernel_gpu(load_gpu("h100"), 1.0), tmp_path / "m.csv", read_text=read_text)
    assert (tmp_path / "s.csv").read_bytes() == (tmp_path / "m.csv").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ([], 2, "say --out FILE.csv"),
        (["--out", "a.csv", "--script", "b.py"], 2, "say --out FILE.csv"),
        (["--out", "t.csv", "--minutes", "0"], 2, "--minutes"),
        (["--out", "t.csv", "--spread", "2"], 2, "--spread"),
        (["--out", "t.csv"], 1, "error: PyTorch"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(words, code, what, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["measure", str(JOB), *words])
    assert end.value.code == code
    assert what in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_times_and_says_what_it_did(monkeypatch, tmp_path, capsys):
    gpu = kernel_gpu(load_gpu("h100"), 1.0)
    monkeypatch.setattr(run, "import_torch", lambda: None)
    monkeypatch.setattr(run, "TorchKernels", lambda _: gpu)
    words = ["measure", "--model", "llama3-8b", "--gpus", "8", "--seq-length", "2048", "--global-batch", "8"]
    out = tmp_path / "t.csv"
    for expected in ("0 in", "timed 0"):
        with pytest.raises(SystemExit) as end:
            main([*words, "--out", str(out)])
        assert end.value.code == 0
        shown = capsys.readouterr()
        assert expected in shown.out
        assert "100% of the expected time" in shown.out
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    shares = [float(line["share"]) for line in lines]
    assert shares == sorted(shares, reverse=True), "the most important come first"
    assert Task({"family": "x"}).name == "x"
