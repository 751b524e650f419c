"""Each setting of a file ends as exactly one of five things, and "no effect" has a reason."""

import shlex
from pathlib import Path

import pytest

from traincast.dialects import LIKES, draft_like
from traincast.dialects.flags import NO_EFFECT, NOT_MODELLED, READ, SMALL_EFFECT, UNKNOWN, flag_table
from traincast.dialects.judge import reason_of
from traincast.dialects.references import resolved
from traincast.dialects.settings import settings_of_file
from traincast.dialects.yaml import read_yaml
from traincast.errors import ConfigError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters

RECIPES = Path(__file__).parent / "recipes"
EFFECTS = {READ, NO_EFFECT, SMALL_EFFECT, NOT_MODELLED, UNKNOWN}
FILES = {
    "nemo3.yaml": ("nemo", ()),
    "nemo4.yaml": ("nemo", ()),
    **{f"tt{n}.toml": ("torchtitan", ("--job.config_file",)) for n in (1, 2, 3, 4)},
    **{f"ds{n}.json": ("deepspeed", ("train.py", "--deepspeed")) for n in (1, 2, 3)},
    **{f"acc{n}.yaml": ("accelerate", ("--config_file",)) for n in (1, 2, 3)},
}
TRAINER = ["--model_name_or_path", "llama3-8b", "--max_seq_length", "4096"]
NEMO = """
trainer: {{devices: 8, num_nodes: 2, precision: bf16}}
model:
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 2048
  num_layers: 8
  hidden_size: 1024
  ffn_hidden_size: 2816
  num_attention_heads: 8
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  {}
"""


def plain(name):
    return name.lstrip("-").replace("-", "_").lower()


def settings(like, words):
    return draft_like(like, words).settings


@pytest.mark.parametrize("like", ["megatron", "torchtitan", "deepspeed", "maxtext", "accelerate"])
def test_every_setting_without_effect_says_why(like):
    flags = flag_table(like).flags.items()
    without = [name for name, each in flags if each.effect == NO_EFFECT]
    assert without
    assert [name for name in without if reason_of(name) is None] == []


@pytest.mark.parametrize("like", ["bridge", "nemo"])
def test_every_section_without_effect_says_why(like):
    table = flag_table(like).further
    names = {name for name, of in table["sections"].items() if of == "none"}
    names |= {name for name, to in table["paths"].items() if to == ""}
    assert names
    short = [name for name in names if not reason_of(name.replace("_", "-"))]
    assert [
        name for name in short if not any(name == each or name.startswith(f"{each}.") for each in table["whys"])
    ] == []


@pytest.mark.parametrize("name", FILES)
def test_each_key_of_a_file_is_one_thing(name):
    like, before = FILES[name]
    path = str(RECIPES / name)
    more = TRAINER if like in ("deepspeed", "accelerate") else []
    found = settings(like, [*before, path, *more])
    spellings = {plain(other): plain(to) for other, (to, *_) in flag_table(like).spellings.items()}
    keys = {spellings.get(plain(key), plain(key)) for key in settings_of_file(path)}
    names = [plain(each.name) for each in found]
    assert {each.effect for each in found} <= EFFECTS
    assert len(names) == len(set(names))
    auto = {plain(key) for key, values in settings_of_file(path).items() if values == ("auto",)}
    assert {key for key in keys - set(names) - auto if not key.startswith(ABOVE.get(like, ()))} == set()
    assert all(each.why for each in found if each.effect in (NO_EFFECT, NOT_MODELLED))


ABOVE = {"accelerate": ("deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config", "dynamo_config")}
"""Sections of Accelerate's file, whose settings have the names that they have without."""


@pytest.mark.parametrize("name", ["meg1.sh", "meg2.sh", "meg3.txt"])
def test_each_flag_of_a_script_is_one_thing(name):
    text = (RECIPES / name).read_text()
    found = settings("megatron", [text])
    names = [plain(each.name) for each in found]
    assert len(names) == len(set(names)) > 10
    assert {each.effect for each in found} <= EFFECTS
    told = {plain(word.partition("=")[0]) for word in shlex.split(text, comments=True) if word.startswith("--")}
    spelled = {plain(other): plain(to) for other, (to, *_) in flag_table("megatron").spellings.items()}
    lost = {spelled.get(each, each) for each in told} - set(names)
    assert lost <= OF_LAUNCHERS


OF_LAUNCHERS = {
    "nproc_per_node",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_endpoint",
    "container_image",
}


def nemo(tmp_path, *lines):
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO.format("\n  ".join(lines)))
    assert read_yaml(path)
    return resolve_job(draft_like("nemo", [str(path)]).under(Draft()).request())


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        (("fp8: True", "fp8_hybrid: True", "fp8_e4m3: False"), "precision", "fp8"),
        (("fp8: True", "fp8_e4m3: True", "fp8_hybrid: False"), "precision", "fp8"),
        (("fp8: False", "fp8_hybrid: True"), "precision", "bf16"),
        (("fp8_hybrid: True",), "precision", "bf16"),
        (("optim: {name: mcore_distributed_optim}",), "zero", 1),
        (("optim: {name: distributed_fused_adam}",), "zero", 1),
        (("optim: {name: fused_adam}",), "zero", 0),
        (("cpu_offloading: False", "cpu_offloading_num_layers: 7"), "offload_activations", 0),
        (("cpu_offloading: True", "cpu_offloading_num_layers: ${sum:${.num_layers},-1}"), "offload_activations", 7),
        (("optim: {name: mcore_distributed_optim, overlap_grad_sync: True}",), "overlap_grad_reduce", True),
        (("optim: {name: mcore_distributed_optim, overlap_grad_sync: False}",), "overlap_grad_reduce", False),
    ],
)
def test_nemo_switches_on_what_its_file_says(tmp_path, lines, field, value):
    assert getattr(nemo(tmp_path, *lines), field) == value


