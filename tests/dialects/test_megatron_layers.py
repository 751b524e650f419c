"""Hybrids, linear and sparse attention, windows and MTP layers in Megatron-LM's flags: what they describe."""

import shlex
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from traincast.dialects import draft_like
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.model.structure import layer_kinds

JOB = "--seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --world-size 64 --bf16"
USUAL = (
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --max-position-embeddings 8192"
)
NEMOTRON_H = f"""
{JOB} {USUAL} --squared-relu --position-embedding-type none --group-query-attention --num-query-groups 8
--kv-channels 128 --vocab-size 131072 --is-hybrid-model
"""
PATTERN_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
SUPER = """
--hybrid-layer-pattern MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME/*E
--hidden-size 4096 --ffn-hidden-size 2688 --num-attention-heads 32 --num-query-groups 2 --mamba-num-heads 128
--num-experts 512 --moe-router-topk 22 --moe-shared-expert-intermediate-size 5376 --moe-latent-size 1024
--moe-router-enable-expert-bias
"""
QWEN3_NEXT = f"""
{JOB} {USUAL} --swiglu --position-embedding-type rope --num-layers 48 --hidden-size 2048 --ffn-hidden-size 5120
--num-attention-heads 16 --group-query-attention --num-query-groups 2 --kv-channels 256 --qk-layernorm
--vocab-size 151936 --attention-output-gate --experimental-attention-variant gated_delta_net
--linear-attention-freq 4 --num-experts 512
--moe-router-topk 10 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512 --moe-shared-expert-gate
--mtp-num-layers 1
"""
DEEPSEEK_V32 = f"""
{JOB} {USUAL} --swiglu --position-embedding-type rope --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
--num-attention-heads 128 --multi-latent-attention --q-lora-rank 1536 --vocab-size 129280 --mtp-num-layers 1
--experimental-attention-variant dsa --dsa-indexer-n-heads 64 --dsa-indexer-head-dim 128 --dsa-indexer-topk 2048
--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
--moe-layer-freq ([0]*3+[1]*58)
"""
SMALL = f"{JOB} --hidden-size 256 --num-attention-heads 4 --vocab-size 1024 --position-embedding-type rope"
HYBRID = f"{SMALL} --hybrid-layer-pattern="


def draft(text):
    return draft_like("megatron", shlex.split(text))


def model(text):
    return draft(text).model


def noted(found, code):
    return [note.text for note in found.notes if note.code == code]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (f"{NEMOTRON_H} --hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 "
         f"--hybrid-layer-pattern {PATTERN_8B} --mamba-num-heads 128", "nemotron-h-8b"),
        (f"{NEMOTRON_H} --hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 "
         f"--hybrid-override-pattern {PATTERN_8B} --num-layers 52", "nemotron-h-8b"),
        (f"{NEMOTRON_H} --hidden-size 4480 --ffn-hidden-size 15680 --num-attention-heads 40 --mamba-head-dim 80 "
         "--mamba-num-heads 128 --hybrid-layer-pattern M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
         "nemotron-nano-9b-v2"),
        (f"{NEMOTRON_H} {SUPER}", "nemotron-3-super"),
        (QWEN3_NEXT, "qwen3-next-80b-a3b"),
        (DEEPSEEK_V32, "deepseek-v3.2"),
    ],
)  # fmt: skip
def test_flags_of_published_recipes_describe_the_published_models(flags, name):
    found, published = model(flags), load_model(name)
    kinds = [layer_kinds(each, range(each.layers)) for each in (found, published)]
    assert list(kinds[0].values()) == list(kinds[1].values())
    for each in ("total", "active"):
        assert getattr(parameters(found), each) == pytest.approx(getattr(parameters(published), each), rel=1e-4)


