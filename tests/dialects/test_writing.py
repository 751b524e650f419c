"""What is written of a job in a framework's words is read back as that job."""

import pytest

from traincast.dialects import LIKES, WRITES, draft_like
from traincast.dialects.flags import READ, SMALL_EFFECT, Pasted, flag_table
from traincast.dialects.megatron_writing import megatron_said
from traincast.dialects.settings import words_of
from traincast.dialects.writing import flags_of_fields
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model

TABLES = sorted(LIKES)


def values_of(table, flag):
    """Return every value of the field that a flag sets."""
    field, means = table.fields[flag]
    known = table.find(flag.replace("_", "-"))
    if means is not None:
        return [value for value in means.values() if value != ""]
    return [True, False] if known is not None and known.values == "0" else [1, 4096 if field == "seq_length" else 6]


@pytest.mark.parametrize("dialect", TABLES)
def test_every_field_that_a_table_reads_is_written_as_it_is_read(dialect):
    table = flag_table(dialect)
    for flag, (field, _) in table.fields.items():
        assert field in JOB_FIELDS
        for value in values_of(table, flag):
            said = flags_of_fields(table, {field: value})
            assert len(said) == 1
            words = {name: words_of(each) for name, each in said.items()}
            assert Pasted(words, dialect).fields(table)[field] == value


def test_a_value_that_has_no_name_is_not_said():
    table = flag_table("megatron")
    assert flags_of_fields(table, {"precision": "fp8_block", "tp": 2, "exp_avg_dtype": "fp64", "vocab": 7}) == {
        "fp8-recipe": "blockwise",
        "tensor-model-parallel-size": 2,
    }


DENSE = {"model": "llama3-8b", "gpus": 32, "global_batch": 64, "seq_length": 4096, "micro_batch": 1}
MOE = {**DENSE, "model": "mixtral-8x7b", "gpus": 64}
JOBS = [
    DENSE | {"tp": 2, "pp": 2, "vpp": 2, "recompute": "full", "recompute_layers": 3},
    DENSE | {"tp": 4, "pp": 1, "sequence_parallel": True, "recompute": "selective"},
    DENSE | {"tp": 1, "cp": 2, "cp_kind": "all_gather", "zero": 0},
    DENSE | {"tp": 2, "zero": 1, "shard": 4, "overlap_grad_reduce": True, "overlap_param_gather": True},
    DENSE | {"tp": 2, "zero": 3, "recompute": "full"},
    DENSE | {"tp": 2, "zero": 1, "offload_optimizer": 0.5, "offload_activations": 4},
    DENSE | {"tp": 2, "pp": 4, "precision": "fp8", "overlap_tp": True},
    DENSE | {"tp": 1, "pp": 2, "precision": "fp16"},
    DENSE | {"tp": 8, "pp": 4, "first_stage_layers": 7, "last_stage_layers": 7},
    DENSE | {"tp": 8, "pp": 4, "grad_reduce_bytes": 2, "cuda_graphs": True, "cuda_graph_scope": ("attn", "mlp")},
    MOE | {"tp": 2, "ep": 8, "etp": 1, "moe_dispatcher": "deepep", "fused_router": True},
    MOE | {"tp": 2, "pp": 2, "ep": 4, "etp": 1, "moe_dispatcher": "alltoall", "fused_permute": True},
]
DECIDED = (
    *("tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch", "global_batch", "seq_length", "precision", "zero", "shard"),
    *("recompute", "stage_layers", "schedule"),
)
"""Fields that every framework here can be told."""
BY_MEGATRON = (
    *("etp", "sequence_parallel", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "recompute_layers"),
    *("offload_optimizer", "offload_activations", "cuda_graphs", "cuda_graph_scope"),
)
OF_EXPERTS = ("moe_dispatcher", "fused_router", "fused_permute")


def resolved(fields, framework):
    said = {name: value for name, value in fields.items() if name != "model"}
    cluster = load_cluster("h100")
    return resolve_job(JobRequest(model=load_model(fields["model"]), framework=framework, **said), cluster)


def read_back(like, job, fields, framework, tmp_path):
    words = [word for line in WRITES[like](job).splitlines() if not line.startswith("#") for word in line.split()]
    if like == "torchtitan":
        path = tmp_path / "layout.toml"
        path.write_text(WRITES[like](job))
        words = ["--job.config_file", str(path)]
    draft = draft_like(like, words)
    said = Draft(model=fields["model"], fields={"gpus": fields["gpus"], "framework": framework})
    return draft, resolve_job(draft.under(said).request(), load_cluster("h100"))


