"""Recipes of Megatron-Bridge and NeMo, with overrides, YAML and Python as text, become jobs."""

import pytest

from traincast.dialects import draft_like
from traincast.dialects.flags import flag_table
from traincast.errors import ConfigError, FormatError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.shipped import shipped_rows

RUN = ("uv", "run", "python", "scripts/training/run_recipe.py", "--recipe", "llama3_70b_pretrain_config")


def job(like, *words, **given):
    return resolve_job(draft_like(like, list(words)).under(Draft(cluster="h100", fields=given)).request())


def texts(notes, code):
    return [note.text for note in notes if note.code == code]


def test_a_recipe_of_the_table_is_a_whole_job():
    found = job("bridge", *RUN)
    parallel = found.parallel
    assert (parallel.tp, parallel.pp, parallel.vpp, parallel.cp, parallel.world_size) == (4, 4, 5, 2, 32)
    assert (found.batch.global_batch, found.batch.micro_batch) == (512, 1)
    assert (found.batch.seq_length, found.precision.dtype) == (8192, "bf16")
    assert (found.sharding.zero, found.communication.sequence_parallel) == (1, True)
    assert found.framework.name == "megatron-bridge-2025"
    assert found.sharding.overlap_grad_reduce
    assert found.model.layers == 80
    assert texts(draft_like("bridge", list(RUN)).notes, "recipe")


@pytest.mark.parametrize("row", list(shipped_rows("dialects/bridge_recipes.csv")), ids=lambda row: row["recipe"])
def test_every_recipe_of_the_table_is_a_job(row):
    draft = draft_like("bridge", ["--recipe", row["recipe"]])
    assert not texts(draft.warnings, "flag-unknown")
    found = resolve_job(draft.under(Draft(cluster="h100")).request())
    assert found.parallel.world_size == int(row["gpus"])
    assert found.framework.name == "megatron-bridge-2025"
    for name in row["aliases"].split():
        assert draft_like("bridge", ["--recipe", name]).fields == draft.fields


def test_overrides_and_options_win_over_the_recipe():
    words = ("model.virtual_pipeline_model_parallel_size=null", "+model.recompute_granularity=full",
             "model.cp_comm_type=a2a",
             "model.recompute_method=uniform", "model.recompute_num_layers=1", "ddp.overlap_grad_reduce=false",
             "mixed_precision=bf16_with_fp8_current_scaling_mixed", "ddp.overlap_param_gather=False")  # fmt: skip
    found = job("bridge", *RUN, *words, "-tp", "8", "-gb", "128", "--num_gpus", "128")
    assert (found.parallel.tp, found.parallel.vpp) == (8, 1)
    assert (found.batch.global_batch, found.parallel.world_size) == (128, 128)
    assert (found.recompute.granularity, found.precision.dtype) == ("full", "fp8")
    assert not found.sharding.overlap_grad_reduce
    assert found.communication.cp_kind == "all_to_all"


def test_types_of_gradients_are_those_of_ddp():
    assert job("bridge", *RUN).framework.grad_reduce_bytes == 4
    assert job("bridge", *RUN, "ddp.grad_reduce_in_fp32=false").framework.grad_reduce_bytes == 2


def test_every_precision_is_flags_that_are_known():
    for like in ("bridge", "nemo"):
        table = flag_table(like)
        for words in table.further["precisions"].values():
            assert all(table.find(word[2:]) for word in words.split() if word.startswith("--"))
    with pytest.raises(ConfigError, match=r"mixed_precision: is 'bf61_mixed'; .*did you mean bf16_mixed"):
        draft_like("bridge", [*RUN, "mixed_precision=bf61_mixed"])


PYTHON = """
import os
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
def main(args):
    cfg = llama3_70b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 8
    cfg.train.global_batch_size = 64 * args.nodes
    cfg.model.params_dtype = torch.bfloat16
    cfg.mixed_precision = "bf16_mixed"
    os.environ.x = 3
    raise SystemExit("this is never run")
"""


