"""Constants of the user's own kernels in forecasts and simulations: what they change, what is said, and run again."""

import pytest

import traincast
from traincast import api
from traincast.cli.main import main
from traincast.errors import ConfigError, FormatError
from traincast.estimate.operators import estimate_operator, shipped_constants
from traincast.estimate.operators.constants import write_constants
from traincast.hardware.gpu import load_gpu
from traincast.job.draft import Draft
from traincast.report.json import result_from_json, to_json
from traincast.workload.ops import OperatorCall

JOB = Draft(
    model="llama3-8b",
    cluster="h100",
    fields={"gpus": 8, "tp": 2, "global_batch": 8, "seq_length": 4096, "micro_batch": 1},
)


@pytest.fixture
def half(tmp_path):
    """Return a file of constants by which GEMMs reach half their rate on an H100."""
    gpu, path = load_gpu("h100"), tmp_path / "mine.csv"
    rows = [row for row in shipped_constants().rows if row.gpu == gpu.name and row.family in ("gemm", "norm")]
    fields = {name: getattr(rows[0], name) for name in rows[0].__struct_fields__}
    path.write_text(write_constants([type(rows[0])(**fields | {"dtype": "bf16", "compute": 0.3, "family": "gemm"})]))
    return path


def test_forecasts_take_the_constants_and_say_so(half):
    options = traincast.StepOptions(constants=half)
    plain, slow = api.predict(JOB), api.predict(JOB, options=options)
    assert slow.iteration_time_s > 1.2 * plain.iteration_time_s
    (note,) = [note for note in slow.assumptions if note.code == "constants"]
    assert note.text == f"operators take the constants of {half}: gemm bf16"
    assert [file.format for file in slow.inputs] == ["constants"]


def test_another_gpu_is_not_changed_and_it_is_said(half):
    options, job = traincast.StepOptions(constants=half), Draft(model=JOB.model, cluster="a100", fields=JOB.fields)
    found = api.predict(job, options=options)
    assert found.iteration_time_s == api.predict(job).iteration_time_s
    (note,) = [note for note in found.assumptions if note.code == "constants-unused"]
    assert "has no constants of A100-SXM-80GB, but of H100-SXM-80GB" in note.text


def test_a_result_with_constants_runs_again_without_their_file(half):
    result = api.predict(JOB, options=traincast.StepOptions(constants=half))
    half.unlink()
    again = api.run_again(result_from_json(to_json(result), "result.json"))
    assert again.iteration_time_s == result.iteration_time_s


def test_the_fit_of_measured_kernels_reaches_forecasts(tmp_path):
    """GEMMs that take 1.5 times what is estimated: calibrate, and a job's forward GEMMs take longer."""
    gpu, path, profile = load_gpu("a100"), tmp_path / "kernels.csv", tmp_path / "mine.csv"
    calls = [
        OperatorCall(family="gemm", shape=(m, n, 4096), dtype="bf16", direction="forward")
        for m in (1024, 4096)
        for n in (4096, 6144, 28672)
    ]
    lines = ["family,shape,dtype,time_s"]
    lines += [
        f"gemm,{'x'.join(map(str, call.shape))},bf16,{1.5 * estimate_operator(call, gpu).time_s:.6g}" for call in calls
    ]
    path.write_text("\n".join(lines) + "\n")
    profile.write_text(api.calibrate_operators(path, "a100").profile())
    job = Draft(model=JOB.model, cluster="a100", fields=JOB.fields)
    plain, fitted = (
        api.predict(job, options=traincast.StepOptions(constants=file)).breakdown_s["compute"]
        for file in (None, profile)
    )
    # Forward GEMMs alone, a third of the GEMMs' time and about a quarter of all.
    assert 1.05 < fitted / plain < 1.5


def test_constants_that_change_nothing_are_named(half):
    trace = "examples/megatron_pp4_tp2"
    result = api.simulate(trace, cluster="a800", constants=half)
    assert [note.code for note in result.warnings if note.code == "constants-unused"] == ["constants-unused"]
    assert result.iteration_time_s == api.simulate(trace, cluster="a800").iteration_time_s


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a,b\n1,2\n", "is not a file of operator constants"),
        ("gpu,family,dtype,compute\nx,gemm,bf16,7\n", "compute of x gemm"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, capsys, text, what):
    path = tmp_path / "none.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=what):
        api.predict(JOB, options=traincast.StepOptions(constants=path))
    words = ["predict", "--model", "llama3-8b", "--gpus", "8", "--global-batch", "8", "--seq-length", "4096"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--constants", str(path)])
    assert end.value.code == 1
    assert what in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises((FormatError, ConfigError), match=r"absent\.csv"):
        traincast.StepOptions(constants=tmp_path / "absent.csv")
