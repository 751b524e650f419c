"""What shells complete, asked as they ask and in each that is installed, and the manual page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.cli.completion import COLLECTIVES, FURTHER_REPORTS, WRITTEN_FORMATS
from traincast.cli.main import cli
from traincast.formats.writer import WRITERS
from traincast.hardware.clusters import cluster_names
from traincast.job.frameworks import framework_names
from traincast.model.load import model_names
from traincast.report.files import REPORTS
from traincast.schedules.schedule import SCHEDULES
from traincast.workload.words import operation_named

ASK = """
import sys
from traincast.cli.main import main
try:
    main()
finally:
    print("numpy" in sys.modules, file=sys.stderr)
"""


SHELLS = ("bash", "zsh", "fish")
MODELS = [name for name in model_names() if name.startswith("llama3-")]


def ask(words, shell="bash"):
    """Return the lines that a shell is answered for the last of the words, and whether numpy was loaded for it."""
    *before, word = words
    asked = {"COMP_WORDS": "\n".join(before), "COMP_WORD": word, "_TRAINCAST_COMPLETE": f"{shell}_complete"}
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=known | asked, capture_output=True, encoding="utf-8", check=True
    )
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()], done.stderr.strip() == "True"


def offered(words, shell="bash"):
    return [value for kind, value, _ in ask(words, shell)[0] if kind == "plain"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program called traincast, first in the path, which runs what is tested here; its folder is the home."""
    path = tmp_path / "bin" / "traincast"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m traincast.cli "$@"\n')
    path.chmod(0o755)
    (tmp_path / "here" / "examples").mkdir(parents=True)
    (tmp_path / "here" / "examples" / "job.toml").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return path


def run(*words, **more):
    return subprocess.run(words, encoding="utf-8", check=True, timeout=120, capture_output=True, **more).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["traincast", ""], list(cli.list_commands(None))),
        (["traincast", "pre"], ["predict"]),
        (["traincast", "predict", "--global-b"], ["--global-batch", "--global-batch-size"]),
        (["traincast", "predict", "--model", "llama3-"], [n for n in model_names() if n.startswith("llama3-")]),
        (["traincast", "predict", "--model", "LLAMA3-7"], ["llama3-70b"]),
        (["traincast", "plan", "--framework", ""], framework_names()),
        (["traincast", "simulate", "--cluster", "h10"], [n for n in cluster_names() if n.startswith("h10")]),
        (["traincast", "simulate", "--schedule", ""], SCHEDULES.names()),
        (["traincast", "convert", "--to", "ai"], ["aicb", "aicb-physical"]),
        (["traincast", "completion", ""], ["bash", "zsh", "fish"]),
        (["traincast", "report", "--report", "p"], ["picture", "picture-dark"]),
    ],
)
def test_commands_options_and_names_are_completed_without_numpy(words, wanted):
    answer, loaded = ask(words)
    assert not loaded
    found = [value for kind, value, _ in answer if kind == "plain"]
    if words[-2] in ("--cluster",):
        # GPUs, too: each is a cluster of its datasheet.
        assert found[: len(wanted)] == wanted
        assert "H100-SXM-80GB" in found
    else:
        assert found == wanted


@pytest.mark.slow
def test_a_value_after_an_equals_sign_is_completed():
    for shell, word, before in (("zsh", "--model=llama3-", ""), ("fish", "--model=llama3-", "--model=")):
        assert offered(["traincast", "predict", word], shell) == [before + name for name in MODELS]
    assert offered(["traincast", "predict", "--model", "=", "llama3-"]) == MODELS
    assert ask(["traincast", "predict", "--cluster=exa"], "fish")[0] == [("file", "--cluster=exa", "")]


def test_files_are_completed_where_no_name_begins_like_that():
    assert ask(["traincast", "predict", "--cluster", "exa"])[0] == [("file", "exa", "")]
    assert {kind for kind, *_ in ask(["traincast", "predict", "--cluster", "h"])[0]} == {"plain"}
    assert ask(["traincast", "simulate", "'ex"])[0] == [("file", "ex", "")]


def test_help_is_a_sentence_with_its_commas():
    (found,) = ask(["traincast", "pred"], "fish")[0]
    assert found == ("plain", "predict", "Forecast from a model, a parallel layout and a cluster")
    assert all("\t" not in each[2] and len(each) == 3 for each in ask(["traincast", "predict", "--"], "fish")[0])


def test_names_that_are_listed_by_hand_are_those_that_are_registered():
    assert [*WRITTEN_FORMATS] == WRITERS.names()
    assert {*FURTHER_REPORTS} == {each.name for each in REPORTS.entries() if each.on_request}
    assert len({operation_named(name) for name in COLLECTIVES}) == len(COLLECTIVES)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_printed(call, shell):
    code, out, err = call("completion", shell)
    assert (code, err) == (0, "")
    assert f"_TRAINCAST_COMPLETE={shell}_complete" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, encoding="utf-8", check=False).returncode == 0


def test_the_shell_is_that_of_the_user(call, monkeypatch):
    monkeypatch.setenv("SHELL", "/usr/local/bin/fish")
    assert "fish_complete" in call("completion")[1]
    monkeypatch.setenv("SHELL", "/bin/nushell")
    code, out, err = call("completion")
    assert (code, out) == (2, "")
    assert "bash, zsh, fish" in err


