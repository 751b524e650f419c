"""A result holds all that is needed to run it again: what is rebuilt from its bytes gives the same bytes."""

import hashlib
import json
from pathlib import Path

import pytest
from msgspec.structs import fields, replace

import traincast
from echo_runs import MoeRun
from job_parts import TINY, TINY_EXPERTS, TINY_LATENT, job_of
from traincast import api
from traincast.dialects import draft_like
from traincast.errors import ConfigError, FormatError, TraincastError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_from_table, cluster_names, load_cluster
from traincast.job.options import LayoutOptions, SimulateOptions, StepOptions, changed_options
from traincast.job.record import RunRecord, record_from_table, record_to_table
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.report.json import result_from_json, to_json
from traincast.simulation.reproducible import record_of

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = SimulateOptions(
    busbw_bytes_per_s={"tp": 3e11},
    compute_slowdown={3: 1.25},
    overlap_slowdown={"memory": 0.0},
    network="analytical",
    unfold=True,
)
CLUSTER = """
base = "h100"
gpus_per_node = 4

[inter]
bandwidth_bytes_per_s = { value = "25GB/s", source = "ours" }

[fabric]
kind = "fat-tree"
nodes_per_leaf = 2
oversubscription = 2.0

[[measured]]
op = "all_reduce"
ranks = 4
nodes = 1
size_bytes = [1024, 1048576]
time_s = [1e-5, 2e-5]
"""
FRAMEWORK = 'base = "megatron-core-2024"\ndescription = "our fork"\nhost_layer_s = "123us"\nattention_kernel = "fa2"\n'
MODEL = 'base = "llama3-8b"\nlayers = 4\n[attention]\nkv_heads = 4\n'
JOB = """
[model]
name = "mine.toml"
[parallel]
tp = 2
pp = 2
stage_layers = [1, 3]
[batch]
seq_length = 1024
global_batch = 16
[cluster]
name = "ours.toml"
gpus = 16
[software]
precision = "fp8"
recompute = "full"
recompute_layers = 1
"""


def again(result):
    """Run a result again from nothing but its bytes."""
    data = to_json(result)
    assert to_json(traincast.run_again(result_from_json(data, "result.json"))) == data
    return json.loads(data)


def request(model=TINY, **said):
    return JobRequest(model=model, **{"gpus": 8, "seq_length": 1024, "global_batch": 16, **said})


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A job file, and beside it the model, cluster and framework that it names."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("job", JOB), ("mine", MODEL), ("ours", CLUSTER), ("fork", FRAMEWORK)):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "cluster", "options"),
    [
        (request(), "h100", SimulateOptions()),
        (request(), None, SimulateOptions()),
        (request(), "h100", OPTIONS),
        (request(TINY_EXPERTS, ep=4, tp=2, expert_imbalance=1.3, gpus=16), "h800", SimulateOptions()),
        (request(TINY_LATENT, precision="fp8", cp=2, pp=2, gpus=16, zero=2, year=2023), "h200", SimulateOptions()),
        (request(load_model("gemma2-9b"), zero=3, shard=4, gpus=8, task="lora", lora_rank=8), "b200", OPTIONS),
        (request(framework="torchtitan-2025", recompute="selective", gpus=16, gpus_used_per_node=4), "a100", OPTIONS),
        (request(precision="mxfp8", tp=8, pp=8, gpus=128, global_batch=64), "gb200", SimulateOptions()),
    ],
)
def test_a_forecast_is_run_again_to_the_same_bytes(job, cluster, options):
    document = again(api.predict(job, cluster, options=options, allow_oom=True))
    assert document["job"]["model"] == job.model.name
    assert document["run"]["cluster_assumed"] == (cluster is None)


def test_what_files_describe_is_in_the_result_and_the_files_are_not_needed_again(described):
    result = api.predict(replace_framework(api.read_job_file("job.toml"), "fork.toml"), allow_oom=True)
    listed = {Path(each.path).name: each for each in result.inputs}
    assert {name: each.format for name, each in listed.items()} == {
        "job.toml": "job",
        "mine.toml": "model",
        "ours.toml": "cluster",
        "fork.toml": "framework",
    }
    for each in result.inputs:
        assert each.sha256 == hashlib.sha256(Path(each.path).read_bytes()).hexdigest()
    assert result.job.framework == "fork"
    for file in described.glob("*.toml"):
        file.unlink()
    document = again(result)
    assert document["run"]["cluster"]["inter"]["bandwidth_bytes_per_s"] == 25e9
    assert document["run"]["framework"]["host_layer_s"] == pytest.approx(123e-6)
    assert document["run"]["job"]["model"]["layers"] == 4


def replace_framework(draft, framework):
    return replace(draft, fields={**draft.fields, "framework": framework})


