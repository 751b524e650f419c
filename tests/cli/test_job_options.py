"""The options of a job, and the command that writes a commented one."""

import re
from collections import Counter

import click
import pytest
from click.testing import CliRunner

from traincast.cli.job_options import job_of, job_options
from traincast.cli.main import cli
from traincast.job.flags import JOB_FLAGS, LAYOUT_FLAGS
from traincast.job.job_file import TEMPLATE
from traincast.schedules.schedule import SCHEDULES


@click.command()
@job_options
def command(words, like, cluster, **values):
    draft = job_of(words, like, cluster, values)
    request = draft.request()
    click.echo(f"{draft.cluster} {request.model.name} {request.gpus} {request.tp} {request.sequence_parallel}")


def run(*words):
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_options_under_our_names_and_megatrons():
    ours = run("--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--seq-length", "64", "--global-batch", "8")
    theirs = run("--model", "llama3-8b", "--world-size", "8", "--tensor-model-parallel-size", "2", "--seq-length", "64",
                 "--global-batch-size", "8")  # fmt: skip
    assert ours.output == theirs.output == "None llama3-8b 8 2 None\n"


def test_options_win_over_a_file_and_over_pasted_flags(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(TEMPLATE)
    result = run(str(file), "--tp", "8", "--cluster", "h200", "--no-sequence-parallel")
    assert result.output == "h200 llama3-70b 256 8 False\n"
    pasted = run("--like", "megatron", "--gpus", "16", "--", "--num-layers", "4", "--hidden-size", "256",
                 "--num-attention-heads", "4", "--seq-length", "128", "--micro-batch-size", "2")  # fmt: skip
    assert pasted.output == "None megatron model 16 1 False\n"


def test_words_that_are_no_job_are_wrong_usage():
    assert run("a.toml", "b.toml").exit_code == 2
    assert run("--tp", "0").exit_code == 2
    assert run("--precision", "fp9").exit_code == 2
    assert run("--zero", "4").exit_code == 2
    assert run("--schedule", "none").exit_code == 2


def test_what_every_job_needs_is_wrong_usage_where_nothing_gives_it(tmp_path):
    words = {"model": "llama3-8b", "gpus": "8", "seq-length": "64", "global-batch": "8"}
    for absent in words:
        result = run(*(part for name, value in words.items() if name != absent for part in (f"--{name}", value)))
        assert result.exit_code == 2
        assert f"{absent.replace('-', '_')}: is missing; give --{absent}" in result.output
    file = tmp_path / "job.toml"
    file.write_text('[model]\nname = "llama3-8b"\n[batch]\nseq_length = 64\nglobal_batch = 8\n')
    assert run(str(file)).exit_code == 2
    assert run(str(file), "--gpus", "8").output == "None llama3-8b 8 None None\n"


def test_flags_have_one_owner():
    names = [name for flag in JOB_FLAGS for name in flag.flags]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["predict", "simulate"])
def test_help_lists_the_schedules_of_the_registry(name):
    (option,) = (each for each in cli.get_command(None, name).params if "--schedule" in each.opts)
    assert option.help == f"Pipeline schedule: {', '.join(SCHEDULES.names())}."


def test_init_writes_a_job_once(tmp_path):
    runner = CliRunner()
    file = tmp_path / "job.toml"
    assert runner.invoke(cli, ["init", str(file)]).exit_code == 0
    assert file.read_text() == TEMPLATE
    with pytest.raises(Exception, match="is there already; give --force"):
        runner.invoke(cli, ["init", str(file)], catch_exceptions=False)
    assert runner.invoke(cli, ["init", "--force", str(file)]).exit_code == 0
    assert runner.invoke(cli, ["init"]).output == TEMPLATE


SECTIONED = ("predict", "plan", "simulate", "measure")


def sections_of(text):
    """Return the lines of each section of a help text."""
    parts = re.split(r"^([A-Z][a-z -]+):$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("command", SECTIONED)
def test_help_has_every_option_once_in_the_section_of_its_subject(command, call):
    shown = sections_of(call(command, "--help")[1])
    assert max(len(re.findall(r"^  -", text, re.MULTILINE)) for text in shown.values()) <= 25
    assert list(shown)[-1] == "Output"
    names = [re.findall(r"^  (-\S+?)[ ,/\n]", text, re.MULTILINE) for text in shown.values()]
    context = cli.make_context("traincast", [], resilient_parsing=True)
    params = cli.get_command(context, command).params
    assert sum(map(len, names)) == sum(isinstance(each, click.Option) for each in params) + 1, "and --help"
    assert len({name for of in names for name in of}) == sum(map(len, names))
    flags = LAYOUT_FLAGS if command == "simulate" else JOB_FLAGS
    assert all(flag.flags[0] in shown[flag.section] for flag in flags)


def test_every_flag_of_a_job_has_a_subject():
    by_section = Counter(flag.section for flag in JOB_FLAGS)
    assert 5 <= len(by_section) <= 10
    assert min(by_section.values()) >= 4
