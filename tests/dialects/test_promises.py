"""Each setting of a file ends as exactly one of five things, and "no effect" has a reason."""

import shlex
from pathlib import Path

import pytest

import traincast
from traincast.dialects import (
    LIKES,
    accelerate_settings,
    bridge_settings,
    deepspeed_settings,
    draft_like,
    torchtitan_flags,
)
from traincast.dialects.flags import NO_EFFECT, NOT_MODELLED, READ, SMALL_EFFECT, UNKNOWN, flag_table
from traincast.dialects.judge import reason_of
from traincast.dialects.recipe_flags import fates_of, recipe_flags
from traincast.dialects.references import resolved
from traincast.dialects.settings import settings_of_file
from traincast.dialects.yaml import read_yaml
from traincast.errors import ConfigError, TraincastError
from traincast.files import read_toml
from traincast.job.draft import Draft
from traincast.job.record import record_from_table
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters
from traincast.report.json import result_to_dict
from traincast.shipped import shipped_rows
from traincast.tables import flat

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
    assert nemo(tmp_path, *lines).decided(field) == value


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
    assert (job.precision.dtype, job.sharding.zero) == ("fp8", 1)
    assert (job.sharding.overlap_grad_reduce, job.sharding.overlap_param_gather) == (True, True)
    assert (job.model.ffn_hidden, job.batch.seq_length) == (24576, 2048)
    assert (job.recompute.granularity, job.offload.activations) == ("selective", 0)
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
    assert not resolve_job(draft.request()).sharding.overlap_param_gather
    with pytest.raises(Exception, match=r"^ddp\.overlap_param_gather: needs --overlap-grad-reduce"):
        draft_like("bridge", [*words, "ddp.overlap_param_gather=true"])


def test_every_dialect_says_what_became_of_its_settings():
    assert set(LIKES) == {"megatron", "torchtitan", "deepspeed", "maxtext", "accelerate", "bridge", "nemo"}
    found = settings("maxtext", ["model_name=llama3-8b", "per_device_batch_size=1", "steps=10", "frobnicate=1"])
    assert {each.name: each.effect for each in found} == {
        "model_name": READ, "per_device_batch_size": READ, "steps": NO_EFFECT, "frobnicate": UNKNOWN,
    }  # fmt: skip


SAME_WORD = {
    "data_sharding": "of a mesh of MaxText, of files of Megatron-LM",
    "packing": "MaxText's kernels see whole sequences, packed or not",
    "module": "a switch of python -m, and a Python module of torchtitan",
    "max_position_embeddings": "a table of learned positions in Megatron-LM, a bound in MaxText",
    "tokenizer_type": "tells the vocabulary in Megatron-LM, whose MaxText says it by itself",
    "rotary_position_embeddings": "describes the model in Megatron-LM; Accelerate's is described by its own file",
    "rl": "a section of reinforcement learning",
}
"""Names that mean different things to different frameworks, or decide something in one of them alone."""
PREFIXES = ("megatron_lm_", "fsdp_", "parallelism_config_", "use_", "enable_", "no_", "disable_", "fp16_")


def concept(name):
    name = plain(name).rpartition(".")[2]
    for each in PREFIXES:
        name = name.removeprefix(each)
    return name


def test_nothing_without_effect_is_the_twin_of_what_is_modelled():
    """What decides a step under one framework's name is not harmless under another's."""
    matters, harmless = {}, {}
    for like in ("megatron", "torchtitan", "deepspeed", "maxtext", "accelerate"):
        for name, flag in flag_table(like).flags.items():
            to = {NO_EFFECT: harmless, READ: matters, NOT_MODELLED: matters}.get(flag.effect)
            if to is not None and not name.endswith("*"):
                to.setdefault(concept(name), set()).add((like, name))
    twins = harmless.keys() & matters.keys()
    assert twins - SAME_WORD.keys() == set()
    assert SAME_WORD.keys() - twins == set()


@pytest.mark.parametrize("like", ["bridge", "nemo"])
def test_no_section_makes_harmless_what_megatron_reads(like):
    """In a section without effect a name that matters elsewhere is unknown, or is what it is elsewhere."""
    table = flag_table(like).further
    sections = [name for name, of in table["sections"].items() if of == "none"]
    names = [name.replace("-", "_") for name, flag in flag_table("megatron").flags.items() if flag.effect == READ]
    said = {f"{section}.{name}": "3" for section in sections for name in names}
    said = {name: value for name, value in said.items() if name not in {*table["paths"], *table["whys"]}}
    fates = fates_of(said, recipe_flags(said, table, like), (), table)
    assert {each.effect for each in fates} == {UNKNOWN}
    assert len(fates) > 1000