def decided(job, name):
    return {"dp": job.parallel.dp, "stage_layers": job.pipeline.layers_Q}.get(name) or job.decided(name)


@pytest.mark.parametrize("like", ["megatron", "bridge"])
@pytest.mark.parametrize("fields", JOBS)
def test_a_job_is_read_back_from_what_is_written_of_it(like, fields, tmp_path):
    framework = {"megatron": "megatron-core-2026", "bridge": "megatron-bridge-2025"}[like]
    job = resolved(fields, framework)
    draft, again = read_back(like, job, fields, framework, tmp_path)
    assert not draft.warnings
    names = (*DECIDED, *BY_MEGATRON, *(OF_EXPERTS if job.model.experts is not None else ()))
    assert {name: decided(again, name) for name in names} == {name: decided(job, name) for name in names}
    if (like, job.precision.dtype) != ("bridge", "fp16"):
        assert again.framework.grad_reduce_bytes == job.framework.grad_reduce_bytes


OF_TORCHTITAN = [
    each | {"zero": 3}
    for each in JOBS
    if not {"offload_optimizer", "cuda_graphs", "grad_reduce_bytes", "moe_dispatcher", "first_stage_layers"} & set(each)
    if each.get("precision") != "fp16" and each.get("zero", 3) == 3 and each.get("recompute") != "selective"
] + [
    DENSE | {"tp": 2, "zero": 3, "shard": 8, "reshard_after_forward": False},
    DENSE | {"tp": 2, "pp": 2, "zero": 3, "schedule": "dualpipe_v", "vpp": 2},
    DENSE | {"tp": 8, "pp": 4, "zero": 3, "first_stage_layers": 7, "last_stage_layers": 7},
    DENSE | {"tp": 2, "zero": 3, "grad_reduce_bytes": 2, "precision": "fp8"},
]


@pytest.mark.parametrize("fields", OF_TORCHTITAN)
def test_torchtitan_reads_its_file_as_the_job_it_was_written_of(fields, tmp_path):
    fields = {"recompute": "none", **{name: each for name, each in fields.items() if name != "recompute_layers"}}
    job = resolved(fields, "torchtitan-2025")
    draft, again = read_back("torchtitan", job, fields, "torchtitan-2025", tmp_path)
    assert not draft.warnings
    names = (*DECIDED, "reshard_after_forward")
    assert {name: decided(again, name) for name in names} == {name: decided(job, name) for name in names}
    assert again.framework.grad_reduce_bytes == job.framework.grad_reduce_bytes


def test_all_that_is_said_stands_in_the_order_of_writing_and_is_read():
    table = flag_table("megatron")
    written = table.further["writes"]["flags"].split()
    for fields in JOBS:
        # The number of layers turns that switch on.
        assert set(megatron_said(resolved(fields, "megatron-core-2026"))) - {"cpu-offloading"} <= set(written)
    assert {table.find(name).effect for name in written} <= {READ, SMALL_EFFECT}
    titan = flag_table("torchtitan")
    names = titan.further["writes"]["settings"].split()
    assert {titan.find(name.replace("_", "-")).effect for name in names} == {READ}


def test_what_megatron_demands_with_other_flags_is_written():
    settings = {"cuda_graph_impl": "full_iteration", "moe_paged_stash": True, "moe_dispatcher": "hybridep"}
    job = resolved(MOE | settings, "megatron-core-2026")
    text = WRITES["megatron"](job)
    assert "--moe-expert-rank-capacity-factor 1.5" in text
    assert "--no-check-for-nan-in-loss-and-grad" in text
    assert "--cross-entropy-fusion-impl native" in text
    assert "# loss in one kernel: Megatron-LM refuses it" in text
    assert "--cross-entropy-fusion-impl te" in WRITES["megatron"](resolved(MOE, "megatron-core-2025"))
    recipe = WRITES["bridge"](job)
    assert "model.moe_expert_rank_capacity_factor=1.5" in recipe
    assert "rerun_state_machine.check_for_nan_in_loss=false" in recipe


def test_a_type_that_megatron_does_not_name_is_no_flag_of_precision():
    job = resolved(DENSE | {"tp": 2, "precision": "fp32"}, "megatron-core-2026")
    lines = WRITES["megatron"](job).splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    assert not {"--bf16", "--fp16"} & set(words)
    assert draft_like("megatron", words).fields["precision"] == "fp32"
