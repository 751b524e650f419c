"""MaxText's YAML, and name=value over it, become a job."""

import pytest

from traincast.dialects import draft_like
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job

LAUNCH = ("python3", "-m", "MaxText.train", "MaxText/configs/base.yml", "model_name=llama3-8b")


def job(*words, gpus=16):
    return resolve_job(draft_like("maxtext", [*LAUNCH, *words]).under(Draft(fields={"gpus": gpus})).request())


def texts(notes, code):
    return [note.text for note in notes if note.code == code]


def test_what_is_left_of_the_gpus_is_sharded():
    found = job("per_device_batch_size=2", "max_target_length=4096", "gradient_accumulation_steps=2")
    assert (found.parallel.dp, found.sharding.zero, found.sharing) == (16, 3, 16)
    assert (found.batch.micro_batch, found.batch.global_batch, found.batch.seq_length) == (2, 64, 4096)
    assert (found.precision.dtype, found.recompute.granularity) == ("bf16", "full")
    assert found.framework.name == "maxtext-2024"
    assert (found.model.layers, found.kernels.attention) == (32, "cudnn")


@pytest.mark.parametrize(
    ("words", "degrees"),
    [
        (("ici_tensor_parallelism=4",), (4, 1, 1, 4, 3, 4)),
        (("ici_tensor_parallelism=2", "ici_tensor_sequence_parallelism=2"), (4, 1, 1, 4, 3, 4)),
        (("ici_context_parallelism=2",), (1, 1, 2, 8, 3, 16)),
        (("dcn_data_parallelism=2", "ici_fsdp_parallelism=8"), (1, 1, 1, 16, 3, 8)),
        (("ici_data_parallelism=-1", "ici_fsdp_parallelism=1"), (1, 1, 1, 16, 0, 1)),
        (("ici_data_parallelism=2", "ici_fsdp_parallelism=4", "ici_tensor_parallelism=2"), (2, 1, 1, 8, 3, 4)),
        (("num_slices=4",), (1, 1, 1, 16, 3, 4)),
        (("num_slices=4", "dcn_data_parallelism=1", "dcn_fsdp_parallelism=4"), (1, 1, 1, 16, 3, 16)),
        (("ici_pipeline_parallelism=4",), (1, 4, 1, 4, 3, 4)),
    ],
)
def test_axes_inside_and_between_slices_multiply(words, degrees):
    found = job("per_device_batch_size=4", *words)
    parallel = found.parallel
    assert (parallel.tp, parallel.pp, parallel.cp, parallel.dp, found.sharding.zero, found.sharing) == degrees
    assert found.batch.global_batch == 64
    assert found.communication.sequence_parallel is (parallel.tp > 1)


def test_axes_that_are_all_said_say_the_gpus():
    words = [*LAUNCH, "ici_fsdp_parallelism=8", "dcn_data_parallelism=4"]
    assert draft_like("maxtext", words).fields["gpus"] == 32
    assert "gpus" not in draft_like("maxtext", LAUNCH).fields
    with pytest.raises(InfeasibleError, match="make 8 GPUs of a slice x 4 slices, but there are 16"):
        job("ici_fsdp_parallelism=8", "dcn_data_parallelism=4")
    with pytest.raises(ConfigError, match="ici_data_parallelism: is -1 together with ici_fsdp_parallelism"):
        job("ici_data_parallelism=-1")
    with pytest.raises(ConfigError, match="ici_tensor_parallelism: is -1"):
        job("ici_tensor_parallelism=-1", "ici_fsdp_parallelism=1")


def test_stages_repeat_their_layers():
    found = job("ici_pipeline_parallelism=4", "per_device_batch_size=4", "num_pipeline_microbatches=8")
    assert (found.parallel.pp, found.parallel.vpp) == (4, 8)
    assert (found.pipeline.schedule, found.parallel.microbatches) == ("looped_bfs", 8)
    one = job("ici_pipeline_parallelism=4", "per_device_batch_size=4", "num_layers_per_pipeline_stage=8")
    assert (one.parallel.vpp, one.pipeline.schedule, one.parallel.microbatches) == (1, "gpipe", 4)


