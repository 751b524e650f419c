"""A described job as a NeuSight forecast: its rows, their sizes, and that they are read again."""

import math
from pathlib import Path

import pytest

from traincast import api
from traincast.errors import ConfigError, FormatError
from traincast.formats.neusight.grammar import parse
from traincast.formats.writer import WRITERS
from traincast.job.job_file import read_job_file
from traincast.job.options import SimulateOptions
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.simulation.convert import run_of_job
from traincast.simulation.reproducible import choose
from traincast.workload.words import Group, Kind, Operation, Phase

SAMPLE = Path(__file__).parents[3] / "examples" / "neusight_gpt2_large_dp.tsv"
MEGATRON = "megatron-core-2024"
GPT2 = {
    "model": "gpt2-large",
    "seq": 1024,
    "batch": 64,
    "micro": 16,
    "gpus": 4,
    "framework": "eager",
    "more": 'precision = "fp32"',
}


def load(path):
    return parse(str(path), path.read_text())


@pytest.fixture
def job(tmp_path):
    """Write a job file and return its path."""

    def write(
        model="llama3-8b", *, tp=1, pp=1, seq=1024, batch=32, micro=1, gpus=8, more="", framework="megatron-core-2024"
    ):
        path = tmp_path / "job.toml"
        path.write_text(
            f'[model]\nname = "{model}"\n[parallel]\ntp = {tp}\npp = {pp}\n'
            f"[batch]\nseq_length = {seq}\nglobal_batch = {batch}\nmicro_batch = {micro}\n"
            f'[cluster]\nname = "h100"\ngpus = {gpus}\n'
            f'[software]\nframework = "{framework}"\nvocab_multiple = 1\n{more}\n'
        )
        return path

    return write


@pytest.fixture
def written(job, tmp_path):
    """Write a job as a forecast and return what is read of it."""

    def write(choices=None, **fields):
        out = tmp_path / "out.tsv"
        api.convert(job(**fields), out, "neusight", force=True, **(choices or {}))
        return load(out)

    return write


def gradients(file):
    return sum(cell.elements for row in file.rows for cell in row.reductions)


def test_the_rows_of_the_sample_come_back_name_by_name_with_its_sizes(written):
    found = written({"layers": "1", "backward": "no"}, **GPT2)
    sample = load(SAMPLE)
    assert [row.name for row in found.rows] == [row.name for row in sample.rows]
    for mine, theirs in zip(found.rows, sample.rows, strict=True):
        for cell, other in zip(mine.cells, theirs.cells, strict=True):
            assert (cell.operation, cell.asynchronous, cell.elements, cell.group) == (
                *(other.operation, other.asynchronous, other.elements, other.group),
            )
        assert mine.backward.compute_s == mine.weight_grad.compute_s == 0
        # NeuSight charges nodes of sizes alone with two numbers, and views with a copy.
        assert (mine.forward.compute_s > 0) == (theirs.forward.compute_s > 0 and "getitem" not in mine.name)


def test_times_are_those_of_operators_alone_on_the_gpu(written, job, tmp_path):
    written({}, **GPT2)
    out = tmp_path / "a100.tsv"
    api.convert(job(**GPT2), out, "neusight", options=SimulateOptions(cluster="A100-PCIe-40GB"), layers="1")
    found = {row.name: row for row in load(out).rows}
    linear = api.operator("gemm", "A100-PCIe-40GB", m=16384, n=3840, k=1280, dtype="fp32")
    assert found["addmm"].forward.compute_s == pytest.approx(linear.cost.time_s, rel=1e-12)
    total = sum(row.forward.compute_s for row in found.values())
    assert total == pytest.approx(sum(row.forward.compute_s for row in load(SAMPLE).rows), rel=0.05)


def test_all_layers_have_all_parameters_and_numbered_names(written):
    found = written({}, **GPT2)
    model = load_model("gpt2-large")
    # NeuSight's exporter counts a bias of the LM head, which there is none.
    assert gradients(found) == parameters(model).total + model.vocab
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names) == 11 + 40 * 36
    assert {"addmm_143", "add_435", "getitem_435", "pow_72", "mul_143", "matmul_71", "softmax_35"} <= set(names)
    assert names[-6:-4] == ["addmm_143", "add_435"]


