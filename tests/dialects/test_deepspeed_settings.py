"""DeepSpeed's configuration file, and the flags of the script that it leaves things to, become a job."""

import json

import pytest

from traincast.dialects import draft_like
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job

FLAGS = ("--model_name_or_path", "meta-llama/Meta-Llama-3-8B", "--max_seq_length=4096")
STAGE_3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}


@pytest.fixture
def draft(tmp_path):
    def make(table, *words, launcher=("deepspeed", "--num_gpus", "8", "--num_nodes=2", "train.py"), **more):
        file = tmp_path / "ds_config.json"
        file.write_text(table if isinstance(table, str) else json.dumps(table))
        return draft_like("deepspeed", [*launcher, "--deepspeed", str(file), *FLAGS, *words], **more)

    return make


@pytest.fixture
def job(draft):
    return lambda *words, **more: resolve_job(draft(*words, **more).request())


def texts(notes, code):
    return [note.text for note in notes if note.code == code]


def test_a_file_and_its_launcher_are_a_job(job):
    found = job({**STAGE_3, "gradient_accumulation_steps": 4})
    assert (found.parallel.world_size, found.parallel.dp) == (16, 16)
    assert (found.batch.micro_batch, found.batch.global_batch) == (2, 128)
    assert (found.sharding.zero, found.precision.dtype) == (3, "bf16")
    assert (found.recompute.granularity, found.framework.name) == ("none", "deepspeed-2024")
    assert (found.model.layers, found.batch.seq_length, found.kernels.attention) == (32, 4096, "fa2")
    assert found.sharding.overlap_grad_reduce
    assert found.sharding.overlap_param_gather


@pytest.mark.parametrize(
    ("said", "kernel"),
    [("sdpa", None), ("flash_attention_2", "fa2"), ("flash_attention_3", "fa3"), ("eager", "unfused")],
)
def test_pytorchs_own_attention_is_left_to_the_gpu(draft, said, kernel):
    """It has other kernels on AMD: what the framework takes on each is for the job to say."""
    assert draft(STAGE_3, "--attn_implementation", said).fields.get("attention_kernel") == kernel


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, (64, 2)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, (64, 2)),
        ({"train_batch_size": 64}, (64, 4)),
        ({"train_micro_batch_size_per_gpu": 3}, (48, 3)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, (96, 3)),
    ],
)
def test_any_of_the_three_batches_say_the_others(job, table, expected):
    """Source: DeepSpeed, runtime/config.py (_set_batch_related_parameters); there are 16 replicas."""
    found = job(table)
    assert (found.batch.global_batch, found.batch.micro_batch) == expected


def test_three_batches_say_the_gpus_and_must_multiply(draft, job):
    table = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    assert job(table, launcher=("train.py",)).parallel.world_size == 8
    with pytest.raises(InfeasibleError, match="64 is not micro batch 2 x accumulation 4 x 16 replicas = 128"):
        draft(table).request()
    wider = draft({**table, "tensor_parallel": {"autotp_size": 2}}, launcher=("train.py",))
    assert wider.fields["gpus"] == 16


def test_what_is_auto_is_taken_from_the_flags_of_the_script(draft, job):
    table = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    words = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--bf16", "True")
    found = job(table, *words, "--gradient_checkpointing", "true")
    assert (found.batch.micro_batch, found.batch.global_batch) == (4, 128)
    assert (found.precision.dtype, found.recompute.granularity) == ("bf16", "full")
    (note,) = texts(draft(table, *words).notes, "settings-auto")
    assert "zero_optimization.reduce_bucket_size" in note
    alone = draft(table)
    assert alone.missing() == "global_batch"
    assert "auto, and no --per_device_train_batch_size is given" in str(alone.lacks("global_batch"))
    with pytest.raises(ConfigError, match="is '4', but train_micro_batch_size_per_gpu of the file is '2'"):
        draft({**STAGE_3}, *words)


@pytest.mark.parametrize(
    ("stage", "said", "overlaps"),
    [(0, None, False), (1, None, False), (2, True, True), (3, None, True), (3, False, False)],
)
def test_reductions_overlap_by_stage_unless_said(draft, stage, said, overlaps):
    """Source: DeepSpeed, runtime/zero/config.py (overlap_comm_valid)."""
    zero = {"stage": stage} if said is None else {"stage": stage, "overlap_comm": said}
    fields = draft({**STAGE_3, "zero_optimization": zero}).fields
    assert (fields["zero"], fields["overlap_grad_reduce"]) == (stage, overlaps)