def test_pasted_flags_and_decided_jobs_are_run_again():
    words = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16 --bf16 "
        "--vocab-size 32000 --tensor-model-parallel-size 2 --sequence-parallel --log-interval 10"
    )
    document = again(api.predict(draft_like("megatron", words.split()), "a100"))
    assert document["run"]["notes"]
    again(api.predict(job_of(gpus=8, tp=2), "h100"))
    again(api.predict(job_of(gpus=8, pp=2, vpp=2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "options"),
    [
        ("aicb_scaled_512gpu.txt", {"cluster": "h100", "vpp": 4}),
        ("aicb_scaled_512gpu.txt", {}),
        ("megatron_pp4_tp2", {"comm": "model", "overlap_slowdown": {"memory": 0.2}}),
        ("megatron_rank0_pp2.txt", {"microbatches": 4, "compute_slowdown": {1: 1.2}}),
        (
            "megatron_moe_profile_rank7.txt",
            {"pp": 4, "ep": 4, "dp": 4, "microbatches": 4, "cluster": "h800", "expert_loads": (1.0, 2.0, 1.0, 1.0)},
        ),
        ("neusight_gpt2_large_dp.tsv", {"layers": 4, "cluster": "a100", "forward_only": True}),
    ],
)
def test_a_simulation_is_run_again_to_the_same_bytes(files, options):
    document = again(api.simulate(EXAMPLES / files, **options))
    assert document["run"]["command"] == "simulate"
    assert document["job"] is None


@pytest.mark.usefixtures("described")
def test_the_files_of_a_cluster_are_inputs_of_a_simulation_too():
    result = api.simulate(EXAMPLES / "aicb_scaled_512gpu.txt", cluster="ours.toml")
    assert [each.format for each in result.inputs] == ["aicb", "cluster"]
    Path("ours.toml").unlink()
    again(result)


def test_the_settings_of_a_framework_are_an_input(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n'
        "[parallelism]\ntensor_parallel_degree = 2\n"
    )
    draft = draft_like("torchtitan", ["torchrun", "--nproc_per_node", "8", "train.py", "--job.config_file", str(file)])
    result = api.predict(draft, "h100", allow_oom=True)
    assert [(each.path, each.format) for each in result.inputs] == [(str(file), "torchtitan")]
    file.unlink()
    again(result)


def test_a_workload_keeps_the_layout_it_was_read_with():
    workload = api.read(EXAMPLES / "megatron_rank0_pp2.txt", LayoutOptions(microbatches=4))
    again(api.simulate(workload, cluster="h100"))


def test_loads_that_traces_show_are_read_from_the_same_traces_again(tmp_path):
    MoeRun().write(tmp_path / "run")
    options = {"pp": 4, "ep": 4, "dp": 4, "microbatches": 4, "cluster": "h800", "expert_loads": tmp_path / "run"}
    result = api.simulate(EXAMPLES / "megatron_moe_profile_rank7.txt", **options)
    document = again(result)
    assert {each["format"] for each in document["inputs"]} == {"echo", "expert-loads"}
    trace = next((tmp_path / "run").iterdir())
    trace.write_bytes(trace.read_bytes() + b"\n")
    with pytest.raises(FormatError, match="is not the file that"):
        traincast.run_again(result)


def test_a_changed_or_missing_file_is_refused(tmp_path):
    file = tmp_path / "trace.txt"
    file.write_bytes((EXAMPLES / "megatron_rank0_pp2.txt").read_bytes())
    result = api.simulate(file, microbatches=4)
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(FormatError, match=r"trace\.txt: is not the file that .* was made from"):
        traincast.run_again(result)
    file.unlink()
    with pytest.raises(FormatError, match=r"trace\.txt: cannot be read"):
        traincast.run_again(result)
    with pytest.raises(FormatError, match="key run"):
        traincast.run_again(replace(result, run=None))


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_is_the_same_from_its_table(name):
    cluster = load_cluster(name)
    table = record_to_table(record_of(api.predict(request(gpus=1, global_batch=1), name, allow_oom=True)))["cluster"]
    assert replace(cluster_from_table(json.loads(json.dumps(table)), "x"), sources=()) == replace(cluster, sources=())


@pytest.mark.usefixtures("described")
def test_every_field_of_a_cluster_is_in_its_table():
    cluster = load_cluster("ours.toml")
    assert cluster.fabric is not None
    assert cluster.measured is not None
    found = record_of(api.predict(request(gpus=8), "ours.toml"))
    for each in fields(Cluster):
        if each.name != "sources":
            assert getattr(found.cluster, each.name) == getattr(cluster, each.name), each.name


def test_options_win_over_the_recorded_ones():
    changed = changed_options(OPTIONS, network="flow", microbatches=4)
    assert (changed.network, changed.layout.microbatches, changed.compute_slowdown) == ("flow", 4, {3: 1.25})
    with pytest.raises(ConfigError, match="unknown option"):
        changed_options(OPTIONS, colour="red")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("command",), "guess", "known: predict, simulate"),
        (("cluster", "inter", "bandwidth_bytes_per_s"), -1, "inter.bandwidth_bytes_per_s"),
        (("cluster", "inter", "speed"), 1, "inter.speed"),
        (("cluster", "gpu"), 7, "gpu: is 7"),
        (("options", "network_seeds"), "many", r"\$\.run\.options\.network_seeds"),
        (("options", "colour"), "red", r"\$\.run\.options\.colour is not known"),
        (("job", "parallel", "tp"), "two", "parallel.tp"),
        (("job", "parallel", "tpp"), 2, "parallel.tpp"),
        (("job", "model", "hidden"), "wide", "hidden"),
        (("job", "model"), [], r"\$\.run\.job"),
        (("job",), None, r"\$\.run\.job"),
        (("notes",), 3, r"\$\.run\.notes"),
    ],
)
def test_a_damaged_run_is_one_message_with_its_place(path, value, said):
    document = json.loads(to_json(api.predict(request(), "h100")))
    table = document["run"]
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    with pytest.raises(TraincastError, match=said):
        traincast.run_again(result_from_json(json.dumps(document).encode(), "result.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in traincast.models()])
def test_a_record_of_every_built_in_model_is_read_again(name):
    record = RunRecord(
        command="predict",
        cluster=load_cluster("h100"),
        options=StepOptions(),
        job=JobRequest(model=load_model(name), gpus=8, seq_length=1024, global_batch=8),
    )
    table = json.loads(json.dumps(record_to_table(record)))
    assert record_from_table(table, (), "result.json").job == record.job


def test_a_model_without_all_optional_numbers_runs_again():
    again(traincast.predict(model="deepseek-v2-lite", cluster="h200", gpus=64, ep=8, global_batch=64, seq_length=1024))