def test_a_file_with_one_layer_says_as_much_as_one_with_all(job, tmp_path):
    one, every = tmp_path / "one.tsv", tmp_path / "every.tsv"
    api.convert(job(**GPT2), one, "neusight", layers="1")
    api.convert(job(**GPT2), every, "neusight")
    options = {"cluster": "a100", "dp": 4}
    steps = [api.simulate(one, layers=36, **options), api.simulate(every, **options)]
    assert steps[0].iteration_time_s == pytest.approx(steps[1].iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("model", ["llama3-8b", "gpt2-xl", "mixtral-8x7b", "gemma-2b", "qwen3-30b-a3b"])
def test_modules_of_any_model_have_all_its_parameters(written, model):
    found = written({"graph": "modules"}, model=model)
    assert gradients(found) == parameters(load_model(model)).total


def test_rows_hold_what_the_forecast_of_a_microbatch_computes(job, tmp_path):
    path, out = job(tp=2, gpus=16), tmp_path / "out.tsv"
    api.convert(path, out, "neusight", times="step")
    run = run_of_job(read_job_file(str(path)), choose(SimulateOptions(), "h100", "auto"), WRITERS.get("neusight"))
    ops, template = run.workload.ops, run.workload.templates[0]
    seconds = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT), 0.0)
    for number in (template.forward_QM[0, 0], template.backward_QM[0, 0]):
        for row in run.workload.segments[number]:
            if ops.kind_T[row] == Kind.COMPUTE and ops.phase_T[row] in seconds:
                seconds[Phase(ops.phase_T[row])] += float(ops.duration_s_T[row])
    rows = load(out).rows
    assert math.fsum(row.forward.compute_s for row in rows) == pytest.approx(seconds[Phase.FORWARD], rel=1e-6)
    backward = seconds[Phase.BACKWARD] + seconds[Phase.WEIGHT_GRADIENT]
    assert math.fsum(row.backward.compute_s for row in rows) == pytest.approx(backward, rel=1e-6)
    # What tensor parallel ranks exchange in a microbatch, in each pass, in 16 bits.
    for of, number in enumerate((template.forward_QM[0, 0], template.backward_QM[0, 0])):
        mine = sum(row.cells[of].elements for row in rows if row.cells[of].group is Group.TP)
        exchanged = [row for row in run.workload.segments[number] if ops.group_T[row] == Group.TP]
        assert 2 * mine == pytest.approx(sum(ops.size_bytes_T[row] * ops.repeats_T[row] for row in exchanged), rel=1e-9)


def test_stages_and_tensor_parallel_ranks_are_written_and_simulated(job, tmp_path):
    out = tmp_path / "out.tsv"
    done = api.convert(job(tp=2, pp=4, gpus=32), out, "neusight")
    assert {note.code for note in done.lost} >= {"neusight-ranks", "neusight-microbatches", "neusight-dtype"}
    file = load(out)
    sends = [row for row in file.rows if row.sends]
    assert [row.name for row in sends] == ["send_0", "send_1", "send_2"]
    model = load_model("llama3-8b")
    assert {row.forward.elements for row in sends} == {1024 * model.hidden // 2}
    found = api.simulate(out, cluster="h100", dp=4, tp=2, microbatches=8, dtype="bf16")
    assert (found.parallel.pp, found.parallel.world_size) == (4, 32)
    moved = {(each.group, each.op): each.size_bytes for each in found.collectives}
    assert moved["pp", "send_recv"] == 1024 * model.hidden
    assert moved["tp", "all_gather"] == 1024 * model.hidden * 2
    operations = {row.forward.operation for row in file.rows} | {row.backward.operation for row in file.rows}
    assert {Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE} <= operations


def test_one_replica_reduces_nothing(written):
    assert gradients(written({}, gpus=1, batch=4)) == 0


def test_what_cannot_be_written_is_refused(job, tmp_path):
    out = tmp_path / "out.tsv"
    path = job("mixtral-8x7b")
    path.write_text(path.read_text().replace("pp = 1\n", "pp = 1\nep = 8\n"))
    with pytest.raises(FormatError, match="ep 8"):
        api.convert(path, out, "neusight")
    with pytest.raises(FormatError, match="describes no job"):
        api.convert(SAMPLE.with_name("aicb_scaled_512gpu.txt"), out, "neusight")
    for choices, message in (
        ({"layers": "0"}, "from 1 to 32"),
        ({"layers": "x"}, "from 1 to 32"),
        ({"graph": "gpt2"}, "not of its kind"),
    ):
        with pytest.raises(ConfigError, match=message):
            api.convert(job(), out, "neusight", **choices)
    with pytest.raises(ConfigError, match="needs all layers"):
        api.convert(job(pp=2), out, "neusight", layers="1")
    assert not out.exists()
