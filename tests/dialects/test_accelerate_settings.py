"""Accelerate's YAML, its launcher's flags and the script's become a job."""

import json

import pytest

from traincast.dialects import draft_like
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job

SCRIPT = (
    "train.py",
    "--model_name_or_path",
    "llama3-8b",
    "--max_seq_length",
    "4096",
    "--per_device_train_batch_size",
    "2",
)
FSDP = """distributed_type: FSDP
downcast_bf16: 'no'
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
  fsdp_backward_prefetch: BACKWARD_PRE
"""


@pytest.fixture
def draft(tmp_path):
    def make(text, *launcher, words=()):
        file = tmp_path / "a.yaml"
        file.write_text(text)
        return draft_like(
            "accelerate", ["accelerate", "launch", "--config_file", str(file), *launcher, *SCRIPT, *words]
        )

    return make


@pytest.fixture
def job(draft):
    return lambda *words, **more: resolve_job(draft(*words, **more).request())


def test_fsdp(job, draft):
    found = job(FSDP, words=("--gradient_accumulation_steps", "4"))
    assert (found.parallel.world_size, found.parallel.dp) == (16, 16)
    assert (found.batch.micro_batch, found.batch.global_batch) == (2, 128)
    assert (found.sharding.zero, found.sharing) == (3, 16)
    assert (found.precision.dtype, found.recompute.granularity) == ("bf16", "full")
    assert (found.framework.name, found.framework.grad_reduce_bytes) == ("transformers-2024", 2)
    assert not draft(FSDP).warnings


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("FULL_SHARD", (3, 16, True)),
        ("SHARD_GRAD_OP", (3, 16, False)),
        ("HYBRID_SHARD", (3, 8, True)),
        ("4", (3, 8, True)),
        ("NO_SHARD", (0, 1, True)),
    ],
)
def test_strategies(job, strategy, expected):
    found = job(FSDP.replace("FULL_SHARD", strategy))
    assert (found.sharding.zero, found.sharing, found.sharding.reshard_after_forward) == expected


def test_flags_of_the_launcher_win_over_the_file(job):
    found = job(
        FSDP,
        "--num_processes",
        "8",
        "--num_machines=1",
        "--mixed_precision",
        "no",
        "--fsdp_reshard_after_forward",
        "false",
    )
    assert (found.parallel.world_size, found.precision.dtype) == (8, "fp32")
    assert not found.sharding.reshard_after_forward


def test_meshes(job, draft):
    mesh = FSDP + "parallelism_config:\n  parallelism_config_tp_size: 2\n  parallelism_config_dp_replicate_size: 2\n"
    found = job(mesh + "  parallelism_config_dp_shard_size: 4\n")
    assert (found.parallel.tp, found.parallel.dp) == (2, 8)
    assert (found.sharing, found.communication.sequence_parallel) == (4, False)
    ring = job(FSDP + "parallelism_config:\n  parallelism_config_cp_size: 4\n  parallelism_config_dp_shard_size: 4\n")
    assert (ring.parallel.cp, ring.sharing, ring.communication.cp_kind) == (4, 16, "all_gather")
    with pytest.raises(InfeasibleError, match="= 8, but there are 16 GPUs"):
        draft(mesh + "  parallelism_config_dp_shard_size: 2\n").request()


def test_plain_data_parallelism(job):
    found = job("distributed_type: MULTI_GPU\nmixed_precision: 'bf16'\nnum_processes: 8\n")
    assert (found.sharding.zero, found.parallel.dp) == (0, 8)
    assert (found.precision.dtype, found.recompute.granularity) == ("bf16", "none")
    assert found.sharding.overlap_grad_reduce


def test_deepspeed_by_its_own_settings_or_its_file(job, draft, tmp_path):
    own = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  {}\n"
    short = job(own.format("zero_stage: 3\n  offload_optimizer_device: none\n  gradient_accumulation_steps: 2"))
    assert (short.sharding.zero, short.precision.dtype) == (3, "bf16")
    assert (short.batch.global_batch, short.framework.name) == (32, "deepspeed-2024")
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}))
    text = own.format(f"deepspeed_config_file: {file}\n  zero3_init_flag: false")
    assert (job(text).sharding.zero, job(text).precision.dtype) == (1, "bf16")
    assert {each.format for each in draft(text).inputs} == {"accelerate", "deepspeed"}
    offload = draft(own.format("zero_stage: 2\n  offload_optimizer_device: cpu"))
    assert not offload.warnings
    assert offload.fields["offload_optimizer"] == 1


def test_what_is_offloaded(job):
    fsdp = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_offload_params: {}\n"
    assert [job(fsdp.format(word)).offload.parameters for word in ("true", "false")] == [True, False]
    assert job(fsdp.format("true")).offload.optimizer == 1


def test_megatron(job):
    text = ("distributed_type: MEGATRON_LM\nmixed_precision: bf16\nnum_processes: 16\nmegatron_lm_config:\n"
            "  megatron_lm_tp_degree: 2\n  megatron_lm_pp_degree: 2\n  megatron_lm_num_micro_batches: 4\n"
            "  megatron_lm_sequence_parallelism: true\n  megatron_lm_recompute_activations: true\n"
            "  megatron_lm_use_distributed_optimizer: true\n")  # fmt: skip
    found = job(text)
    assert (found.parallel.tp, found.parallel.pp, found.parallel.dp, found.batch.global_batch) == (2, 2, 4, 32)
    assert (found.sharding.zero, found.recompute.granularity) == (1, "selective")
    assert found.communication.sequence_parallel


def test_what_is_wrong_or_open(draft):
    with pytest.raises(ConfigError, match=r"distributed_type: is 'FSPD'; .*did you mean FSDP"):
        draft(FSDP.replace("FSDP", "FSPD"))
    (note,) = draft(FSDP + "dynamo_config:\n  dynamo_backend: INDUCTOR\n").warnings
    assert note.text.startswith("dynamo_backend = 'INDUCTOR' is not modelled: layers run eagerly; it may matter")
    open_batch = draft_like("accelerate", ["accelerate", "launch", "--num_processes", "8", "train.py"])
    assert open_batch.fields["gpus"] == 8
    assert open_batch.under(Draft(model="llama3-8b", fields={"seq_length": 128})).missing() == "global_batch"
    assert open_batch.whys["global_batch"].startswith("the settings leave the batch to the script, and no --per_dev")
