"""What a shell completes, and the manual page."""

import os
import shutil
import subprocess
import sys

import pytest

from traincast.cli.completion import COLLECTIVES, FURTHER_REPORTS, WRITTEN_FORMATS
from traincast.cli.main import cli
from traincast.formats.writer import WRITERS
from traincast.hardware.clusters import cluster_names
from traincast.job.frameworks import framework_names
from traincast.model.load import model_names
from traincast.report.files import REPORTS
from traincast.schedules.plan import SCHEDULES
from traincast.workload.words import operation_named

ASK = """
import sys
from traincast.cli.main import main
try:
    main()
finally:
    print("numpy" in sys.modules, file=sys.stderr)
"""


def ask(words, shell="bash"):
    """Return what is offered for the last of the words, and whether numpy was loaded for it."""
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = {
        "COMP_WORDS": " ".join(words) if shell == "bash" else " ".join(words[:-1]),
        "COMP_CWORD": str(len(words) - 1) if shell != "fish" else words[-1],
        "_TRAINCAST_COMPLETE": f"{shell}_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=known | asked, capture_output=True, encoding="utf-8", check=True
    )
    offered = [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]
    return offered if shell == "bash" else done.stdout, done.stderr.strip() == "True"


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
    offered, loaded = ask(words)
    assert not loaded
    if words[-2] in ("--cluster",):
        # GPUs, too: each is a cluster of its datasheet.
        assert offered[: len(wanted)] == wanted
        assert "H100-SXM-80GB" in offered
    else:
        assert offered == wanted


def test_names_that_are_listed_by_hand_are_those_that_are_registered():
    assert [*WRITTEN_FORMATS] == WRITERS.names()
    assert {*FURTHER_REPORTS} == {each.name for each in REPORTS.entries() if each.on_request}
    assert len({operation_named(name) for name in COLLECTIVES}) == len(COLLECTIVES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_name_and_leaves_files_to_itself(tmp_path):
    program = tmp_path / "traincast"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m traincast.cli "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(traincast completion bash)"; compopt() { :; }; COMP_WORDS=(traincast models lla); COMP_CWORD=2; '
        '_traincast_completion traincast; echo "${COMPREPLY[@]}"'
    )
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [shutil.which("bash"), "-c", script], env=path, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.split() == [name for name in model_names() if name.startswith("lla")]


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