TYPED = {
    "traincast models lla": ("traincast models llama", [name for name in model_names() if name.startswith("lla")]),
    "traincast pre": ("traincast predict ", ["predict"]),
    "traincast predict --clus": ("traincast predict --cluster ", ["--cluster"]),
    "traincast predict --model llama3-7": ("traincast predict --model llama3-70b ", ["llama3-70b"]),
    "traincast predict --model LLAMA3-7": ("traincast predict --model llama3-70b ", ["llama3-70b"]),
    "traincast predict --model=llama3-7": ("traincast predict --model=llama3-70b ", ["llama3-70b"]),
    "traincast predict --model=llama3-": ("traincast predict --model=llama3-", MODELS),
    "traincast predict --cluster exa": ("traincast predict --cluster examples/", ["examples/"]),
    "traincast predict --cluster=exa": ("traincast predict --cluster=examples/", ["examples/"]),
    "traincast simulate examples/j": ("traincast simulate examples/job.toml ", ["examples/job.toml"]),
    "~/bin/traincast models llama3-7": ("~/bin/traincast models llama3-70b ", ["llama3-70b"]),
    "traincast plan --gpus ": ("traincast plan --gpus ", []),
}
"""What is typed, what stands there after the tab key, and what is offered."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(program, tmp_path):
    (tmp_path / "fish" / "completions").mkdir(parents=True)
    (tmp_path / "fish" / "completions" / "traincast.fish").write_text(run(program, "completion", "fish"))
    for typed, (_, wanted) in TYPED.items():
        found = run("fish", "-c", "complete -C $argv[1]", typed).splitlines()
        before = "--model=" if "--model=" in typed else "--cluster=" if "--cluster=" in typed else ""
        assert [line.split("\t")[0] for line in found] == [before + each for each in wanted], typed
    assert run("fish", "-c", "complete -C 'traincast pre'").split("\t")[1].startswith("Forecast from a model, a")


DRIVER = r"""
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner "source $1"
# The inner shell ends when it is through, and reading from it then fails.
while zpty -r inner line; do :; done
"""
INNER = r"""
autoload -Uz compinit && compinit -u -D
source traincast.zsh
complete() { BUFFER=$TYPED CURSOR=$#TYPED; zle complete-word; print -r -- "$BUFFER|" > found; exit }
zle -N complete; zle-line-init() { zle complete }; zle -N zle-line-init
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes(program, monkeypatch):
    Path("traincast.zsh").write_text(run(program, "completion", "zsh"))
    Path("inner.zsh").write_text(INNER)
    for typed, (wanted, _) in TYPED.items():
        monkeypatch.setenv("TYPED", typed)
        run("zsh", "-f", "-c", DRIVER, "zsh", "inner.zsh")
        assert Path("found").read_text() == f"{wanted}|\n", typed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.usefixtures("program")
def test_bash_completes_a_name_and_leaves_files_to_itself():
    script = (
        'eval "$(traincast completion bash)"; compopt() { echo "compopt $*"; }; COMP_WORDS=("$@" "$0"); COMP_CWORD=$#; '
        '_traincast_completion "$1" "$0"; echo "${COMPREPLY[@]}"'
    )

    def typed(*words):
        return run("bash", "-c", script, words[-1], *words[:-1]).split()

    assert typed("traincast", "models", "lla") == TYPED["traincast models lla"][1]
    assert typed("~/bin/traincast", "models", "llama3-7") == ["llama3-70b"]
    assert typed("traincast", "predict", "--model", "=", "llama3-") == MODELS
    assert typed("traincast", "predict", "--cluster", "exa") == ["compopt", "-o", "default"]


OUTSIDE = "~/bin/traincast models llama3-7"


def without_the_program(monkeypatch, program):
    rest = [each for each in os.environ["PATH"].split(os.pathsep) if each != str(program.parent)]
    monkeypatch.setenv("PATH", os.pathsep.join(each for each in rest if not Path(each, "traincast").exists()))


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_a_program_that_is_not_in_the_path(program, monkeypatch):
    Path("traincast.fish").write_text(run(program, "completion", "fish"))
    without_the_program(monkeypatch, program)
    # By itself fish looks for completions of what is in the path only.
    found = run("fish", "-c", "source traincast.fish; complete -C $argv[1]", OUTSIDE)
    assert found.split("\t")[0].strip() == "llama3-70b"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_a_program_that_is_not_in_the_path(program, monkeypatch):
    Path("traincast.zsh").write_text(run(program, "completion", "zsh"))
    Path("inner.zsh").write_text(INNER)
    without_the_program(monkeypatch, program)
    monkeypatch.setenv("TYPED", OUTSIDE)
    run("zsh", "-f", "-c", DRIVER, "zsh", "inner.zsh")
    assert Path("found").read_text() == "~/bin/traincast models llama3-70b |\n"


def test_the_manual_page_holds_every_command_and_option(call):
    code, out, err = call("man")
    assert out.replace("\n", "").isprintable()
    assert (code, err) == (0, "")
    context = cli.make_context("traincast", [], resilient_parsing=True)
    plain = out.replace("\\-", "-")
    for name in cli.list_commands(context):
        assert f"\n.SS traincast {name} " in plain
        for each in cli.get_command(context, name).params:
            assert all(option in plain for option in each.opts if option.startswith("--"))
    assert all(line[:1] != "'" for line in out.splitlines())
    if shutil.which("groff"):
        checked = subprocess.run(
            [shutil.which("groff"), "-man", "-ww", "-z", "-Tutf8"],
            input=out,
            encoding="utf-8",
            capture_output=True,
            check=False,
        )
        assert checked.stderr == ""