def test_groups_of_mics_are_the_ranks_that_share_a_copy(job):
    assert job({**STAGE_3, "zero_optimization": {"stage": 3, "mics_shard_size": 8}}).sharing == 8
    assert job({**STAGE_3, "zero_optimization": {"stage": 3, "mics_shard_size": -1}}).sharing == 16


def test_degrees_and_types(job):
    tensor = job({**STAGE_3, "zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}})
    assert (tensor.parallel.tp, tensor.parallel.dp, tensor.communication.sequence_parallel) == (4, 4, False)
    ulysses = job({**STAGE_3, "sequence_parallel_size": 4})
    assert (ulysses.parallel.cp, ulysses.communication.cp_kind, ulysses.batch.global_batch) == (4, "all_to_all", 8)
    assert job({**STAGE_3, "bf16": {"enabled": False}}).precision.dtype == "fp32"
    assert job({**STAGE_3, "communication_data_type": "fp32"}).framework.grad_reduce_bytes == 4
    casts = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, "train_micro_batch_size_per_gpu": 1}
    assert job(casts).precision.dtype == "bf16"


def test_what_is_not_modelled_says_how_much_it_may_matter(draft):
    quantized = {"stage": 3, "zero_quantized_weights": True}
    found = draft({**STAGE_3, "zero_optimization": quantized, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}})
    warned = texts(found.warnings, "flag-not-modelled")
    assert [text.split()[0] for text in warned] == ["zero_optimization.zero_quantized_weights", "optimizer.type"]
    assert all("; it may matter " in text for text in warned)
    assert any("optimizer.params.lr" in text for text in texts(found.notes, "flags-without-effect"))


def test_what_the_host_keeps(job, draft):
    def offloaded(stage, **devices):
        found = job({**STAGE_3, "zero_optimization": {"stage": stage, **devices}})
        return found.offload.optimizer, found.offload.parameters, found.offload.overlap

    cpu = {"device": "cpu"}
    assert offloaded(3) == (0, False, True)
    assert offloaded(2, offload_optimizer=cpu) == (1, False, False)
    assert offloaded(3, offload_optimizer={**cpu, "ratio": 0.4}) == (0.4, False, False)
    assert offloaded(3, offload_optimizer=cpu, offload_param=cpu) == (1, True, False)
    assert offloaded(3, offload_optimizer={"device": "none"}, offload_param={"device": "none"}) == (0, False, True)
    disk = draft({**STAGE_3, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})
    assert any("nvme is not modelled" in note.text for note in disk.notes)


def test_sections_that_are_off_and_unknown_settings(draft):
    off = draft(
        {**STAGE_3, "elasticity": {"enabled": False, "max_train_batch_size": 9}, "fp16": {"enabled": False, "x": 1}}
    )
    assert not off.warnings
    wrong = {**STAGE_3, "zero_optimisation": {"stage": 2}}
    (text,) = texts(draft(wrong).warnings, "flag-unknown")
    assert text.startswith("zero_optimisation.stage = '2' is not a known setting of DeepSpeed")
    with pytest.raises(ConfigError, match=r"did you mean zero_optimization\.stage"):
        draft(wrong, strict=True)


def test_checkpointing_of_the_file_is_an_assumption(draft, job):
    table = {**STAGE_3, "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4}}
    assert job(table).recompute.granularity == "full"
    assert len(texts(draft(table).notes, "assumed-recompute")) == 1
    assert not texts(draft(table).under(Draft(fields={"recompute": "none"})).notes, "assumed-recompute")
    off = {**STAGE_3, "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False}}
    assert job(off).recompute.granularity == "none"


def test_a_model_beside_the_file_is_taken(tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(STAGE_3))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = draft_like("deepspeed", [str(file), "--max_seq_length", "128"])
    assert len(texts(draft.notes, "assumed-model")) == 1
    assert draft.under(Draft(fields={"gpus": 4})).request().model.layers == 2


@pytest.mark.parametrize(
    ("text", "error", "what"),
    [
        ("[1, 2]", FormatError, "holds no settings"),
        ("{'a': 1}", FormatError, "is not JSON"),
        ('{"zero_optimization": {"stage": 4}}', ConfigError, "must be from 0 to 3"),
        ('{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', ConfigError, "both true"),
        ('{"train_batch_size": "many"}', ConfigError, "train_batch_size: is 'many'; it must be a whole number"),
    ],
)
def test_a_wrong_file_is_one_message(draft, text, error, what):
    with pytest.raises(error, match=what):
        draft(text)