def test_a_hybrid_runs_as_its_model_does():
    """The flags and the name of a model are two descriptions of one step."""
    text = f"{NEMOTRON_H} --hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 "
    text += f"--hybrid-layer-pattern {PATTERN_8B} --tensor-model-parallel-size 8 --sequence-parallel"
    found = draft(text)
    by_name = replace(found, model="nemotron-h-8b")
    times = [traincast.predict(replace(each, cluster="h100")).iteration_time_s for each in (found, by_name)]
    assert times[0] == times[1] > 0


def test_stages_and_mtp_layers_are_in_the_pattern():
    """Each | ends a virtual stage, each / begins an MTP layer; the layers of all stages are those of the model."""
    found = draft(f"{HYBRID}M-M-M-M*-M-|M-M-M*-M-M-|M-M*-M-M-M-|M*-M-M-M-M-/*-/*- --pipeline-model-parallel-size 2")
    job = resolve_job(found.request())
    assert job.pipeline.layers_Q == (11, 11, 11, 11)
    assert (job.parallel.vpp, job.pipeline.schedule) == (2, "interleaved")
    assert (job.model.layers, job.model.mtp_layers, job.model.mtp_blocks) == (44, 2, ("attention", "mlp"))
    assert job.layout.stages[-1] == "t" * 11 + "mmL"
    older = draft(f"{HYBRID}M-M* --mtp-num-layers 2 --mtp-hybrid-override-pattern *-")
    assert (older.model.mtp_layers, older.model.mtp_blocks) == (2, ("attention", "mlp"))


def test_every_letter_is_a_block_of_its_own():
    """What all letters have together is what each has alone, with the ends of the model once."""
    latent = "--q-lora-rank 64 --num-experts 4 --dsa-indexer-n-heads 4 --dsa-indexer-head-dim 32 --dsa-indexer-topk 64"
    found = model(f"{HYBRID}MG+D-E {latent}")
    assert [name for (name,) in found.blocks] == [
        *("mamba2", "gated_delta", "latent_attention", "sparse_latent_attention", "mlp", "experts"),
    ]
    assert {"mamba_heads": 8, "mamba_kernel": 4, "index_heads": 4, "linear_key_dim": 128}.items() <= dict(
        found.settings
    ).items()
    alone = [parameters(model(f"{HYBRID}{letter} {latent}")).total for letter in "MG+D-E"]
    ends = 2 * alone[0] - parameters(model(f"{HYBRID}MM {latent}")).total
    assert parameters(found).total == sum(alone) - 5 * ends
    attention = [parameters(model(f"{HYBRID}{letters}")).total for letters in ("*", "**", "*M", "M")]
    assert attention[1] - attention[0] == attention[0] - ends
    assert attention[2] == attention[0] + attention[3] - ends


