"""Every number that the page gets is the one that the command line prints for the same job."""

import json
import random
import shlex

import pytest
from click.testing import CliRunner

from traincast.cli.main import cli

MODELS = ["llama3-8b", "llama3-70b", "llama2-7b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt3-13b", "deepseek-v3"]
CLUSTERS = ["h100", "h200", "b200", "a100", "gb200", "H100-SXM-80GB", "mi300x"]
ALWAYS = {
    "gpus": ["8", "16", "64", "128", "512"],
    "global_batch": ["64", "128", "512"],
    "seq_length": ["2k", "4096", "8k"],
}
SOMETIMES = {
    "tp": ["1", "2", "4", "8"],
    "pp": ["1", "2", "4"],
    "cp": ["1", "2"],
    "ep": ["1", "2", "8"],
    "micro_batch": ["1", "2"],
    "zero": ["0", "1", "2", "3"],
    "precision": ["bf16", "fp8", "BF16"],
    "recompute": ["none", "full", "selective"],
    "sequence_parallel": [True, False, "true", "no"],
    "overlap_grad_reduce": [True, False],
    "overlap_tp": ["yes", "false"],
    "schedule": ["1f1b", "gpipe", "zb_h1"],
    "framework": ["megatron-core-2026", "torchtitan-2025"],
    "tokens": ["1T", "300B"],
    "task": ["pretrain", "lora"],
    "optimizer": ["adam"],
    "allow_oom": [True],
    "gpus_used_per_node": ["auto", "all"],
    "busbw_bytes_per_s": ["tp=300GB/s"],
    "compute_slowdown": ["0=1.2"],
}


def state(number):
    """Return a random job, most of which can run."""
    draws = random.Random(number)  # noqa: S311
    job = {"model": draws.choice(MODELS), "cluster": draws.choice(CLUSTERS)}
    job |= {name: draws.choice(values) for name, values in ALWAYS.items()}
    job |= {name: draws.choice(values) for name, values in SOMETIMES.items() if draws.random() < 0.25}
    return job


def printed(command):
    """Return what the command line prints: the result, or the document of its error."""
    program, *words = shlex.split(command)
    assert program == "traincast"
    found = CliRunner().invoke(cli, [*words, "--no-suggest", "--json"], catch_exceptions=True)
    return json.loads(found.stdout) if found.exit_code == 0 else found.exception or found.exit_code


def check(server, numbers):
    ran = 0
    for number in numbers:
        job = state(number)
        found = server.post("forecast", job=job)
        if found.status != 200:
            error = found.json()["error"]
            assert error["kind"] in ("infeasible", "config", "unknown_name"), (job, error)
            from traincast.serve.answers.words import command_of

            told = printed(command_of(job))
            assert not isinstance(told, dict), (job, error)
            continue
        ran += 1
        answer = found.json()
        same = printed(answer["command"])
        assert isinstance(same, dict), (job, same)
        result = answer["result"]
        left_out = ("advice", "analysis", "suggestions", "run", "version")
        assert {name for name in same if result[name] != same[name] and name not in left_out} == set(), job
        for name, value in (("step", "iteration_time_s"), ("mfu", "mfu"), ("tflops", "tflops_per_gpu")):
            shown = answer["shown"][name]
            assert (shown and shown["value"]) == same[value], job
    return ran


def test_random_states_are_forecast_as_the_command_line_does(server):
    assert check(server, range(12)) >= 4


@pytest.mark.slow
def test_two_hundred_random_states_are_forecast_as_the_command_line_does(server):
    assert check(server, range(12, 212)) >= 60
