"""AICB files that were read are written back: the same bytes, or what the user said otherwise in its place."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from traincast.errors import FormatError
from traincast.job.options import LayoutOptions
from traincast.workload.words import Kind, Phase

ROOT = Path(__file__).parents[3]
SAMPLES = sorted([*(ROOT / "examples").glob("aicb_*.txt"), *(ROOT / "tests/conformance/samples/aicb").glob("*.txt")])
GPT = ROOT / "examples" / "aicb_gpt_405b_1024gpu.txt"
OTHER = {"tp": 4, "pp": 8, "ep": 2, "vpp": 2, "microbatches": 5, "gpus": 2048, "pp_message_bytes": 4096}


def written(tmp_path, source, **options):
    """Convert a file or a workload and return where it is."""
    out = tmp_path / "written.txt"
    traincast.convert(source, out, "aicb", force=True, **options)
    return out


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_file_comes_back_as_it_was(tmp_path, path):
    assert written(tmp_path, path).read_bytes() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["\r\n", "\n", "\n\n"])
def test_line_ends_and_spaces_stay(tmp_path, ending):
    path = tmp_path / "odd.txt"
    path.write_bytes(GPT.read_text().replace("\t", "  ").replace("\n", ending).encode())
    assert written(tmp_path, path).read_bytes() == path.read_bytes()
    again = traincast.read(written(tmp_path, path, gpus=2048))
    assert again.parallel.world_size == 2048


@pytest.mark.parametrize(
    "path",
    [pytest.param(GPT, marks=pytest.mark.slow), ROOT / "examples" / "aicb_scaled_512gpu.txt"],
    ids=lambda path: path.name,
)
@pytest.mark.parametrize("name", OTHER)
def test_what_is_said_otherwise_is_what_the_file_says(tmp_path, path, name):
    changed = {name: OTHER[name]}
    out = written(tmp_path, path, **changed)
    asked = traincast.simulate(path, cluster="h100", **changed)
    read = traincast.simulate(out, cluster="h100")
    assert read.iteration_time_s == pytest.approx(asked.iteration_time_s, rel=1e-12)
    assert read.parallel == asked.parallel
    was, now = path.read_text().splitlines(), out.read_text().splitlines()
    if name != "microbatches":
        assert was[1:] == now[1:]


@pytest.mark.parametrize("count", [1, 7, 16, 20])
def test_microbatches_are_dropped_or_repeated_with_their_rows(tmp_path, count):
    out = written(tmp_path, GPT, microbatches=count)
    lines = out.read_text().splitlines()
    assert int(lines[1]) == len(lines) - 2
    assert sum(line.startswith("embedding_layer") for line in lines) == count
    assert f"ga: {count}" in lines[0]
    assert lines[-1] == GPT.read_text().splitlines()[-1]


def test_other_times_are_written_into_their_cells(tmp_path):
    workload = traincast.read(GPT)
    ops = workload.ops
    slower_s_T = np.where(ops.kind_T == Kind.COMPUTE, 2 * ops.duration_s_T, ops.duration_s_T)
    out = written(tmp_path, replace(workload, ops=replace(ops, duration_s_T=slower_s_T)))
    was, now = ([line.split() for line in path.read_text().splitlines()[2:]] for path in (GPT, out))
    for before, after in zip(was, now, strict=True):
        for at in range(12):
            expected = str(2 * int(before[at])) if at in (2, 5, 8) and before[at].isdigit() else before[at]
            # Columns that do not run, such as the gradients of a row that only communicates, have no operation.
            assert after[at] in (expected, before[at])
    again = traincast.read(out).ops
    assert again.duration_s_T == pytest.approx(slower_s_T, nan_ok=True)


def test_one_time_is_one_cell_and_other_operations_are_refused(tmp_path):
    workload = traincast.read(GPT)
    ops = workload.ops
    # The optimizer's work is one row for all stages, which have operations of their own.
    first = int(np.flatnonzero((ops.kind_T == Kind.COMPUTE) & (ops.phase_T == Phase.STEP))[0])
    same_T = (ops.line_T == ops.line_T[first]) & (ops.phase_T == ops.phase_T[first]) & (ops.kind_T == Kind.COMPUTE)
    duration_s_T = np.where(same_T, 2 * ops.duration_s_T, ops.duration_s_T)
    out = written(tmp_path, replace(workload, ops=replace(ops, duration_s_T=duration_s_T)))
    assert sum(a != b for a, b in zip(out.read_text().split("\n"), GPT.read_text().split("\n"), strict=True)) == 1
    duration_s_T[first] *= 2
    with pytest.raises(FormatError, match="ranks compute for different times here"):
        written(tmp_path, replace(workload, ops=replace(ops, duration_s_T=duration_s_T)))
    with pytest.raises(FormatError, match="operations differ"):
        written(tmp_path, replace(workload, ops=ops.joined(ops)))


def test_what_a_file_cannot_say_is_listed(tmp_path):
    done = traincast.convert(GPT, tmp_path / "o.txt", "aicb", options=None, cp=2, gpus=2048, overlap_grad_reduce=True)
    assert {"aicb-cluster", "aicb-cp", "aicb-overlap-grad-reduce"} <= {note.code for note in done.lost}


def test_a_workload_is_read_with_its_layout_again(tmp_path):
    workload = traincast.read(GPT, LayoutOptions(gpus=2048))
    assert "all_gpus: 2048" in written(tmp_path, workload).read_text()
