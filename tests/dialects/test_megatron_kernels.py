"""Megatron-LM's flags that say which kernels run, what is logged, and models with an encoder."""

import shlex

import pytest
from msgspec.structs import replace

import traincast
from traincast.dialects import draft_like
from traincast.errors import ConfigError
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters
from traincast.model.structure import layer_kinds

SMALL = """
--num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16
--micro-batch-size 4 --global-batch-size 32 --world-size 8
"""
T5 = """
--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12 --kv-channels 64
--ffn-hidden-size 3072 --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 --bf16
--micro-batch-size 4 --global-batch-size 32 --world-size 8 --vocab-size 30522
"""


def draft(text):
    return draft_like("megatron", shlex.split(text))


def job(text):
    return resolve_job(draft(text).request())


def test_kernels_that_are_not_fused_and_what_is_logged_are_read():
    plain = job(SMALL).kernels
    assert (plain.unfused, plain.step_checks) == ((), ())
    found = job(f"{SMALL} --no-gradient-accumulation-fusion --log-params-norm --log-num-zeros-in-grad").kernels
    assert found.unfused == ("gradient_sums",)
    assert found.step_checks == ("params_norm", "zeros_in_grad")
    assert "rope" in job(f"{SMALL} --position-embedding-type rope --no-rope-fusion").kernels.unfused
    experts = f"{SMALL} --num-experts 8 --disable-bias-linear"
    assert job(experts).kernels.unfused == ("experts",)
    assert job(f"{experts} --moe-grouped-gemm").kernels.unfused == ()


def test_layers_of_megatron_core_itself_are_a_framework():
    found = job(f"{SMALL} --transformer-impl local")
    assert found.framework.name == "megatron-core-local"
    assert found.kernels.attention == "unfused"
    assert job(f"{SMALL} --transformer-impl transformer_engine").framework.name == "megatron-core-2026"
    noted = [note.text for note in draft(f"{SMALL} --transformer-impl local").notes if note.code == "assumed-framework"]
    assert "megatron-core-local" in noted[0]


def test_tensor_parallelism_of_experts_says_nothing_of_a_dense_model():
    found = draft(f"{SMALL} --tensor-model-parallel-size 2 --expert-tensor-parallel-size 4")
    assert "etp" not in found.fields
    assert [note.text for note in found.notes if note.code == "flag-unused"] == [
        "--expert-tensor-parallel-size has no effect: it needs --num-experts"
    ]
    assert resolve_job(found.request()).parallel.tp == 2


def test_what_a_shell_would_have_unescaped_is_read():
    assert draft(f"{SMALL} --pipeline-model-parallel-size 2").fields["pp"] == 2
    words = [*shlex.split(SMALL), "--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout"]
    for layout in ("Et*6|t*6L", r"Et*6\|t*6L", r"'Et*6\|t*6L'", r"\"Et*6\\|t*6L\""):
        assert draft_like("megatron", [*words, layout]).fields["pipeline_layout"] == "Et*6|t*6L"


def test_a_tokenizer_that_a_variable_names_leaves_the_vocabulary_open():
    found = draft(f"{SMALL} --tokenizer-type '${{TOKENIZER_TYPE}}'")
    assert "assumed-vocabulary" in [note.code for note in found.notes]


def test_a_model_with_an_encoder_has_its_layers_and_lengths():
    found = job(T5)
    kinds = list(layer_kinds(found.model, range(found.model.layers)).values())
    assert kinds == [12, 12]
    assert found.batch.sequences.length == 128
    assert found.model.setting("encoder_length") == 512
    # A layer of the decoder has one more attention: a norm, queries, keys and values, and the output.
    hidden = 768
    more = 4 * (hidden * hidden + hidden) + 2 * hidden
    model = replace(found.model, blocks=(("attention", "mlp"),), settings=())
    assert parameters(found.model).total - parameters(model).total == 12 * more


def test_a_decoder_looks_at_all_of_its_encoder():
    """With longer sequences of the encoder its layers and keys take longer, as often as they are longer or less."""
    short, long = (
        traincast.predict(draft(T5.replace("--encoder-seq-length 512", f"--encoder-seq-length {length}")), "h100")
        for length in (512, 16384)
    )
    assert 1 < long.iteration_time_s / short.iteration_time_s < (16384 / 512) ** 2


def test_an_encoder_without_its_decoder_is_refused_and_so_are_its_stages():
    for flags, words in (
        (T5.replace("--decoder-seq-length 128", ""), "--decoder-seq-length: is missing"),
        (f"{T5} --pipeline-model-parallel-size 2", "stages of a model with an encoder are not described"),
        (f"{T5} --num-experts 8", "cannot be combined with --decoder-num-layers"),
        (f"pretrain_t5.py {SMALL}", "needs --decoder-num-layers"),
    ):
        with pytest.raises(ConfigError, match=words):
            draft(flags)


def test_bert_sees_all_tokens():
    assert job(SMALL).model.attention.causal
    assert not job(f"pretrain_bert.py {SMALL}").model.attention.causal