@given(layers=st.integers(1, 120), attention=st.floats(0, 1), mlp=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_shares_of_a_hybrid_are_spread_evenly(layers, attention, mlp):
    if attention + mlp > 1:
        return
    shares = f"--hybrid-attention-ratio {attention:.6f} --hybrid-mlp-ratio {mlp:.6f}"
    names = [name for (name,) in model(f"{SMALL} --is-hybrid-model --num-layers {layers} {shares}").blocks]
    wanted = round(layers * float(f"{attention:.6f}"))
    assert names.count("attention") == wanted
    if 0 < wanted < layers:
        places = [-1, *(place for place, name in enumerate(names) if name == "attention"), layers]
        gaps = [right - left for left, right in pairwise(places)]
        assert max(gaps) - min(gaps) <= 2


def test_a_hybrid_script_without_a_pattern_has_mamba_layers_alone():
    spec = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
    flags = f"{SMALL} --num-layers 3"
    for text in (f"python pretrain_mamba.py {flags}", f"{flags} --is-hybrid-model", f"{flags} {spec}"):
        found = draft(text)
        assert found.model.blocks == (("mamba2",),) * 3
        assert noted(found, "assumed-pattern") == [
            "--hybrid-layer-pattern is not given: 3 layers of Mamba-2 and no other"
        ]
    usual = draft(f"{SMALL} --num-layers 3 --hybrid-attention-ratio 0.0 --spec local --mamba-num-heads 8")
    assert not usual.model.blocks
    assert noted(usual, "flag-unused") == ["--mamba-num-heads has no effect: it needs --hybrid-layer-pattern"]


@pytest.mark.parametrize(
    ("freq", "layers", "dense"),
    [
        ("([0]*3+[1]*5)", 8, {0, 1, 2}),
        ("([0,1]*4)", 8, {0, 2, 4, 6}),
        ("2", 8, {1, 3, 5, 7}),
        ("[1]*3+[0]*3+[1]*2", 8, {3, 4, 5}),
        ("([1]+[0]*2)*2+[1]", 7, {1, 2, 4, 5}),
        ("1", 3, set()),
    ],
)
def test_layers_with_experts_in_megatrons_notation(freq, layers, dense):
    """A number N gives the first layer experts, and every Nth after it; a list says it of each layer."""
    found = model(f"{SMALL} --num-layers {layers} --num-experts 4 --moe-layer-freq {shlex.quote(freq)}")
    assert {index for index in range(layers) if not found.has_experts(index)} == dense
    one = model(f"{SMALL} --num-layers 1 --num-experts 4 --moe-layer-freq 1")
    plain = model(f"{SMALL} --num-layers 1")
    ends = 2 * parameters(plain).total - parameters(model(f"{SMALL} --num-layers 2")).total
    each = [parameters(of).total - ends for of in (plain, one)]
    assert parameters(found).total == ends + len(dense) * each[0] + (layers - len(dense)) * each[1]


@pytest.mark.parametrize(
    ("freq", "windowed"),
    [
        ("", {0, 1, 2, 3, 4, 5}),
        ("3", {0, 1, 3, 4}),
        ("[1,1,0]*2", {0, 1, 3, 4}),
        ("[0,1,1,0,0,1]", {1, 2, 5}),
        ("1", set()),
        ("[1]*5+[0]", {0, 1, 2, 3, 4}),
    ],
)
def test_windows_in_some_layers(freq, windowed):
    skip = f"--window-attn-skip-freq {shlex.quote(freq)}" if freq else ""
    found = model(f"{SMALL} --num-layers 6 --window-size 127,0 {skip}")
    share = [next(iter(layer_kinds(found, [index])))[0] for index in range(6)]
    seen = [getattr(each, "window", 0) for each in share]
    assert seen == [128 if index in windowed else 0 for index in range(6)]
    assert parameters(found).total == parameters(model(f"{SMALL} --num-layers 6")).total


def test_linear_attention_in_all_but_every_so_manieth_layer():
    linear = "--experimental-attention-variant gdn --linear-attention-freq"
    found = model(f"{SMALL} --num-layers 8 {linear} 4")
    assert [names[0] for names in found.blocks] == (["gated_delta"] * 3 + ["attention"]) * 2
    assert found == model(
        f"{SMALL} --num-layers 8 --linear-attention-type gated_delta_net --linear-attention-freq ([1]*3+[0])*2"
    )
    sizes = "--linear-num-key-heads 4 --linear-num-value-heads 8 --linear-key-head-dim 32 --linear-value-head-dim 64"
    small = dict(model(f"{SMALL} --num-layers 8 {linear} 4 {sizes} --linear-conv-kernel-dim 3").settings)
    assert small == {"linear_key_heads": 4, "linear_value_heads": 8, "linear_key_dim": 32, "linear_value_dim": 64,
                     "linear_kernel": 3}  # fmt: skip


def test_residual_streams_gates_and_sinks_have_parameters():
    plain = parameters(model(f"{SMALL} --num-layers 4")).total
    for flags in ("--enable-mhc-connections", "--attention-output-gate", "--softmax-type learnable"):
        assert parameters(model(f"{SMALL} --num-layers 4 {flags}")).total > plain, flags
    assert parameters(model(f"{SMALL} --num-layers 4 --softmax-type learnable")).total == plain + 4 * 4
    assert model(f"{SMALL} --num-layers 4 --enable-mhc-connections --mhc-num-residual-streams 2").residual_streams == 2
    experts = f"{SMALL} --num-layers 4 --num-experts 8"
    assert (
        parameters(model(f"{experts} --moe-router-enable-expert-bias")).total
        == parameters(model(experts)).total + 4 * 8
    )


def test_an_embedding_alone_on_its_stage():
    flags = f"{SMALL} --num-layers 6 --pipeline-model-parallel-size 4 --standalone-embedding-stage"
    assert str(resolve_job(draft(flags).request()).layout) == "E|tt|tt|ttL"
    assert resolve_job(draft(f"{flags} --mtp-num-layers 1").request()).layout.stages[-1] == "ttmL"
    assert draft(flags.replace("-size 4", "-size 1")).fields.get("pipeline_layout") is None
    with pytest.raises(InfeasibleError, match="8 layers do not divide into the 3 stages that --standalone"):
        draft(flags.replace("-layers 6", "-layers 8"))
    for more in ("--num-virtual-stages-per-pipeline-rank 2", "--decoder-first-pipeline-num-layers 2"):
        with pytest.raises(ConfigError, match="--standalone-embedding-stage: cannot be combined"):
            draft(f"{flags} {more}")


def test_mtp_layers_of_a_model_that_is_named_elsewhere():
    found = draft(f"{JOB} --mtp-num-layers 2 --swiglu")
    job = resolve_job(replace(found, model="deepseek-v3").request())
    assert job.model.mtp_layers == 2
    assert not noted(found, "model-flags-unused")[0].count("mtp")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--hybrid-layer-pattern MxM", "layer-pattern: has 'x'; a pattern is made of M (mamba2), * (attention)"),
        ("--hybrid-layer-pattern |/M", "is '|/M'; a pattern is made of"),
        ("--hybrid-layer-pattern M*/M/*", "has different MTP layers, M and *; they must be alike"),
        ("--hybrid-layer-pattern ME", "has layers of experts (E), which need --num-experts"),
        ("--hybrid-layer-pattern MM --mtp-num-layers 1", "--mtp-num-layers: needs the blocks of these layers"),
        ("--hybrid-layer-pattern M|M --num-virtual-stages-per-pipeline-rank 2", "cannot be combined with --hybrid"),
        ("--hybrid-layer-pattern M|M --decoder-first-pipeline-num-layers 1", "first-pipeline-num-layers: cannot be"),
        ("--num-layers 9 --hybrid-attention-ratio 0.6 --hybrid-mlp-ratio 0.6", "are 0.6 and 0.6, more than 1 together"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq ([0]*3+[1]*5)", "covers 8 layers, 5 of them with 1"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq [1,1,0]*", "write a number, or a list of 0 and 1"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq [x]*9", "write a number, or a list of 0 and 1"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq [2]*9", "write a number, or a list of 0 and 1"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq [1]*999999999", "write a number, or a list of 0 and 1"),
        ("--num-layers 9 --num-experts 4 --moe-layer-freq [0]*9", "gives none of 9 layers experts"),
        ("--num-layers 4 --experimental-attention-variant gdn", "is gdn, which needs --linear-attention-freq"),
        ("--num-layers 4 --experimental-attention-variant dsa", "is dsa, which needs --multi-latent-attention"),
        ("--num-layers 4 --experimental-attention-variant gdn2", "this attention is not described"),
        ("--num-layers 4 --experimental-attention-variant dsa --multi-latent-attention --q-lora-rank 64",
         "--dsa-indexer-n-heads: is missing; sparse attention needs it"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(flags, words):
    with pytest.raises(ConfigError) as caught:
        draft(f"{SMALL} {flags}")
    assert words in str(caught.value)
