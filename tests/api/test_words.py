"""Keywords of Python are the words of the command line."""

import ast
import inspect
import re
from itertools import chain
from pathlib import Path

import click
import pytest

import traincast
from traincast import api
from traincast.api.estimates import SIZE_ALIASES
from traincast.api.planning import PLAN_WORDS
from traincast.cli.main import cli, main
from traincast.errors import ConfigError, InfeasibleError, UnknownNameError
from traincast.job.draft import Draft
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.words import JOB_WORDS, RUN_WORDS, SIMULATE_WORDS, STEP_WORDS, sorted_out
from traincast.sweeps.words import SWEEP_WORDS

OF_THE_TERMINAL = {"apply", "json", "analysis", "verbose", "quiet", "plain", "html", "ranks", "out", "report"}
"""What to print and write: a result has `save_result` and `explore`, a calibration its `profile`."""
ELSEWHERE = {
    "simulate": {"pricing", "simai_overlap"},
    "check": {"between", "junit", "format", "form"},
    "plan": {"from", "like", "days", "budget", "rank-by", "rank_by"},
    "measure": {"script"},
    "validate": {"ranking", "leave_out"},
    "inspect": {"all"},
    "models": {"seq_length"},
    "convert": {"option", "model"},
    "operator": {"option"},
    "watch": {"on_alarm"},
}
"""Flags that are functions of their own (`simai`, `measuring_script`, `rank`, `check_change`), or of what is printed;
``start``, as Python has a word ``from``; options of writers and families are keywords themselves, or ``options``.
`plans` takes no pasted job, and alone is asked what days and money buy.
"""
FIELDS = {"gpus": 8, "tp": 2, "global_batch": 16, "seq_length": 8192}
FILE = Path(__file__).parents[2] / "examples" / "aicb_scaled_512gpu.txt"
JOB = {"model": "llama3-8b", "cluster": "h100", **FIELDS}


COMMANDS = (
    *("inspect", "simulate", "predict", "plan", "sweep", "compare", "convert", "measure", "calibrate"),
    *("validate", "collective", "operator", "models", "clusters", "recipes", "check", "watch"),
)
WORDS = {
    "simulate": {*SIMULATE_WORDS},
    "predict": {*STEP_WORDS, *JOB_WORDS},
    "plan": {*PLAN_WORDS, *JOB_WORDS},
    "plans": {*PLAN_WORDS, *JOB_WORDS},
    "compare": {*RUN_WORDS},
    "check": {*JOB_WORDS},
    "convert": {*SIMULATE_WORDS},
    "measure": {*JOB_WORDS},
    "sweep": {*SWEEP_WORDS, *JOB_WORDS},
    "operator": {"dtype", "direction", "causal", "window", *SIZE_ALIASES, *chain(*traincast.operator_sizes().values())},
}
"""Further keywords of functions, under all of their names."""


def flags_of(name):
    """Return the names of every flag of a command, as keywords, the field that it sets among them."""
    command = cli.get_command(cli.make_context("traincast", [], resilient_parsing=True), name)
    for flag in command.params:
        if isinstance(flag, click.Option):
            yield flag.name, {each.lstrip("-").replace("-", "_") for each in flag.opts}


@pytest.mark.parametrize("name", [*COMMANDS, "plans"])
def test_every_flag_is_a_keyword(name):
    known = {*inspect.signature(getattr(traincast, name)).parameters}
    command = "plan" if name == "plans" else name
    apart = OF_THE_TERMINAL - ({"out"} & known) | ELSEWHERE.get(command, set())
    if name == "plans":
        apart |= {"strict"}
    for field, names in flags_of(command):
        assert names - known - WORDS.get(name, set()) <= apart, field
        # Completion shows each flag under its first name, or that of its field.
        assert name == "operator" or ({field, *names}) & {*known, *apart}, field


def test_every_command_has_its_function():
    others = {"report": "save_result", "serve": None, "init": None, "schema": None, "completion": None, "man": None}
    assert {*COMMANDS, *others} == {*cli.list_commands(None)}
    assert all(hasattr(traincast, name) for name in COMMANDS)


def test_short_words_are_taken():
    sizes = {"batch": 1, "keys": 1024, "heads": 8, "kv_heads": 8, "v_dim": 64}
    short = traincast.operator("attention", "h100", seq=1024, head_dim=64, **sizes)
    assert short == traincast.operator("attention", "h100", queries=1024, qk_dim=64, **sizes)
    with pytest.raises(ConfigError, match="seq: is the same as queries"):
        traincast.operator("attention", "h100", queries=1024, seq=1024, qk_dim=64, **sizes)


