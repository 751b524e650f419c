"""The YAML of configuration files: what is read, and what is refused with its line."""

import subprocess
import sys
from datetime import date

import pytest
import yaml

from traincast.dialects import draft_like
from traincast.dialects import yaml as room
from traincast.dialects.yaml import parse_yaml
from traincast.errors import FormatError

LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(params=LOADERS, ids=[loader.__name__ for loader in LOADERS], autouse=True)
def _loader(request, monkeypatch):
    # PyYAML comes with libyaml or without.
    monkeypatch.setattr(room, "_LOADER", request.param)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("---\na: 1\nb: 'x # y' # z\n...\n", {"a": 1, "b": "x # y"}),
        ("a:\n  b: [1, 2.5, 'three', null, {d: no}]\n", {"a": {"b": [1, 2.5, "three", None, {"d": False}]}}),
        ("a:\n- 1\n- b: 2\n  c: 3\n-\n  - x\nd: e", {"a": [1, {"b": 2, "c": 3}, ["x"]], "d": "e"}),
        ("a: [ # first\n  [b, []], # 'it\n  ['c', [d]],\n   ]\ne: 1_000", {"a": [["b", []], ["c", ["d"]]], "e": 1000}),
        ("lr: 1e-5\neps: 1.e-05\nname: 1.2.3\nurl: http://x/y#z\n", {"lr": 1e-5, "eps": 1e-5, "name": "1.2.3", "url": "http://x/y#z"}),
        ("t: |\n  one\n  two: 2\nf: >-\n  one\n  two\n", {"t": "one\ntwo: 2", "f": "one two"}),
        ("off: 'no'\n\"q k\": ~\nempty:\n", {"off": "no", "q k": None, "empty": None}),
        ("- a\n- [b, c]\n", ["a", ["b", "c"]]),
        ('s: "a\\tb \\"c\\""', {"s": 'a\tb "c"'}),
        ("a: long\n  text\nb: 'over\n  lines'", {"a": "long text", "b": "over lines"}),
        ("a: !!str 8\nb: !!float 8", {"a": "8", "b": 8.0}),
        ("? a\n: 1\nref: ${.a}", {"a": 1, "ref": "${.a}"}),
    ],
)  # fmt: skip
def test_what_configuration_files_say_is_read(text, value):
    found = parse_yaml(text, "x.yaml")
    assert found == value
    assert repr(found) == repr(value), "1, 1.0 and True are equal"


def test_anchors_aliases_and_merge_keys_are_what_they_stand_for():
    text = """
defaults: &defaults {lr: 1e-4, bf16: true, data: {seed: 1, path: x}}
small: &small
  layers: 2
  lr: 3.0e-4
one: {<<: *defaults, lr: 2e-4}
two:
  layers: 8
  <<: [*small, *defaults]
three: {<<: *defaults, <<: *small}
list: &list [1, 2]
again: [*list, *list]
"<<": a name
"""
    found = parse_yaml(text, "x.yaml")
    data = {"seed": 1, "path": "x"}
    assert found["one"] == {"lr": 2e-4, "bf16": True, "data": data}
    assert found["two"] == {"layers": 8, "lr": 3e-4, "bf16": True, "data": data}
    assert found["three"] == {"layers": 2, "lr": 3e-4, "bf16": True, "data": data}
    assert found["again"] == [[1, 2], [1, 2]]
    assert found["<<"] == "a name"


AS_PYYAML = {
    **dict.fromkeys(("on", "On", "ON", "yes", "Yes", "true", "TRUE"), True),
    **dict.fromkeys(("off", "Off", "OFF", "no", "No", "NO", "false"), False),
    **dict.fromkeys(("~", "null", "Null", ""), None),
    # Letters alone are texts, as yaml.org's y and n are not to PyYAML; so is what only nearly is a boolean.
    **{text: text for text in ("y", "n", "N", "tRUE", "oN", "none", "None")},
    "8": 8, "+8": 8, "-8": -8, "1_000": 1000, "0x10": 16, "0b11": 3, "010": 8, "08": "08", "0o10": "0o10",
    "1:30": 90, "4:00:00": 14400, "1:30.5": 90.5, "-1": -1, "12e": "12e", "1.5": 1.5, "1.5e+3": 1500.0, "1.": 1.0,
    "1.2.3": "1.2.3", "bf16-mixed": "bf16-mixed", "3b": "3b", "-": None,
}  # fmt: skip
"""What PyYAML makes of a plain scalar, and OmegaConf, too."""

AS_OMEGACONF = {
    "1e-4": 1e-4, "1E4": 1e4, "-1e-4": -1e-4, "1_0e2": 1000.0, "1.5e3": 1500.0, ".5e+3": 500.0,
    "2024-08-01": "2024-08-01", "2024-08-01 12:00:00": "2024-08-01 12:00:00",
}  # fmt: skip
"""What OmegaConf makes of what PyYAML reads in another way."""

OUR_OWN = {
    **{text: text for text in (".inf", "-.inf", ".nan", "1e999", "1.0e+999", "=", "0x_", "9" * 5000)},
    ".5e3": 500.0, "-.5": -0.5,
}  # fmt: skip
"""What is not a finite number stays as it is written, for whoever needs a number there to refuse."""


@pytest.mark.parametrize(("text", "value"), [*AS_PYYAML.items(), *AS_OMEGACONF.items(), *OUR_OWN.items()])
def test_plain_scalars_are_read_as_the_frameworks_read_them(text, value):
    found = parse_yaml(f"a: {text}" if text != "-" else "a:\n  -", "x.yaml")["a"]
    found = found[0] if text == "-" else found
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", [text for text in AS_PYYAML if text != "-"])
def test_pyyaml_itself_reads_them_so(text):
    found = yaml.safe_load(f"a: {text}")["a"]
    assert (found, type(found)) == (AS_PYYAML[text], type(AS_PYYAML[text]))