def test_experts_are_an_axis_that_shards_the_other_weights_too():
    words = ["model_name=mixtral-8x7b", "ici_expert_parallelism=8", "per_device_batch_size=1"]
    found = resolve_job(draft_like("maxtext", words).under(Draft(fields={"gpus": 16})).request())
    assert (found.parallel.ep, found.parallel.dp, found.sharing) == (8, 16, 16)


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("quantization=fp8", "precision", "fp8"),
        ("quantization=te_mxfp8", "precision", "mxfp8"),
        ("dtype=float32", "precision", "fp32"),
        ("remat_policy=minimal_with_context", "recompute", "full"),
        ("remat_policy=save_dot_except_mlp", "recompute_keeps", ("linear_qkv", "linear_proj", "linear_fc2")),
        ("quantization=int8", "fp8_recipe", "aqt_int8"),
        ("remat_policy=none", "recompute", "none"),
        ("attention=dot_product", "attention_kernel", "unfused"),
        ("use_iota_embed=True", "one_hot_embedding", True),
        ("use_iota_embed=false", "one_hot_embedding", False),
    ],
)
def test_types_and_what_is_recomputed(word, field, value):
    assert job("per_device_batch_size=1", word).decided(field) == value


def test_a_file_builds_on_base_yml_and_words_win(tmp_path):
    (tmp_path / "base.yml").write_text(
        "per_device_batch_size: 12.0\nsteps: 150_001\nici_fsdp_parallelism: -1 # auto\nnum_experts: 1\n"
    )
    file = tmp_path / "run.yml"
    file.write_text(
        'base_config: "base.yml"\nmodel_name: "llama3-70b"\nper_device_batch_size: 4\nmax_target_length: 8192\n'
    )
    draft = draft_like("maxtext", [str(file), "per_device_batch_size=1"])
    assert [each.format for each in draft.inputs] == ["maxtext", "maxtext"]
    assert draft.under(Draft(fields={"gpus": 8})).request().global_batch == 8
    assert not draft.warnings
    assert "1 settings of base.yml" in " ".join(texts(draft.notes, "flags-without-effect"))
    (tmp_path / "base.yml").unlink()
    assert texts(draft_like("maxtext", [str(file)]).notes, "maxtext-base")
    with pytest.raises(FormatError, match="cannot be read"):
        draft_like("maxtext", [str(tmp_path / "none.yml")])


def test_a_base_of_another_folder_is_found_from_the_file(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "common.yml").write_text("model_name: llama3-8b\nper_device_batch_size: 3\n")
    file = tmp_path / "run.yml"
    file.write_text("base_config: base/common.yml\nsteps: 3\n")
    assert draft_like("maxtext", [str(file)]).under(Draft(fields={"gpus": 2})).request().global_batch == 6


def test_a_model_is_described_where_none_is_named():
    words = ["base_emb_dim=4096", "base_num_query_heads=32", "base_num_kv_heads=8", "base_mlp_dim=14336",
             "base_num_decoder_layers=32", "vocab_size=128256", "per_device_batch_size=1"]  # fmt: skip
    model = draft_like("maxtext", words).model
    assert (model.layers, model.hidden, model.attention.kv_heads, model.vocab, model.gated) == (
        32,
        4096,
        8,
        128256,
        True,
    )
    assert model.attention.head_dim == 128
    other = draft_like("maxtext", ["decoder_block=deepseek", "per_device_batch_size=1"])
    assert "decoder_block 'deepseek' without a model_name" in str(other.lacks("model"))
    beside = draft_like("maxtext", [*LAUNCH, "base_num_decoder_layers=4"])
    assert (
        "base_num_decoder_layers are not read together with model_name llama3-8b"
        in texts(beside.warnings, "flag-not-modelled")[0]
    )


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(
        InfeasibleError, match=r"per_device_batch_size 0\.5 x 16 GPUs = 8 sequences do not divide over 16"
    ):
        job("per_device_batch_size=0.5")
    assert job("per_device_batch_size=0.5", "ici_tensor_parallelism=2").batch.micro_batch == 1


def test_what_is_not_modelled_says_how_much_it_may_matter():
    draft = draft_like(
        "maxtext", [*LAUNCH, "optimizer_memory_host_offload=true", "weight_dtype=bfloat16", "opt_type=adamw"]
    )
    warned = texts(draft.warnings, "flag-not-modelled")
    assert [text.split()[0] for text in warned] == ["optimizer_memory_host_offload", "weight_dtype"]
    assert all("; it may matter " in text for text in warned)