def test_python_is_read_and_never_run(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PYTHON)
    draft = draft_like(
        "bridge", ["torchrun", "--nproc_per_node=8", "--nnodes=8", str(file), "train.micro_batch_size=1"]
    )
    found = resolve_job(draft.request())
    assert (found.parallel.tp, found.parallel.pp) == (8, 4)
    assert (found.parallel.world_size, found.batch.global_batch) == (64, 512)
    (note,) = [each for each in draft.warnings if "not a plain value" in each.text]
    assert note.text.startswith("train.global_batch_size = 64 * args.nodes")
    assert note.place == f"{file}:7"
    assert [each.format for each in draft.inputs] == ["bridge"]
    file.write_text("cfg.model.x = (\n")
    with pytest.raises(FormatError, match=r"train\.py:1: is not Python"):
        draft_like("bridge", [str(file)])


def test_a_recipe_of_nemo_2(tmp_path):
    file = tmp_path / "pretrain.py"
    file.write_text("recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=8, name='x')\n"
                    "recipe.trainer.strategy.tensor_model_parallel_size = 2\nrecipe.data.global_batch_size = 256\n"
                    "recipe.data.seq_length = 8192\nrecipe.trainer.plugins = bf16_with_fp8_mixed()\n"
                    "recipe.trainer.strategy.sequence_parallel = True\nrecipe.log.dir = '/x'\n")  # fmt: skip
    draft = draft_like("nemo", [str(file), "data.micro_batch_size=2"])
    found = resolve_job(draft.request())
    # The recipe itself splits sequences over two ranks.
    assert (found.parallel.tp, found.parallel.cp, found.parallel.dp) == (2, 2, 4)
    assert (found.batch.micro_batch, found.batch.global_batch) == (2, 256)
    assert (found.precision.dtype, found.communication.sequence_parallel, found.model.layers) == ("fp8", True, 32)
    assert "recipe llama3_8b sets what is not given otherwise" in texts(draft.notes, "recipe")[0]


def test_a_recipe_of_nemo_that_is_in_no_table():
    draft = draft_like("nemo", ["nemo", "llm", "pretrain", "--factory", "starcoder2_3b"])
    assert "is a function of nemo, which is not run" in texts(draft.warnings, "flag-not-modelled")[0]


def test_a_yaml_of_nemo_1(tmp_path):
    file = tmp_path / "gpt.yaml"
    file.write_text("trainer:\n  num_nodes: 2\n  devices: 8\n  precision: bf16\nexp_manager:\n  name: x\nmodel:\n"
                    "  mcore_gpt: true\n  micro_batch_size: 1\n  global_batch_size: 64\n  encoder_seq_length: 2048\n"
                    "  max_position_embeddings: ${model.encoder_seq_length}\n  num_layers: 24\n  hidden_size: 2048\n"
                    "  ffn_hidden_size: 8192\n  num_attention_heads: 16\n  tensor_model_parallel_size: 2\n"
                    "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: uniform\n"
                    "  activations_checkpoint_num_layers: 1\n  optim:\n    lr: 1e-4\n")  # fmt: skip
    found = job("nemo", str(file), "model.tensor_model_parallel_size=4")
    assert (found.parallel.tp, found.parallel.world_size) == (4, 16)
    assert (found.batch.global_batch, found.batch.seq_length) == (64, 2048)
    assert (found.model.layers, found.model.hidden) == (24, 2048)
    assert (found.recompute.granularity, found.precision.dtype) == ("full", "bf16")