@pytest.mark.parametrize("like", LIKES)
def test_what_is_not_modelled_says_how_much_it_may_matter(like):
    table = flag_table(like)
    assert [name for name, each in table.flags.items() if each.effect == NOT_MODELLED and not each.matters] == []
    rules = table.further.get("dependent", ())
    assert all(each["why"] and each["effect"] in EFFECTS for each in rules)
    assert [each["names"] for each in rules if each["effect"] == NOT_MODELLED and not each.get("matters")] == []


READERS = {"nemo": bridge_settings, "deepspeed": deepspeed_settings, "accelerate": accelerate_settings}


@pytest.mark.parametrize("name", FILES)
def test_without_what_has_no_effect_a_file_says_the_same_job(name, monkeypatch):
    like, before = FILES[name]
    words = [*before, str(RECIPES / name), *(TRAINER if like in ("deepspeed", "accelerate") else [])]
    whole = draft_like(like, words)
    names = {plain(each.name) for each in whole.settings if each.effect == NO_EFFECT}
    gone = set()

    def less(settings):
        """Return settings without those of no effect, of which a section before the name is left out."""
        kept = {}
        for key, value in settings.items():
            harmless = plain(key) in names or plain(key).partition(".")[2] in names
            gone.update([key] if harmless else [])
            kept |= {} if harmless else {key: value}
        return kept

    if like == "torchtitan":
        monkeypatch.setattr(torchtitan_flags, "read_toml", lambda path: less(flat(read_toml(path))))
    else:
        monkeypatch.setattr(READERS[like], "settings_of_file", lambda path: less(settings_of_file(path)))
    found = draft_like(like, words)
    assert gone or not names
    assert (found.fields, found.model) == (whole.fields, whole.model)
    if whole.finish is not None:
        given = {"tp": 1, "pp": 1, "cp": 1, "gpus": 64, **whole.fields}
        outcomes = []
        for draft in (whole, found):
            try:
                outcomes.append(draft.finish(given, None))
            except TraincastError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["br1.txt", "br2.txt", "nemo1.txt", "br3.py", "nemo2.py"])
def test_each_setting_of_a_recipe_is_one_thing(name):
    like = "bridge" if name.startswith("br") else "nemo"
    path = RECIPES / name
    words = [str(path)] if name.endswith(".py") else shlex.split(path.read_text())
    found = settings(like, words)
    assert len({each.name for each in found}) == len(found) > 0
    assert {each.effect for each in found} <= EFFECTS
    said = {word.partition("=")[0].lstrip("+~") for word in words if "=" in word and not word.startswith("-")}
    assert said <= {each.name for each in found}
    assert all(each.why for each in found if each.effect in (NO_EFFECT, NOT_MODELLED))


def test_every_setting_of_the_recipes_of_the_tables_is_known():
    for row in shipped_rows("dialects/bridge_recipes.csv"):
        found = settings("bridge", ["--recipe", row["recipe"]])
        assert len({each.name for each in found}) == len(found)
        assert {pair.partition("=")[0] for pair in row["settings"].split(";") if pair} <= {each.name for each in found}
        assert [each.name for each in found if each.effect == UNKNOWN] == []
        assert all(each.why for each in found if each.effect in (NO_EFFECT, NOT_MODELLED))


def test_a_flag_that_is_nothing_beside_the_others_has_no_effect():
    words = shlex.split("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1")
    found = {each.name: each for each in settings("megatron", [*words, "--fp8-recipe", "delayed"])}
    assert found["--fp8-recipe"].effect == NO_EFFECT
    assert found["--fp8-recipe"].why


def test_a_result_says_what_became_of_each_setting():
    draft = draft_like("nemo", [str(RECIPES / "nemo4.yaml")])
    result = traincast.predict(draft, cluster="h100")
    document = result_to_dict(result)
    written = document["run"]["settings"]
    assert [each["name"] for each in written] == [each.name for each in draft.settings]
    assert {each["effect"] for each in written} <= EFFECTS
    assert record_from_table(document["run"], (), "x").settings == draft.settings
