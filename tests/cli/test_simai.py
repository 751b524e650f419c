"""``traincast simulate --pricing simai``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from traincast import api
from traincast.cli.main import cli
from traincast.errors import TraincastError

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT_405B = EXAMPLES / "aicb_gpt_405b_1024gpu.txt"
SCALED = EXAMPLES / "aicb_scaled_512gpu.txt"


def call(*words):
    """Run the command; return exit code, output and what it raised on purpose."""
    outcome = CliRunner().invoke(cli, ["simulate", *map(str, words)])
    said = str(outcome.exception) if isinstance(outcome.exception, TraincastError) else outcome.output
    return outcome.exit_code, outcome.output, said


@pytest.mark.slow
def test_simais_words_beside_the_simulated_step():
    code, out, _ = call(GPT_405B, "--pricing", "simai", "--cluster", "h100", "--vpp", 8)
    assert code == 0
    assert "SimAI-Analytical's sum 8,684,828 us" in out
    for word, number in (("Expose TP comm", "281,609"), ("bubble time", "867,333"), ("Total time", "8,684,828")):
        assert any(word in line and number in line for line in out.splitlines()), word
    assert "nothing is scheduled" in out
    step_s = api.simulate(GPT_405B, cluster="h100", vpp=8).iteration_time_s
    assert f"step {step_s * 1e6:,.0f} us" in out


def test_json():
    words = (SCALED, "--pricing", "simai", "--cluster", "a100", "--json", "--simai-overlap", "pp=0.5")
    code, out, _ = call(*words)
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == "traincast.simai/1"
    assert {"machine", "layout", "overlap", "warnings", "simulated", "inputs", "version", "rows"} <= set(document)
    assert round(document["dp_s"] * 1e6) == 225304
    assert round(document["pp_s"] * 1e6) == 312500
    assert document["layout"]["dp"] == 8
    assert document["machine"]["name"] == "A100+CX6"
    assert document["overlap"] == {"dp": 0.0, "tp": 0.0, "ep": 0.0, "pp": 0.5}
    assert document["simulated"]["iteration_time_s"] == api.simulate(SCALED, cluster="a100").iteration_time_s
    assert len(document["rows"]) == 172


def test_without_a_cluster_it_says_which_was_taken():
    document = json.loads(call(SCALED, "--pricing", "simai", "--json")[1])
    assert "cluster-default" in {note["code"] for note in document["warnings"]}
    assert call(SCALED, "--pricing", "simai", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "gpipe"], "--schedule has no meaning for SimAI's total"),
        (["--dp", "8"], "--dp has no meaning"),
        (["--cp", "2"], "--cp has no meaning"),
        (["--stage-roles", "as-written"], "--stage-roles has no meaning"),
        (["--overlap-grad-reduce"], "--overlap-grad-reduce has no meaning"),
        (["--busbw", "tp=1GB/s"], "--busbw has no meaning"),
        (["--slow", "0=2"], "--slow has no meaning"),
        (["--unfold"], "--unfold has no meaning"),
        (["--cluster", "h200"], "no constants for 'h200'"),
        (["--cluster", "ideal"], "no constants for 'ideal'"),
        (["--gpus", "1000"], "1000 ranks do not divide"),
    ],
)
def test_what_simai_has_no_word_for_is_refused(words, said):
    code, _, message = call(SCALED, "--pricing", "simai", *words)
    assert code != 0
    assert said in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--simai-overlap", "tp=1"], "--simai-overlap needs --pricing simai"),
        (["--pricing", "simai", "--report", "endtoend"], "--report needs --out"),
        (["--pricing", "simai", "--simai-overlap", "tp=2"], "share from 0 to 1"),
        (["--pricing", "astra"], "traincast"),
    ],
)
def test_wrong_usage(words, said):
    code, out, _ = call(SCALED, *words)
    assert code == 2
    assert said in out


def test_other_formats_are_refused():
    for files in (["neusight_gpt2_large_dp.tsv"], ["aicb_scaled_512gpu.txt", "aicb_gpt_405b_1024gpu.txt"]):
        code, _, message = call(*(EXAMPLES / file for file in files), "--pricing", "simai")
        assert code == 1
        assert "SimAI's sum is that of one AICB/SimAI workload" in message


def test_the_sum_and_the_step_are_written_in_simais_layout(tmp_path):
    assert call(SCALED, "--pricing", "simai", "--cluster", "h100", "--out", tmp_path / "simai", "--quiet")[0] == 0
    assert call(SCALED, "--cluster", "h100", "--out", tmp_path / "ours", "--report", "endtoend", "--quiet")[0] == 0
    own, ours = ((tmp_path / name / "EndToEnd.csv").read_text().splitlines() for name in ("simai", "ours"))
    assert own[1].endswith(" 2119203")
    assert own[0] == ours[0]
    assert own[2].replace("Analytical_test", "traincast") == ours[2]
    code, _, said = call(SCALED, "--cluster", "h100", "--out", tmp_path / "ours", "--report", "nothing")
    assert code == 2 and "endtoend" in said