def test_pyyaml_itself_reads_the_others_in_another_way():
    assert yaml.safe_load("1e-4") == "1e-4"
    assert yaml.safe_load("2024-08-01") == date(2024, 8, 1)


@pytest.mark.parametrize("text", ["no", "off", "1e-4", "08", "8", "null", "2024-08-01"])
def test_what_is_quoted_is_a_text_and_a_key_always_is(text):
    assert parse_yaml(f"a: '{text}'\nb: \"{text}\"", "x.yaml") == {"a": text, "b": text}
    assert parse_yaml(f"{text}: 1", "x.yaml") == {text: 1}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\nb: *x\n", 2, "undefined alias"),
        ("a: &x 1\nb: &x 2\n", 2, "duplicate anchor"),
        ("a: !!python/object 1\n", 1, "has the tag 'tag:yaml.org,2002:python/object', which is not read"),
        ("a: 1\nb: !ref x\n", 2, "has the tag '!ref'"),
        ("a: 1\nb: !!set {x}\n", 2, "has the tag"),
        ("a: {<<: {c: 1}}\nb: 2\n\n<<: c\n", 4, r"is merged \(<<\), but is not a mapping"),
        ("a: &a [1]\nb:\n  <<: [*a]\n", 1, "is merged"),
        ("a: 1\n\na: 2\n", 3, "gives 'a' for the second time"),
        ("a: {b: 1, 'b': 2}", 1, "second time"),
        ("1: x\n'1': y", 2, "second time"),
        ("[a]: 1\n", 1, "a list or mapping as a key"),
        ("a: 1\n b: 2\n", 2, "mapping values are not allowed"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: 1\nnothing\n", 2, "could not find expected ':'"),
        ("a:\n\t- 1\n", 2, "cannot start any token"),
        ("a: 1\nb: @x\n", 2, "cannot start any token"),
        ("a: [1, 2\nb: 3\n", 2, "flow sequence that begins in line 1: "),
        ("a: 1\nb: [1, 2\n", 2, "',' or '\\]'"),
        ("a: [1, 2}\n", 1, "',' or '\\]'"),
        ("a: 'x\nb: 2\n", 1, "unexpected end of stream"),
        ("a: 1\n---\nb: 2\n", 2, "found another document"),
        ("a: 1\nb: \x07", 2, "cannot be printed"),
        ("a: &a [*a]", 1, "within itself"),
        ("a: &a\n  b: 1\n  <<: *a", 1, "within itself"),
        ("a: " + "[" * 99 + "]" * 99, 1, "nested too deeply"),
        ("a: " + "[" * 100_000, 1, "nested too deeply|exceeded maximum nesting depth"),
        ("".join(f"{' ' * each}a:\n" for each in range(99)), 34, "nested too deeply"),
        ("".join(f"a{each}: &a{each} [{each and f'*a{each - 1}'}]\n" for each in range(60)), 1, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said_once_with_its_line(text, line, what):
    with pytest.raises(FormatError, match=what) as caught:
        parse_yaml(text, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{line}: ")
    assert "\n" not in str(caught.value)


BOMBS = {
    "aliases": "a0: &a0 lol\n" + "".join(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 10)),
    "merges": "a0: &a0 {b: lol}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join(9 * [f'*a{n - 1}'])}]}}\n" for n in range(1, 10)),
    "values": "- a\n" * 110_000,
    "flow": "[" + "a," * 110_000 + "]",
}  # fmt: skip


# Without libyaml a hundred thousand values take seconds.
@pytest.mark.parametrize(
    "_loader",
    [pytest.param(each, marks=[pytest.mark.slow] * (each is yaml.SafeLoader)) for each in LOADERS],
    indirect=True,
)
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_what_expands_without_end_is_refused(text):
    with pytest.raises(FormatError, match=r"^x\.yaml:\d+: .*is one of more than 100,000 values") as caught:
        parse_yaml(text, "x.yaml")
    assert len(str(caught.value)) < 250


SHARED = """
model_defaults: &model
  micro_batch_size: 1
  global_batch_size: 128
  mcore_gpt: true
  encoder_seq_length: 4096
  optim: &optim {name: distributed_fused_adam, lr: 1e-4}
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  <<: *model
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  global_batch_size: 256
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
"""


def test_a_recipe_with_shared_settings_is_the_one_without(tmp_path):
    path, plain = tmp_path / "shared.yaml", tmp_path / "plain.yaml"
    path.write_text(SHARED)
    plain.write_text(yaml.safe_dump(yaml.safe_load(SHARED.replace("1e-4", "1.0e-4"))))
    found, expected = (draft_like("nemo", [str(each)]) for each in (path, plain))
    assert found.fields == expected.fields
    assert (found.fields["tp"], found.fields["global_batch"]) == (4, 256)
    assert set(found.settings) == set(expected.settings)


def test_an_accelerate_file_with_an_alias_is_read(tmp_path):
    path = tmp_path / "fsdp.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nprecision: &half bf16\nmixed_precision: *half\n"
        "num_processes: 16\nnum_machines: 2\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    )
    words = ["accelerate", "launch", "--config_file", str(path), "train.py", "--model_name_or_path", "llama3-8b"]
    found = draft_like("accelerate", words)
    assert (found.fields["precision"], found.fields["gpus"], found.fields["zero"]) == ("bf16", 16, 3)


def test_pyyaml_is_loaded_where_a_yaml_file_is_read_only():
    code = (
        "import sys, traincast.dialects.recognise, traincast.api, traincast.cli.predict; print('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "False\n"