def test_a_calibration_takes_what_is_fitted_as_the_command_does():
    kernels = traincast.calibrate("examples/kernels_a100.csv", gpu="a100-pcie-40")
    assert kernels.profile() == traincast.calibrate_operators("examples/kernels_a100.csv", "a100-pcie-40").profile()
    with pytest.raises(ConfigError, match="gpu: applies to measured operators"):
        traincast.calibrate("examples/kernels_a100.csv", "a100", gpu="a100-pcie-40")
    with pytest.raises(ConfigError, match="cluster: is missing"):
        traincast.calibrate("examples/kernels_a100.csv")


def test_a_conversion_takes_the_words_of_a_simulation(tmp_path):
    by_words, by_options = tmp_path / "words.txt", tmp_path / "options.txt"
    traincast.convert(FILE, by_words, "busbw", cluster="h100", tp=4)
    layout = traincast.LayoutOptions(tp=4)
    traincast.convert(FILE, by_options, "busbw", options=traincast.SimulateOptions(cluster="h100", layout=layout))
    assert by_words.read_bytes() == by_options.read_bytes()
    with pytest.raises(ConfigError, match=r"unknown option 'tpp'; .*did you mean tp"):
        traincast.convert(FILE, tmp_path / "x", "busbw", tpp=4)


def test_unknown_pasted_flags_are_refused_where_asked():
    pasted = (
        "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --global-batch-size 8 --nope 3"
    )
    assert traincast.predict(pasted, "h100", like="megatron", gpus=8).warnings
    with pytest.raises(ConfigError, match="nope"):
        traincast.predict(pasted, "h100", like="megatron", strict=True, gpus=8)


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
    assert first.parallel.tp == 2
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
    assert (result.parallel.world_size, result.parallel.tp) == (8, 2)
    with pytest.raises(ConfigError, match="like: applies to pasted flags"):
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


@pytest.mark.slow
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


@pytest.mark.parametrize("lacking", ["model", "gpus", "seq_length", "global_batch"])
def test_what_is_missing_is_said_in_the_words_of_who_asks(lacking, capsys):
    job = {"model": "llama3-8b", "gpus": 8, "seq_length": 1024, "global_batch": 8}
    words = [word for name, value in job.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    at = words.index(f"--{lacking.replace('_', '-')}")
    with pytest.raises(ConfigError, match=rf"^{lacking}: is missing; give {lacking}=\.\.\.") as wrong:
        traincast.predict(**{name: value for name, value in job.items() if name != lacking})
    assert "--" not in str(wrong.value)
    with pytest.raises(SystemExit):
        main(["predict", *words[:at], *words[at + 2 :]])
    said = capsys.readouterr().err
    assert f"{lacking}: is missing; give {words[at]}, or" in said
    assert "=..." not in said


@pytest.mark.slow
def test_what_is_refused_is_said_in_the_words_of_who_asks(capsys):
    job = {"model": "llama3-70b", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq_length": 8192}
    words = [word for name, value in job.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    for ask, command, keyword, flag in (
        (traincast.predict, "predict", "allow_oom=True", "--allow-oom"),
        (traincast.plan, "plan", "offload_optimizer=1", "--offload-optimizer"),
    ):
        with pytest.raises(InfeasibleError, match=keyword) as wrong:
            ask(**job)
        assert "--" not in str(wrong.value)
        with pytest.raises(SystemExit):
            main([command, *words])
        said = capsys.readouterr().err
        assert flag in said
        assert not re.search(r"\w=", said)


def test_a_misspelt_model_is_told_before_what_is_missing(capsys):
    with pytest.raises(UnknownNameError, match="lama3-8b"):
        traincast.predict(model="lama3-8b")
    for command in ("predict", "plan"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--model", "lama3-8b"])
        assert ended.value.code == 1
        assert "unknown model 'lama3-8b'; " in capsys.readouterr().err


@pytest.mark.slow
def test_no_error_of_the_library_speaks_of_flags():
    flag = re.compile(r"(?<![\w-])--[a-z]")
    # Those speak of what only the command line does, or of a script that it writes.
    apart = {"cli", "dialects", "measuring"}
    files = {"report/files.py", "report/sides.py", "formats/echo/read.py"}
    root = Path(traincast.__file__).parent
    checked = 0
    for path in root.rglob("*.py"):
        place = path.relative_to(root)
        if place.parts[0] in apart or place.as_posix() in files:
            continue
        for found in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)):
            words = {word.value for call in ast.walk(found) if isinstance(call, ast.keyword) for word in [call.value]
                     if isinstance(word, ast.Constant)}  # fmt: skip
            texts = [each.value for each in ast.walk(found) if isinstance(each, ast.Constant)]
            said = [text for text in texts if isinstance(text, str) and text not in words and flag.search(text)]
            assert not said or said == ["--"], (path, found.lineno)
            checked += 1
    assert checked > 500
