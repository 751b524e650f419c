"""Keywords of Python are the words of the command line."""

import inspect
from pathlib import Path

import click
import pytest

import traincast
from traincast import api
from traincast.api.planning import PLAN_WORDS
from traincast.cli import compare, plan, predict, simulate
from traincast.errors import ConfigError, UnknownNameError
from traincast.job.draft import Draft
from traincast.job.job import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.words import JOB_WORDS, RUN_WORDS, SIMULATE_WORDS, STEP_WORDS, sorted_out

OF_THE_TERMINAL = {
    "out",
    "report",
    "json",
    "analysis",
    "verbose",
    "quiet",
    "plain",
    "strict",
    "pricing",
    "simai_overlap",
    "html",
    "ranks",
    "from",
}
"""What to write and print; what `simai` and `explore` do; ``start``, as Python has a word of that name."""
OF_FUNCTIONS = {"cluster", "like", "allow_oom"}
FIELDS = {"gpus": 8, "tp": 2, "global_batch": 16, "seq_length": 8192}
FILE = Path(__file__).parents[2] / "examples" / "aicb_scaled_512gpu.txt"
JOB = {"model": "llama3-8b", "cluster": "h100", **FIELDS}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (predict.command, {*STEP_WORDS, *JOB_WORDS}),
        (simulate.command, {*SIMULATE_WORDS}),
        (plan.command, {*PLAN_WORDS, *JOB_WORDS}),
        (compare.command, {*RUN_WORDS}),
    ],
    ids=["predict", "simulate", "plan", "compare"],
)
def test_every_flag_is_a_keyword(command, words):
    flags = [each for each in command.params if isinstance(each, click.Option)]
    named = {name.lstrip("-").replace("-", "_") for flag in flags for name in flag.opts}
    assert named - words - OF_FUNCTIONS <= OF_THE_TERMINAL
    # Completion shows each flag under its first name, or that of its field.
    known = inspect.signature(getattr(traincast, command.name)).parameters
    for flag in flags:
        shown = {flag.name, *(name.lstrip("-").replace("-", "_") for name in flag.opts)}
        assert shown & {*known, *OF_THE_TERMINAL, "stack"}, flag.name


def test_a_job_of_keywords_is_the_job_of_its_description():
    described = Draft(model="llama3-8b", cluster="h100", fields=FIELDS)
    by_words = traincast.predict(**{**JOB, "seq_length": "8k", "micro_batch_size": None})
    assert by_words.iteration_time_s == traincast.predict(described).iteration_time_s
    assert by_words.run == traincast.predict(described).run


def test_keywords_win_over_a_file_a_result_and_a_request(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(
        '[model]\nname = "llama3-8b"\n[parallel]\ntp = 2\n[batch]\nglobal_batch = 16\nseq_length = 8192\n'
        '[cluster]\nname = "h100"\ngpus = 8\n'
    )
    first = traincast.predict(file)
    assert first.parallel["tp"] == 2
    wanted = traincast.predict(**{**JOB, "tp": 4})
    request = Draft(model="llama3-8b", fields=FIELDS).request()
    for job in (file, first, request):
        again = traincast.predict(job, "h100", tensor_model_parallel_size=4)
        assert again.parallel == wanted.parallel
        assert again.iteration_time_s == wanted.iteration_time_s
    assert isinstance(request, JobRequest)
    with pytest.raises(ConfigError, match="tp: cannot be said of a Job"):
        traincast.predict(resolve_job(request, traincast.clusters(["h100"])[0]), tp=4)


def test_pasted_flags_are_a_job():
    pasted = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --global-batch-size 8 --bf16"
    result = traincast.predict(pasted, "h100", like="megatron", gpus=8, tp=2, micro_batch=1)
    assert (result.parallel["world_size"], result.parallel["tp"]) == (8, 2)
    with pytest.raises(ConfigError, match="like: is of pasted flags"):
        traincast.predict(like="megatron")


def test_texts_are_read_as_flags_read_them():
    found = traincast.simulate(FILE, cluster="h100", busbw={"tp": "300GB/s"}, pp_comm="1MiB", slow={0: 1.5})
    said = {"busbw_bytes_per_s": {"tp": 300e9}, "pp_message_bytes": 2**20, "compute_slowdown": {0: 1.5}}
    assert found.iteration_time_s == traincast.simulate(FILE, cluster="h100", **said).iteration_time_s


def test_a_result_of_files_is_simulated_again_with_other_words():
    slow = traincast.simulate(FILE, cluster="h100", slow={0: 2.0})
    plain = traincast.simulate(FILE, cluster="h100")
    assert slow.iteration_time_s > plain.iteration_time_s
    assert traincast.simulate(slow).iteration_time_s == slow.iteration_time_s
    assert traincast.simulate(slow, slow={}).iteration_time_s == plain.iteration_time_s


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tpp": 2}, "unknown option 'tpp'; .*did you mean tp"),
        ({"global_bach": 2}, "unknown option 'global_bach'; .*did you mean global_batch"),
        ({"tp": "two"}, "tp: is 'two'; it must be a whole number"),
        ({"tp": 2, "tensor_model_parallel_size": 2}, "tensor_model_parallel_size: is the same as tp"),
        ({"gpus": 0}, "gpus: .*0"),
        ({"zero": 7}, "zero"),
        ({"recompute_modules": "core_attn,mpl"}, "did you mean mlp"),
        ({"network": "flwo"}, "network: is 'flwo'; .*did you mean flow"),
    ],
)
def test_wrong_words_are_one_message(words, said):
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        traincast.predict(**{**JOB, **words})


def test_sizes_and_terms_are_read_from_texts():
    by_text = traincast.collective("all_reduce", "1KiB..1MiB", gpus=16, cluster="h100")
    assert by_text == traincast.collective("all_reduce", (2**10, 2**20), gpus=16, cluster="h100")
    with pytest.raises(ConfigError, match=r"unknown option 'gpu_powr'; .*did you mean gpu_power"):
        traincast.compare("examples/megatron_pp4_tp2", "examples/megatron_pp4_tp2", gpu_powr=700)


def test_options_are_given_once():
    with pytest.raises(ConfigError, match=r"give options or keywords, not both \(jitter\)"):
        traincast.predict(options=traincast.StepOptions(), jitter=0.1, **JOB)
    with pytest.raises(ConfigError, match=r"not both \(layout|not both \(tp\)"):
        traincast.simulate(FILE, traincast.SimulateOptions(), tp=2)


def test_keywords_fall_to_the_first_kind_that_knows_them():
    assert sorted_out({"slow": {}, "tp": 2}, STEP_WORDS, JOB_WORDS) == ({"compute_slowdown": {}}, {"tp": 2})
    assert api.predict is traincast.predict


def test_a_plan_takes_the_words_of_jobs_and_of_plans():
    said = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "cluster": "h100", "top": 1, "space": "default"}
    found = traincast.plan(**said, max_tp=2, cp=1)
    again = traincast.plan(Draft(model="llama3-8b"), most={"tp": 2}, cp=1, **{**said, "model": None})
    assert all(each.layout.tp <= 2 for each in found.best)
    assert [each.layout.text for each in found.best] == [each.layout.text for each in again.best]
    with pytest.raises(ConfigError, match=r"unknown option 'spase'; .*did you mean space"):
        traincast.plan(**said, spase="full")
    with pytest.raises(ConfigError, match="job: is decided"):
        traincast.plan(resolve_job(Draft(model="llama3-8b", fields=FIELDS).request(), traincast.clusters(["h100"])[0]))
