"""A sweep in the words of Python is the sweep of its file."""

import pytest

import traincast
from traincast.errors import ConfigError, TraincastError
from traincast.sweeps.spec import read_spec
from traincast.sweeps.words import specified

WORDS = {
    "model": "llama3-8b",
    "cluster": "h100",
    "gpus": [16, 32],
    "tensor_model_parallel_size": [1, 2],
    "global_batch": 32,
    "seq_length": "8k",
}
FILE = """
[base]
model = { name = "llama3-8b" }
cluster = { name = "h100" }
batch = { global_batch = 32, seq_length = 8192 }
[grid]
"cluster.gpus" = [16, 32]
"parallel.tp" = [1, 2]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    return path


def test_words_and_sections_are_what_a_file_says(file):
    said = read_spec(file)
    sections = {
        "base": {"model": {"name": "llama3-8b"}, "cluster": {"name": "h100"}, "batch": {"global_batch": 32}},
        "grid": {"cluster.gpus": [16, 32]},
    }
    for spec, words in ((WORDS, {}), (None, WORDS), (sections, {"seq_length": "8k", "tp": (1, 2)}), (file, {})):
        found = specified(spec, words)
        assert found.fingerprint == said.fingerprint
        assert [point.said for point in found.points()] == [point.said for point in said.points()]


def test_keywords_win_over_a_file(file):
    found = specified(file, {"tp": 4, "gpus": range(32, 34), "recompute_modules": ["core_attn,mlp", "core_attn"]})
    assert found.base["parallel"] == {"tp": 4}
    assert found.grid == {"cluster.gpus": (32, 33), "software.recompute_modules": (["core_attn", "mlp"], ["core_attn"])}
    assert specified(file, {"tp": None}).fingerprint == read_spec(file).fingerprint


def test_plans_prices_and_cases_are_words():
    said = {"work": "plan", "plan": {"space": "full"}, "prices": {"h100": 2}, "cases": [{"model.name": "llama3-8b"}]}
    found = specified(None, said)
    assert (found.work, found.plan, found.prices, len(found)) == ("plan", {"space": "full"}, {"h100": 2}, 1)


@pytest.mark.slow
def test_a_table_is_returned_where_no_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = {**WORDS, "seq_length": "4k"}
    table = traincast.sweep(words, workers=1)
    assert table["cluster.gpus"].tolist() == [16, 16, 32, 32]
    steps = [traincast.predict(**{**words, "gpus": 32, "tensor_model_parallel_size": tp}) for tp in (1, 2)]
    assert table["step_s"].tolist()[2:] == [each.iteration_time_s for each in steps]
    assert traincast.sweep(out="found.csv", workers=1, **words) == {"ok": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["found.csv"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model": "llama3-8b"}, "grid: nothing varies"),
        ({"modle": ["a"]}, "unknown option 'modle'; .*did you mean model"),
        ({"tp": [1, "x"]}, "tp: is 'x'; it must be a whole number"),
        ({"tp": []}, "is empty"),
        ({"cluster": [traincast.clusters(["h100"])[0]]}, "cluster: is a Cluster; a sweep takes names"),
        ({"tp": [1], "cases": [{"parallel.tp": 2}]}, r"is in \[grid\] and in"),
    ],
)
def test_wrong_words_are_one_message(said, message):
    with pytest.raises(ConfigError, match=message):
        traincast.sweep(said)


def test_nothing_that_is_ok_is_an_error():
    with pytest.raises(TraincastError, match=r"no point that is ok: of 1 point 1 refused.*seq_length"):
        traincast.sweep(tp=[1], model="llama3-8b", gpus=8, global_batch=8, workers=1)