def test_what_is_unknown_or_not_modelled_is_said():
    draft = draft_like(
        "bridge", [*RUN, "modle.x=1", "peft.dim=8", "checkpoint.save=/x", "model.cpu_offloading_weights=true"]
    )
    (unknown,) = texts(draft.warnings, "flag-unknown")
    assert unknown.startswith("modle.x = '1' is not a known setting of bridge")
    warned = texts(draft.warnings, "flag-not-modelled")
    assert any("peft.dim" in text for text in warned)
    assert any("cpu-offloading-weights" in text for text in warned)
    with pytest.raises(ConfigError, match=r"modle\.x"):
        draft_like("bridge", [*RUN, "modle.x=1"], strict=True)
    other = draft_like("bridge", ["--recipe", "qwen3_8b_sft_config"])
    assert other.model == "qwen3-8b"
    assert any("which is not run" in text for text in texts(other.warnings, "flag-not-modelled"))


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (("--model_name", "llama3", "--model_size", "70b"), "llama3-70b"),
        (("-m", "llama31", "-s", "405b"), "llama3.1-405b"),
        (("--model_family_name", "qwen", "--model_recipe_name", "qwen3_30b_a3b"), "qwen3-30b-a3b"),
        (("--model_name=deepseek", "--model_size=v3"), "deepseek-v3"),
    ],
)
def test_scripts_of_bridge_name_their_model_and_gpu(words, model):
    """As its scripts/performance take them, of 2025 and of 2026."""
    found = draft_like("bridge", ["python", "scripts/performance/run_script.py", *words, "--gpu", "gb200", "-ng", "64"])
    assert (found.model, found.cluster, found.fields["gpus"]) == (model, "gb200", 64)
    assert not any("is not read" in each.text for each in found.warnings)


def test_a_gpu_without_a_cluster_is_said():
    found = draft_like("bridge", ["run_script.py", "--model_name", "llama3", "--model_size", "8b", "--gpu", "r100"])
    assert found.cluster is None
    assert "--gpu r100 is not a known cluster; give --cluster" in [each.text for each in found.warnings]


def test_nemo_is_told_to_go_on_without_asking():
    words = ["nemo", "llm", "pretrain", "--factory", "llama3_8b", "-y", "trainer.num_nodes=2", "trainer.devices=8"]
    found = draft_like("nemo", words)
    assert found.model == "llama3-8b"
    assert not any("is not read" in each.text for each in found.warnings)


@pytest.mark.parametrize("row", list(shipped_rows("dialects/nemo_recipes.csv")), ids=lambda row: row["recipe"])
def test_recipes_of_nemo_can_run(row):
    draft = draft_like("nemo", ["nemo", "llm", "pretrain", "--factory", row["recipe"], "-y"])
    found = resolve_job(draft.under(Draft(cluster="h100")).request())
    assert found.model.name == row["model"] and found.parallel.world_size == int(row["gpus"])
    assert {each.effect for each in draft.settings} <= {"read", "no effect"}
    assert not [each for each in draft.warnings if each.code in ("flag-unknown", "flag-not-modelled")]


def test_a_recipe_of_nemo_under_what_is_said_over_it():
    """Source: NVIDIA/NeMo, nemo/collections/llm/recipes/llama3_70b.py."""
    found = job(
        "nemo", "nemo", "llm", "pretrain", "--factory", "llama3_70b(num_nodes=16)", "data.global_batch_size=256"
    )
    degrees = found.parallel
    assert (degrees.tp, degrees.pp, degrees.vpp, degrees.cp, degrees.dp) == (4, 4, 5, 2, 4)
    assert (found.batch.seq_length, found.batch.micro_batch, found.batch.global_batch) == (8192, 1, 256)
    assert found.framework.grad_reduce_bytes == 4


def test_a_recipe_of_nemo_for_fine_tuning_is_not_that_for_pretraining():
    draft = draft_like("nemo", ["nemo", "llm", "finetune", "--factory", "llama3_70b", "data.seq_length=2048"])
    assert draft.model == "llama3-70b" and draft.fields["pp"] == 1
    assert [each for each in draft.warnings if "is not run" in each.text]
