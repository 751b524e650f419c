import tomllib

import pytest

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.model.load import builtin_table, family_table, find_model, load_model, model_names
from traincast.model.model import Attention, Experts, Latent, Model
from traincast.model.table import merged, model_from_table
from traincast.shipped import shipped_text

COMPLETE = """
layers = 2
hidden = 64
ffn_hidden = 256
gated = true
vocab = 1000

[attention]
heads = 4
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("name", model_names())
def test_a_built_in_model_has_a_sound_shape_and_a_source(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert not model.notes
    assert model.attention.heads % model.attention.kv_heads == 0
    assert model.learned_positions == 0 or model.learned_positions <= (model.max_positions or 2048) + 2
    if model.attention.window:
        assert 1 <= model.attention.window_layers <= model.attention.window_period
    if model.experts:
        assert sum(model.has_experts(layer) for layer in range(model.layers)) >= model.layers * 2 // 5


def test_names_are_found_however_they_are_spelled():
    spellings = {
        "llama3-70b": ("Llama-3-70B", "LLAMA3_70B", "llama 3 70b", "meta-llama/Meta-Llama-3-70B"),
        "llama3.1-405b": ("llama3-405b", "Llama-3.1-405B", "meta-llama/Llama-3.1-405B"),
        "gpt3-175b": ("GPT-3-175B", "gpt3", "gpt3/175b"),
        "nemotron4-340b": ("Nemotron-4-340B",),
        "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1",),
        "grok-1": ("grok1-314b", "Grok-1"),
        "llama1-33b": ("LLaMA/33B",),
    }
    for name, others in spellings.items():
        assert {find_model(other) for other in (name, *others)} == {name}
    # Numbers that a dash parts stay apart: 3-3b is not 33b, 2-57b is not 2.57b.
    for other in ("llama3-3b", "llama-33", "qwen2-57b", "", "/", "llama"):
        assert find_model(other) is None


def test_no_two_models_share_a_spelling():
    families = tomllib.loads(shipped_text("models/models.toml")).values()
    found = [
        (spelling, name)
        for family in families
        for name, values in family["models"].items()
        for spelling in (name, *values.get("aliases", ()))
    ]
    assert {spelling: find_model(spelling) for spelling, _ in found} == dict(found)
    prefixes = [prefix for family in families for prefix in family.get("prefixes", ())]
    assert len(prefixes) == len(set(prefixes))
    assert model_names() == [name for family in families for name in family["models"]]
    for family in families:
        for prefix in family.get("prefixes", ()):
            shared = {key: value for key, value in family.items() if key not in ("models", "prefixes")}
            assert family_table(f"{prefix}-1b") == shared


def test_a_family_says_what_its_sizes_share():
    table = family_table("gpt-39B")
    assert merged(builtin_table("gpt2-xl"), table) == builtin_table("gpt2-xl")
    assert table["tied_embeddings"] is True
    assert "layers" not in table
    assert family_table("gpt4-1t") is None


def test_an_unknown_name_lists_the_known():
    for name, listed in (("llama9-1b", "mean .*llama"), ("", "gpt2, .*llama3-8b"), ("gpt", "mean gpt")):
        with pytest.raises(UnknownNameError, match=listed):
            load_model(name)


def test_a_file_may_build_on_a_model(write):
    base = load_model("llama3-8b")
    same = load_model(write('base = "llama3-8b"'))
    assert [field for field in Model.__struct_fields__ if getattr(same, field) != getattr(base, field)] == [
        "name",
        "source",
    ]
    path = write('base = "Llama-3-8B"\nlayers = 40\nname = "ours"\n[attention]\nkv_heads = 16\n')
    model = load_model(path)
    assert (model.name, model.layers, model.attention.kv_heads, model.attention.heads) == ("ours", 40, 16, 32)
    wider = load_model(write('base = "llama3-8b"\nhidden = 8192\n'))
    assert wider.attention.head_dim == 256
    dense = load_model(write('base = "mixtral-8x7b"\nexperts = false\n'))
    assert dense.experts is None


def test_a_file_may_stand_alone(write):
    path = write(COMPLETE)
    model = load_model(path)
    assert (model.name, model.source) == ("mine", f"set in {path}")
    assert model.attention == Attention(heads=4, kv_heads=4, head_dim=16)
    text = COMPLETE + "[attention.latent]\nkv_rank = 8\nrope_head_dim = 4\nnope_head_dim = 12\nv_head_dim = 16\n"
    text += "[experts]\nexperts = 4\ntopk = 2\nffn_hidden = 32\ncapacity_factor = 1.25\n"
    model = load_model(write(text))
    latent = Latent(q_rank=None, kv_rank=8, rope_head_dim=4, nope_head_dim=12, v_head_dim=16)
    assert model.attention == Attention(heads=4, kv_heads=4, head_dim=16, latent=latent)
    assert model.experts == Experts(experts=4, topk=2, ffn_hidden=32, capacity_factor=1.25)
    assert load_model(write(text.replace("1.25", "0.5"))).experts.capacity_factor == 0.5
    one = load_model(write(COMPLETE.replace("heads = 4", "heads = 1")))
    assert one.attention == Attention(heads=1, kv_heads=1, head_dim=64)
    with pytest.raises(ConfigError, match=r"attention\.heads: is 0"):
        load_model(write(COMPLETE.replace("heads = 4", "heads = 0")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layers = 2\n", "hidden: is missing; give it, or a base"),
        (COMPLETE.replace("heads = 4", "heads = 5"), "attention.head_dim: is missing"),
        (COMPLETE.replace("heads = 4", "heads = 4\nhead = 3"), "attention.head: is unknown; known: heads"),
        (COMPLETE.replace("layers = 2", "layer = 2"), "layer: is unknown"),
        (COMPLETE.replace("layers = 2", "layers = 0"), "layers: is 0; it must be a whole number from 1 to"),
        (COMPLETE.replace("layers = 2", "layers = 2.5"), "layers: is 2.5; it must be a whole number"),
        (COMPLETE.replace("layers = 2", "layers = nan"), "layers: is nan"),
        (COMPLETE.replace("layers = 2", 'layers = "2"'), "layers: is '2'; it must be a whole number"),
        (COMPLETE.replace("layers = 2", "layers = true"), "layers: is True; it must be a whole number"),
        (COMPLETE.replace("gated = true", "gated = 1"), "gated: is 1; it must be true or false"),
        (COMPLETE.replace("gated = true", 'gated = true\nnorm = "batch"'), "norm: is 'batch'; known: rms"),
        (COMPLETE.replace("gated = true", "gated = true\nname = 3"), "name: is 3; it must be a text"),
        (COMPLETE.replace("[attention]", "experts = 3\n[attention]"), "experts: is 3; it must be a table"),
        ("attention = 3\n", "attention: is 3; it must be a table"),
        (COMPLETE + "kv_heads = 3\n", "4 heads do not share 3 key/value heads evenly"),
        (COMPLETE + "[experts]\nexperts = 2\ntopk = 3\nffn_hidden = 4\n", "top-3 of 2 experts"),
        (COMPLETE.replace("vocab", "notes = []\nvocab"), "notes: is unknown"),
        ('base = "llama9"', "unknown base model 'llama9'"),
        ("base = 3", "unknown base model '3'"),
    ],
)
def test_a_wrong_file_is_one_message_with_its_place(write, text, said):
    path = write(text)
    with pytest.raises(ConfigError) as error:
        load_model(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert path in str(error.value) or "base" in text


@pytest.mark.parametrize("content", [b"\xff\xfe", b"layers = ", b"a = " + b"[" * 5000])
def test_what_is_no_toml_is_a_format_error(tmp_path, content):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(FormatError) as error:
        load_model(str(path))
    assert str(error.value).startswith(str(path))


def test_files_that_are_not_there_or_nothing(tmp_path):
    for name in ("x.toml", "x.json"):
        with pytest.raises(FormatError, match="cannot be read"):
            load_model(str(tmp_path / name))
    (tmp_path / "weights.bin").write_bytes(b"1")
    with pytest.raises(FormatError, match=r"give a config\.json or a TOML file"):
        load_model(str(tmp_path / "weights.bin"))


def test_merging_keeps_both_sides():
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": 3}
    assert merged(base, {"a": {"y": {"w": 4}}, "c": 5}) == {"a": {"x": 1, "y": {"z": 2, "w": 4}}, "b": 3, "c": 5}
    assert merged(base, {"a": False})["a"] is False
    assert base["a"]["y"] == {"z": 2}


@pytest.mark.parametrize("name", model_names())
def test_a_model_survives_its_own_table(name):
    model = load_model(name)

    def table(value):
        if isinstance(value, tuple):
            return tuple(map(table, value))
        if not isinstance(value, Model | Attention | Experts | Latent):
            return value
        pairs = {field: table(getattr(value, field)) for field in value.__struct_fields__ if field != "notes"}
        return {key: item for key, item in pairs.items() if item is not None}

    assert model_from_table(table(model), "itself") == model
