"""A block and a model that the page on adding adds, each as one file, are in everything that is said of a model."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import traincast
from job_parts import calls_of, exchanged, job_of, workload_of
from model_counts import layer_flops, layer_parameters
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError
from traincast.estimate.memory import stage_memory
from traincast.job.request import JobRequest
from traincast.lowering.plans import plan_of_job
from traincast.model import structure
from traincast.model.blocks.part import BLOCKS
from traincast.model.blocks.share import Sequences, Share
from traincast.model.counts import hardware_flops_per_token, parameters
from traincast.model.load import load_model
from traincast.report.files import write_directory
from traincast.workload.words import Group, Operation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text()
HIDDEN, WIDTH, FFN, TOKENS = 4096, 5120, 14336, 1024
PROJECTIONS = 2 * WIDTH * HIDDEN, WIDTH * HIDDEN


@pytest.fixture
def recurrent(monkeypatch, tmp_path):
    """Return the model of the page, whose block is registered as its file would be."""
    (code,) = re.findall(r'```python\n("""A gated linear recurrence.*?)```', PAGE, re.DOTALL)
    (toml,) = re.findall(r'```toml\n(name = "recurrent-8b".*?)```', PAGE, re.DOTALL)
    BLOCKS.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(BLOCKS, "_entries", dict(BLOCKS._entries))
    module = type(sys)("traincast.model.blocks.recurrence")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "recurrence.py", "exec"), module.__dict__)  # noqa: S102 our own page
    path = tmp_path / "recurrent-8b.toml"
    path.write_text(toml)
    yield load_model(str(path))


def test_it_is_counted(recurrent):
    mlp, norms = 3 * HIDDEN * FFN, 2 * HIDDEN
    layer = layer_parameters(recurrent, 0)
    assert (layer.others, layer.mlp, layer.attention, layer.norms) == (sum(PROJECTIONS) + WIDTH, mlp, 0, norms)
    third = layer_parameters(recurrent, 2)
    assert third.others == 0
    assert third.total == layer_parameters(load_model("llama3-8b"), 0).total
    ends = 2 * 128256 * HIDDEN + HIDDEN
    assert parameters(recurrent).total == ends + 20 * layer.total + 10 * third.total
    assert layer_flops(recurrent, 0, TOKENS).others == 2 * sum(PROJECTIONS)
    assert layer_flops(recurrent, 0, TOKENS).attention_core == 0


def test_it_is_among_what_is_printed_of_a_model(recurrent, tmp_path):
    printed = CliRunner().invoke(cli, ["models", str(tmp_path / "recurrent-8b.toml")], catch_exceptions=False).stdout
    counted = f"{20 * (sum(PROJECTIONS) + WIDTH) / 1e9:.3g} B"
    (line, *_) = [line for line in printed.splitlines() if line.startswith("  recurrence")]
    assert line.split()[1:3] == counted.split()
    assert recurrent.name == "recurrent-8b"


def test_its_module_is_recomputed_by_name(recurrent):
    none, again = (
        hardware_flops_per_token(recurrent, TOKENS, how, modules=("recurrence",)) for how in ("none", "selective")
    )
    assert again - none == 20 * 2 * PROJECTIONS[0]
    job = job_of(recurrent, global_batch=2, recompute="selective", recompute_modules=("recurrence",))
    plain = job_of(recurrent, global_batch=2)
    entry = [call for call in calls_of(job, "backward") if call.shape[:3] == (TOKENS, 2 * WIDTH, HIDDEN)]
    assert {call.direction for call in entry} == {"forward", "dgrad", "wgrad"}
    kept, dropped = (dict(stage_memory(each, plan_of_job(each))[0].terms) for each in (plain, job))
    assert kept["recurrence states"] == 20 * 3 * TOKENS * WIDTH * 2
    assert "recurrence states" not in dropped
    assert kept["recurrence inputs"] == dropped["recurrence inputs"] == 20 * TOKENS * HIDDEN * 2


def test_it_runs_and_exchanges(recurrent):
    job = job_of(recurrent, gpus=8, tp=8, global_batch=1)
    calls = calls_of(job, "forward")
    shapes = {call.shape: count for call, count in calls.items() if call.family == "gemm"}
    assert shapes[TOKENS, 2 * WIDTH // 8, HIDDEN] == shapes[TOKENS, HIDDEN, WIDTH // 8] == 20
    assert shapes[TOKENS, 2 * FFN // 8, HIDDEN] == 30
    hidden_bytes = TOKENS * HIDDEN * 2
    # One gather before each block, and one before the head.
    assert exchanged(job, "forward")[Group.TP, Operation.ALL_GATHER] == (2 * 30 + 1) * hidden_bytes


def test_adapters_stand_beside_its_projections(recurrent):
    targets = ("linear_qkv", "linear_proj", "in_proj", "out_proj")
    job = job_of(recurrent, global_batch=1, task="lora", lora_rank=16, lora_targets=targets)
    (update,) = (call for call in calls_of(job, "end") if call.family == "optimizer")
    of_attention = 16 * (HIDDEN + 48 * 128 + 2 * HIDDEN)
    assert update.shape == (20 * 16 * (HIDDEN + 2 * WIDTH + WIDTH + HIDDEN) + 10 * of_attention,)


def test_a_million_layouts_are_the_same_lines(recurrent):
    tp = np.array([1, 2, 4, 8])
    together = Share(model=recurrent, sequences=Sequences(length=TOKENS), tp=tp, sequence_parallel=tp > 1)
    blocks = structure.layer_blocks(recurrent, 0)
    sums = [sum(sum(part.saved.values()) for part in structure.parts_of(blocks, share)) for share in (together,)]
    for index, degree in enumerate(tp.tolist()):
        alone = Share(model=recurrent, sequences=Sequences(length=TOKENS), tp=degree, sequence_parallel=degree > 1)
        assert sums[0][index] == sum(sum(part.saved.values()) for part in structure.parts_of(blocks, alone))


def test_it_is_forecast_and_run_again_from_the_result(recurrent, tmp_path):
    request = JobRequest(model=recurrent, gpus=16, tp=2, pp=2, global_batch=32, seq_length=2048)
    result = api.predict(request, cluster="h100")
    assert workload_of(job_of(recurrent)).name == "recurrent-8b"
    assert result.mfu is not None
    assert 0 < result.mfu < 1
    write_directory(result, tmp_path / "out")
    done = CliRunner().invoke(cli, ["predict", str(tmp_path / "out"), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["iteration_time_s"] == result.iteration_time_s


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ('blocks = ["attention", "mpl"]', "unknown block 'mpl'"),
        ("blocks = [5]", "list of names"),
        ("blocks = 5", "list of names"),
        ('blocks = ["latent_attention", "mlp"]', "attention.latent"),
        ('blocks = ["attention", "experts"]', "give experts"),
        ("settings = { gate_width = 5 }", "settings.gate_width"),
        ("settings = { gate_width = 5 }", "its blocks read nothing"),
        ("settings = 5", "table of numbers"),
        ('settings = { gate_width = "wide" }', "settings.gate_width"),
    ],
)
def test_what_names_no_block_is_refused(tmp_path, over, said):
    path = tmp_path / "model.toml"
    path.write_text(f'base = "llama3-8b"\n{over}\n')
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        load_model(str(path))
    assert str(path) in str(refused.value)


def test_a_number_that_no_block_reads_is_refused_with_those_that_are_read(recurrent, tmp_path):  # noqa: ARG001
    path = tmp_path / "model.toml"
    settings = "{ recurrence_width = 64, gate_width = 5 }"
    path.write_text(f'base = "llama3-8b"\nblocks = ["recurrence", "mlp"]\nsettings = {settings}\n')
    with pytest.raises(ConfigError, match=r"settings\.gate_width.*its blocks read recurrence_width"):
        load_model(str(path))


def test_a_block_that_misses_its_number_says_so(recurrent, tmp_path):  # noqa: ARG001
    path = tmp_path / "model.toml"
    path.write_text('base = "llama3-8b"\nblocks = ["recurrence", "mlp"]\n')
    with pytest.raises(ConfigError, match=r"settings\.recurrence_width"):
        load_model(str(path))


def test_blocks_in_a_list_are_those_of_the_fields(tmp_path):
    """A model that spells its blocks out is the one that has them by its fields."""
    path = tmp_path / "model.toml"
    path.write_text(
        'base = "deepseek-v2-lite"\nblocks = '
        + str([["latent_attention", "mlp"]] + 26 * [["latent_attention", "experts"]]).replace("'", '"')
    )
    spelled, usual = load_model(str(path)), load_model("deepseek-v2-lite")
    assert [spelled.has_experts(layer) for layer in range(27)] == [usual.has_experts(layer) for layer in range(27)]
    assert parameters(spelled) == parameters(usual)


@pytest.mark.slow
def test_a_built_in_model_is_added_as_one_file(tmp_path):
    (toml,) = re.findall(r"```toml\n(\[toy\].*?)```", PAGE, re.DOTALL)
    (values,) = tomllib.loads(toml)["toy"]["models"].values()
    copied = tmp_path / "src"
    package = Path(traincast.__file__).parent
    shutil.copytree(package, copied / "traincast", ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "traincast" / "data" / "models" / "toy.toml").write_text(toml)
    code = "from traincast.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "models", "Toy", "--json"],
        env={"PYTHONPATH": str(copied)},
        capture_output=True,
        text=True,
        check=False,
    )
    (model,) = json.loads(done.stdout)["models"]
    assert (model["name"], model["layers"], model["source"]) == ("toy-1b", 16, "a page that says them")
    hidden, layer = values["hidden"], 2048 * (2048 + 2 * 512 + 2048) + 3 * 2048 * 8192 + 2 * 2048
    assert model["parameters"]["total"] == 2 * 32000 * hidden + 16 * layer + hidden