@pytest.mark.parametrize(
    ("activation", "matrices"), [("fast-swiglu", 3), ("swiglu", 3), ("fast-geglu", 3), ("reglu", 3), ("gelu", 2)]
)
def test_gated_activations_of_nemo_have_a_third_matrix(tmp_path, activation, matrices):
    plain_job, found = nemo(tmp_path), nemo(tmp_path, f"activation: {activation}")
    found_mlp, plain_mlp = (parameters(job.model).layers.mlp for job in (found, plain_job))
    assert found_mlp / plain_mlp == pytest.approx(matrices / 2, rel=0.01)


def test_a_file_with_the_settings_of_nemos_own_is_read_whole():
    draft = draft_like("nemo", [str(RECIPES / "nemo4.yaml")])
    assert {each.name for each in draft.settings if each.effect == UNKNOWN} == set()
    assert {each.name for each in draft.settings if each.effect == NOT_MODELLED} == {
        "model.activations_checkpoint_method", "model.activations_checkpoint_num_layers",
        "model.data.reset_attention_mask", "model.optim.bucket_cap_mb",
    }  # fmt: skip
    job = resolve_job(draft.request())
    assert (job.precision, job.zero, job.overlap_grad_reduce, job.overlap_param_gather) == ("fp8", 1, True, True)
    assert (job.model.ffn_hidden, job.seq_length, job.recompute, job.offload_activations) == (
        24576,
        2048,
        "selective",
        0,
    )
    assert (job.parallel.vpp, job.parallel.world_size, job.framework.grad_reduce_bytes) == (4, 32, 2)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("${model.b}", "6"), ("${.b}", "6"), ("${..top}", "x"), ("${multiply:2, ${.b}}", "12"),
        ("${sum:${.b},-1}", "5"), ("${divide_ceil:${.b},4}", "2"), ("${divide_floor:${.b},4}", "1"),
        ("${.far}", "6"), ("/x/${top}/y", "/x/x/y"),
        ("${no.such}", "${no.such}"), ("${.self}", "${.self}"), ("${oc.env:HOME}", "${oc.env:HOME}"),
    ],
)  # fmt: skip
def test_what_a_value_refers_to_is_found_from_its_place(value, found):
    said = {"top": "x", "model.b": "6", "model.far": "${model.b}", "model.self": "${.self}", "model.a": value}
    assert resolved(said)["model.a"] == found


def test_references_that_multiply_each_other_stay_short():
    said = {f"a{n}": f"${{a{n + 1}}}${{a{n + 1}}}" for n in range(60)} | {"a60": "x" * 50}
    assert max(map(len, resolved(said).values())) < 10_000


def test_a_reference_that_leads_nowhere_is_an_error_where_its_value_is_needed(tmp_path):
    with pytest.raises(ConfigError, match=r"^model\.num_query_groups: refers to what is not given"):
        nemo(tmp_path, "num_query_groups: ${oc.env:GROUPS}")
    assert nemo(tmp_path, "seed: ${oc.env:SEED, 1}").parallel.world_size == 16


def test_a_setting_that_is_not_known_is_not_harmless_because_it_is_off(tmp_path):
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO.format("frobnicate: false"))
    for like, words in (("nemo", [str(path)]), ("torchtitan", ["--parallelism.frobnicate=false"])):
        found = [each for each in settings(like, words) if "frobnicate" in each.name]
        assert [each.effect for each in found] == [UNKNOWN]


def test_an_activation_that_is_not_known_is_said(tmp_path):
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO.format("activation: frobnicate"))
    draft = draft_like("nemo", [str(path)])
    assert any("model.activation = 'frobnicate'" in note.text for note in draft.warnings)
    assert {each.effect for each in draft.settings if each.name == "model.activation"} == {UNKNOWN}


def test_what_the_recipe_switched_on_goes_where_its_need_is_off():
    words = ["--recipe", "llama3_8b_pretrain_config", "--num-gpus", "16", "ddp.overlap_grad_reduce=false"]
    draft = draft_like("bridge", words)
    assert not resolve_job(draft.request()).overlap_param_gather
    with pytest.raises(Exception, match=r"^ddp\.overlap_param_gather: needs --overlap-grad-reduce"):
        draft_like("bridge", [*words, "ddp.overlap_param_gather=true"])


def test_every_dialect_says_what_became_of_its_settings():
    assert set(LIKES) == {"megatron", "torchtitan", "deepspeed", "maxtext", "accelerate", "bridge", "nemo"}
    found = settings("maxtext", ["model_name=llama3-8b", "per_device_batch_size=1", "steps=10", "frobnicate=1"])
    assert {each.name: each.effect for each in found} == {
        "model_name": READ, "per_device_batch_size": READ, "steps": NO_EFFECT, "frobnicate": UNKNOWN,
    }  # fmt: skip
