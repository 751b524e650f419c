"""NeuSight's files that were read are written back: the same bytes, or other times in their places."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from traincast.errors import FormatError
from traincast.workload.words import Kind

ROOT = Path(__file__).parents[3]
FORECAST = ROOT / "examples" / "neusight_gpt2_large_dp.tsv"
SAMPLES = [
    FORECAST,
    *sorted(
        path
        for folder in ("neusight", "neusight-graph")
        for path in (ROOT / "tests/conformance/samples" / folder).iterdir()
    ),
]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_file_comes_back_as_it_was(tmp_path, path):
    traincast.convert(path, tmp_path / "out", "neusight")
    assert (tmp_path / "out").read_bytes() == path.read_bytes()


def test_other_times_are_written_into_their_cells(tmp_path):
    workload = traincast.read(FORECAST)
    ops = workload.ops
    twice_s_T = np.where(ops.kind_T == Kind.COMPUTE, 2 * ops.duration_s_T, ops.duration_s_T)
    traincast.convert(replace(workload, ops=replace(ops, duration_s_T=twice_s_T)), tmp_path / "out.tsv", "neusight")
    was = traincast.simulate(FORECAST, cluster="h100")
    now = traincast.simulate(tmp_path / "out.tsv", cluster="h100")
    assert now.breakdown_s["compute"] == pytest.approx(2 * was.breakdown_s["compute"], rel=1e-6)
    header, first, *_ = (tmp_path / "out.tsv").read_text().splitlines()
    assert header == FORECAST.read_text().splitlines()[0]
    assert float(first.split("\t")[1]) == pytest.approx(2 * float(FORECAST.read_text().splitlines()[1].split("\t")[1]))


def test_what_the_file_cannot_say_is_listed_and_other_operations_are_refused(tmp_path):
    done = traincast.convert(FORECAST, tmp_path / "a.tsv", "neusight", dp=8, microbatches=2)
    assert {"neusight-dp", "neusight-microbatches", "neusight-cluster"} <= {note.code for note in done.lost}
    assert (tmp_path / "a.tsv").read_bytes() == FORECAST.read_bytes()
    workload = traincast.read(FORECAST)
    with pytest.raises(FormatError, match="operations differ"):
        more = replace(workload, ops=workload.ops.joined(workload.ops))
        traincast.convert(more, tmp_path / "b.tsv", "neusight")
    with pytest.raises(FormatError, match="describes no job"):
        traincast.convert(ROOT / "examples" / "aicb_scaled_512gpu.txt", tmp_path / "c.tsv", "neusight")
