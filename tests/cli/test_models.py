"""``traincast models``: what it lists, and what it says of one model."""

import json
import re

import pytest

from traincast.hardware.clusters import cluster_names
from traincast.model.counts import model_flops_per_token, parameters
from traincast.model.load import load_model, model_names
from traincast.names import find_name, plain


def test_every_built_in_model_is_listed_with_its_parameters(call):
    code, out, err = call("models")
    assert (code, err) == (0, "")
    assert re.findall(r"^  ([a-z]\S+) +[\d.,]+ [BM] ", out, re.MULTILINE) == model_names()
    assert re.search(r"^  llama3-8b +8\.03 B +32 +4096 +32/8$", out, re.MULTILINE)
    assert re.search(r"^  deepseek-v3 +671\.03 B +37\.55 B +61 ", out, re.MULTILINE)
    assert re.search(r"^  gpt2 +124\.4 M ", out, re.MULTILINE)
    assert all(line == line.rstrip() and len(line) <= 80 for line in out.splitlines())


def test_one_model_by_part(call):
    code, out, err = call("models", "Mixtral-8x7B", "--seq-length", "32768")
    assert (code, err) == (0, "")
    assert re.search(r"^  total +46\.70 B$", out, re.MULTILINE)
    assert re.search(r"^  active per token +12\.88 B", out, re.MULTILINE)
    assert "experts: 8 of 14336, top-2, gated" in out
    assert "source: mistralai/Mixtral-8x7B-v0.1" in out
    training = model_flops_per_token(load_model("mixtral-8x7b"), 32768)
    assert f"training {training / 1e9:.4g} GFLOP per token at 32768 tokens" in out
    shares = [float(share) for share in re.findall(r"([\d.]+) %", out.split("FLOPs per token")[1])]
    assert abs(sum(shares) - 100) < 0.5


def test_the_document(call):
    code, out, err = call("models", "llama3-8b", "deepseek-v3", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "traincast.models/1"
    small, large = document["models"]
    assert small["parameters"]["total"] == parameters(load_model("llama3-8b")).total
    assert (large["parameters"]["active"], large["attention"]["latent"]["kv_rank"]) == (37552282624, 512)
    assert small["flops"]["training_per_token"] == model_flops_per_token(load_model("llama3-8b"), 4096)
    assert len(json.loads(call("models", "--json")[1])["models"]) == len(model_names())


def test_a_file_of_either_kind(call, tmp_path):
    config = {"model_type": "newllama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2, "vocab_size": 100}))
    code, out, err = call("models", tmp_path)
    assert (code, err) == (0, "")
    assert "model_type 'newllama' is not known" in " ".join(out.split())
    (tmp_path / "mine.toml").write_text('base = "llama3-8b"\nlayers = 16\n')
    assert "16 layers, hidden 4096" in call("models", tmp_path / "mine.toml")[1]


def test_mistakes_are_one_line(call, tmp_path):
    code, out, err = call("models", "llama9")
    assert (code, out) == (1, "")
    assert err.startswith("error: unknown model 'llama9'; known: ")
    assert "did you mean llama" in err
    assert call("models", "llama3-8b", "--seq-length", "0")[0] == 2
    (tmp_path / "config.json").write_text("{")
    code, out, err = call("models", tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {tmp_path / 'config.json'}:1: is not JSON")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "known"), [("models", model_names()), ("clusters", cluster_names())])
def test_a_part_of_names_lists_all_that_have_it(command, known, call):
    parts = {name[at : at + 3].strip("-_.") for name in known[::7] for at in (0, 3)}
    checked = 0
    for part in sorted(part for part in parts if len(part) > 1 and find_name(part, known) is None):
        code, out, err = call(command, part.upper())
        assert code == 0
        hits = [name for name in known if plain(part) in plain(name)]
        found = {name for name in known if re.search(rf"^ *{re.escape(name)}\b", out, re.MULTILINE)}
        assert (err, len(found) > 0) == ("", len(hits) > 0)
        assert set(hits) <= found
        checked += 1
    assert checked >= 3


def test_a_search_is_a_document_too_and_a_word_of_no_name_is_refused(call):
    found = json.loads(call("models", "llama", "gpt2-xl", "--json")[1])["models"]
    assert [each["name"] for each in found] == [*(name for name in model_names() if "llama" in name), "gpt2-xl"]
    code, out, err = call("models", "llama", "no such thing")
    assert (code, out) == (1, "")
    assert "unknown model 'no such thing'" in err
