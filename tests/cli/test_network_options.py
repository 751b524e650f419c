"""Flags about shared links and overlap."""

import json

import pytest

from support import row, write_aicb

MS = 1_000_000


@pytest.fixture
def file(tmp_path):
    """Weight gradients that are reduced, between nodes, beside what follows them."""
    layer = row("attention_layer", MS, MS, (MS, "ALLREDUCE_DP", 1 << 32))
    return write_aicb(tmp_path / "w.txt", [row("embedding_layer"), *[layer] * 4], ga=1, gpus=16)


@pytest.fixture
def step(call, file):
    def run(*words):
        code, out, err = call("simulate", file, "--cluster", "h100", "--json", *words)
        assert (code, err) == (0, "")
        result = json.loads(out)
        return result["iteration_time_s"], {note["code"] for note in result["assumptions"] + result["warnings"]}

    return run


def test_a_number_alone_is_for_all_classes_and_a_named_one_goes_before_it(step):
    default, codes = step()
    off, codes_off = step("--overlap-slowdown", "0")
    assert "overlap-slowdown" in codes
    assert "overlap-slowdown" not in codes_off
    assert off < default
    only, _ = step("--overlap-slowdown", "0", "--overlap-slowdown", "communication=0.13")
    named, _ = step("--overlap-slowdown", "compute=0")
    assert only == named
    assert off < only <= default
    assert step("--overlap-slowdown", "0.5")[0] > default
    assert step("--overlap-slowdown", "0,communication=0.13") == (only, codes)
    both = step("--overlap-slowdown", "compute=0.2", "--overlap-slowdown", "communication=0.3")
    assert step("--overlap-slowdown", "compute=0.2,communication=0.3") == both


def test_a_class_without_an_operation_is_not_taken_in_silence(step):
    assert "overlap-slowdown-unused" in step("--overlap-slowdown", "small=5")[1]
    assert "overlap-slowdown-unused" not in step("--overlap-slowdown", "compute=5")[1]
    # All classes are given, some of which a step must lack.
    assert "overlap-slowdown-unused" not in step("--overlap-slowdown", "5")[1]


def test_network_and_seeds(step):
    assert step("--network", "flow") == step("--network", "auto") == step()
    assert step("--network", "analytical")[0] == step()[0], "one group alone shares nothing"
    assert "network-seeds-unused" in step("--network-seeds", "3")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--overlap-slowdown", "memory=fast"], "is not a class and a slowdown"),
        (["--overlap-slowdown", "gpu=0.1"], "unknown class 'gpu'"),
        (["--overlap-slowdown", "memory=0.1,small=x"], "'small=x' is not a class and a slowdown"),
        (["--overlap-slowdown", "memory=0.1,memory=0.2"], "twice"),
        (["--overlap-slowdown", "-1"], "is -1; it must be a number from 0 to 1000"),
        (["--overlap-slowdown", "0.1", "--overlap-slowdown", "0.2"], "twice"),
        (["--network", "packets"], "analytical"),
        (["--network-seeds", "0"], "network-seeds"),
        (["--pricing", "simai", "--overlap-slowdown", "0.1"], "--overlap-slowdown has no meaning for SimAI"),
        (["--pricing", "simai", "--network", "flow"], "--network has no meaning for SimAI"),
    ],
)
def test_wrong_values_are_refused(call, file, words, message):
    code, out, err = call("simulate", file, *words)
    assert code in (1, 2)
    assert out == ""
    assert message in err
