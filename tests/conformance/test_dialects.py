"""What every dialect owes: one job of one text, every setting accounted for, one message for what is damaged."""

import json
import re

import pytest

from traincast.dialects import LIKES, draft_like
from traincast.dialects.flags import NO_EFFECT, NOT_MODELLED, READ, REFUSED, SMALL_EFFECT, flag_table
from traincast.errors import TraincastError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job

DEEPSPEED = json.dumps(
    {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}, "bf16": {"enabled": True},
     "train_micro_batch_size_per_gpu": 2, "steps_per_print": 10, "frobnicate": 3}
)  # fmt: skip

MAXTEXT = """base_config: "base.yml"
per_device_batch_size: 2  # sequences
max_target_length: 128
steps: 10
optimizer_memory_host_offload: true
frobnicate: [1, 2]
"""

ACCELERATE = """distributed_type: FSDP
mixed_precision: bf16
debug: false
main_training_function: main
fsdp_config:
  fsdp_cpu_ram_efficient_loading: true
  fsdp_sharding_strategy: FULL_SHARD
  frobnicate: 1
num_processes: 8
dynamo_config: {dynamo_backend: inductor}
"""

BRIDGE = """# Megatron-Bridge
model:
  seq_length: 128
  cpu_offloading_weights: true
  frobnicate: 1
train: {micro_batch_size: 2, global_batch_size: 32}
checkpoint:
  save: null
  save_interval: 10
"""
NEMO = """from nemo.collections import llm
recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1, num_gpus_per_node=8)
recipe.data.seq_length = 128
recipe.data.micro_batch_size = 2
recipe.data.global_batch_size = 32
recipe.log.ckpt = 3
recipe.model.config.cpu_offloading_weights = True
recipe.model.config.frobnicate = 2
"""

SAMPLES = {
    "megatron": (None, "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --vocab-size 1000 "
                 "--micro-batch-size 2 --lr 1e-4 --cpu-offloading-weights --frobnicate 3"),
    "torchtitan": (None, "--model.name llama3 --model.flavor 8B --training.seq_len 128 --training.local_batch_size 2 "
                   "--training.steps 9 --training.enable_loss_parallel --frobnicate 3"),
    "deepspeed": (("ds.json", DEEPSPEED), "--model_name_or_path llama3-8b --max_seq_length 128"),
    "maxtext": (("train.yml", MAXTEXT), "model_name=llama3-8b"),
    "accelerate": (("fsdp.yaml", ACCELERATE), "--model_name_or_path llama3-8b --max_seq_length 128 "
                   "--per_device_train_batch_size 2"),
    "bridge": (("over.yaml", BRIDGE), "--recipe llama3_8b_pretrain_2gpu_h100_bf16_config"),
    "nemo": (("recipe.py", NEMO), ""),
}  # fmt: skip
"""Of each dialect a file, and the words over it. They say a micro batch of 2, a setting without effect, one that is not
modelled and one that is unknown; the GPUs are given elsewhere."""

MENTIONED = ("flags-without-effect", "flags-of-small-effect", "flag-not-modelled", "flag-unknown")


@pytest.fixture(params=sorted(LIKES))
def sample(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, words = SAMPLES[request.param]
    if file is not None:
        (tmp_path / file[0]).write_text(file[1])
    return request.param, [*([] if file is None else [file[0]]), *words.split()]


def read(like, words, **more):
    return draft_like(like, words, **more).under(Draft(cluster="h100", fields={"gpus": 8}))


def test_every_dialect_has_a_sample():
    assert set(SAMPLES) == set(LIKES)


def test_a_sample_is_one_job_at_every_reading(sample):
    first, second = (read(*sample) for _ in range(2))
    assert (first.fields, first.notes, first.warnings, first.inputs) == (
        second.fields, second.notes, second.warnings, second.inputs)  # fmt: skip
    job = resolve_job(first.request())
    assert (job.parallel.world_size, job.batch.micro_batch, job.batch.seq_length) == (8, 2, 128)
    assert job.batch.global_batch % (job.batch.micro_batch * job.parallel.dp) == 0


def test_every_setting_is_read_or_said(sample):
    draft = read(*sample)
    codes = {note.code for note in (*draft.notes, *draft.warnings)}
    assert {"flags-without-effect", "flag-not-modelled", "flag-unknown"} <= codes
    with pytest.raises(TraincastError, match="frobnicate"):
        read(*sample, strict=True)


def test_options_win_over_what_is_pasted(sample):
    over = Draft(fields={"micro_batch": 1, "global_batch": 8, "precision": "fp16", "recompute": "full"})
    job = resolve_job(read(*sample).under(over).request())
    assert (job.batch.micro_batch, job.batch.global_batch) == (1, 8)
    assert (job.precision.dtype, job.recompute.granularity) == ("fp16", "full")


@pytest.mark.parametrize("like", LIKES)
def test_classes_are_known_and_what_is_not_modelled_says_how_much_it_may_matter(like):
    for flag in flag_table(like).flags.values():
        assert flag.effect in (READ, NO_EFFECT, SMALL_EFFECT, NOT_MODELLED, REFUSED)
        if flag.effect == NOT_MODELLED and like not in ("megatron", "torchtitan", "bridge", "nemo"):
            assert flag.matters, flag.name


@pytest.mark.slow
def test_a_damaged_file_is_one_message_with_its_name(sample, tmp_path):
    like, words = sample
    name, text = SAMPLES[like][0] or (None, "")
    for cut in range(1, len(text), max(1, len(text) // 40)):
        for damaged in (text[:cut], text[:cut] + "\x00" + text[cut:], text[:cut] + '"[{' + text[cut + 1 :]):
            (tmp_path / name).write_text(damaged)
            try:
                read(like, words).missing()
            except TraincastError as error:
                assert "\n" not in str(error)
                assert not re.search(r"Traceback|object at 0x", str(error))
