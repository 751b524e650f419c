"""How commands print: widths, colour, pipes, plain words for screen readers, in full, and not at all."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from traincast import api
from traincast.report.terminal.comparison import print_comparison
from traincast.report.terminal.console import ReportConsole, console_for
from traincast.report.terminal.plan import print_plan
from traincast.report.terminal.step import print_result

JOB = "examples/llama3_70b_512gpu.toml"
FILE = "examples/megatron_pp4_tp2"
WORDS = {
    "predict": (JOB, "--goodput", "--tokens", "15T", "--gpu-hour-price", "2", "--no-suggest"),
    "simulate": (FILE, "--no-suggest"),
    "inspect": ("examples/aicb_gpt_405b_1024gpu.txt",),
    "compare": (FILE, FILE),
    "plan": ("--model", "llama3-8b", "--gpus", "8", "--cluster", "h100", "--global-batch", "8", "--tp", "8"),
    "collective": ("all_reduce", "--gpus", "64", "--cluster", "h100"),
    "operator": ("gemm", "--m", "8192", "--n", "8192", "--k", "8192"),
    "clusters": (),
    "models": (),
}
WIDTHS = (60, 66, 80, 100, 120, 160, 200)
COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|38|48)[0-9;]*m")


@pytest.fixture(scope="module")
def printers():
    """Return what prints a forecast, a replay, a comparison and a plan on a console."""
    options = api.StepOptions(tokens=15e12, gpu_hour_price=2.0, failures="default", suggest=True)
    forecast, replay = api.predict(JOB, options=options), api.simulate(FILE)
    both = api.compare(forecast, forecast, tokens=1e12)
    words = {"gpus": 8, "global_batch": 8, "cp": 1}
    plan = api.plan(api.Draft(model="llama3-8b", fields=words), "h100", top=5, tokens=1e12)
    return {
        "forecast": lambda console: print_result(console, forecast, analysed=True),
        "replay": lambda console: print_result(console, replay, analysed=True, verbose=True),
        "comparison": lambda console: print_comparison(console, both),
        "plan": lambda console: print_plan(console, plan),
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", ["forecast", "replay", "comparison", "plan"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(printers, what, width):
    stream = io.StringIO()
    printers[what](ReportConsole(file=stream, width=width, force_terminal=False, _environ={}))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in stream.getvalue()
    widest = io.StringIO()
    printers[what](ReportConsole(file=widest, width=400, force_terminal=False, _environ={}))
    known = set(re.findall(r"[\d.,]*\d", widest.getvalue()))
    assert set(re.findall(r"[\d.,]*\d", stream.getvalue())) <= known


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_plain_words_have_no_columns_bars_or_colour(command, call):
    code, out, _ = call(command, *WORDS[command], "--plain")
    assert code == 0
    assert out.isascii() or "\u2588" not in out
    assert not re.search(r"[\u2500-\u259f\x1b]", out)
    lines = out.splitlines()
    # No blanks line anything up, and every line that is not a heading says what it is of.
    assert not [line for line in lines if re.search(r"\S {2,}\S", line)]
    assert not [line for line in lines if line.startswith(" ")]
    assert any(re.match(r"[^:]+: \S", line) for line in lines)


@pytest.mark.slow
def test_plain_words_say_every_row_of_a_table(call):
    out = call("predict", *WORDS["predict"], "--plain")[1]
    assert re.search(r"^compute: [\d.]+ s, share [\d.]+ %$", out, re.MULTILINE)
    assert re.search(r"^stage 0-2: rank 0-256, compute [\d.]+-[\d.]+, ", out, re.MULTILINE)
    assert "Step against memory" not in call("plan", *WORDS["plan"], "--plain")[1]


def test_plain_words_can_be_asked_for_once(call, monkeypatch):
    said = call("clusters", "--plain")[1]
    monkeypatch.setenv("TRAINCAST_PLAIN", "1")
    assert call("clusters")[1] == said


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_quiet_prints_nothing_and_verbose_how_long_it_took(command, call):
    found = call(command, *WORDS[command], "--quiet")
    if command == "plan":
        # What a script asks for is told in a line.
        assert re.fullmatch(r"TP8 [^\n]+; step [\d.]+ m?s; memory [\d.]+ GiB of [\d.]+ GiB usable\n", found[1])
        found = (found[0], "", found[2])
    assert found == (0, "", "")
    code, out, err = call(command, *WORDS[command], "--verbose")
    assert code == 0
    assert out
    assert "--verbose shows" not in out
    assert re.search(r"^took [\d.]+ s", err, re.MULTILINE)


def test_a_document_is_printed_quietly_too(call):
    assert call("clusters", "h100", "--json", "--quiet")[1].startswith("{")


def printed_on_a_terminal(*words, **environment):
    """Return what a command prints where standard output is a terminal."""
    leader, follower = pty.openpty()
    own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "traincast.cli", *words],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**own, "TERM": "xterm-256color", **environment},
    ) as process:
        os.close(follower)
        found = b""
        try:
            while part := os.read(leader, 65536):
                found += part
        except OSError:  # the other end is closed
            pass
        os.close(leader)
    assert process.returncode == 0
    return found.decode()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_colour_is_for_terminals_alone_and_not_against_no_color(call):
    words = ("simulate", FILE, "--no-suggest", "--cluster", "h100", "--what-if", "tp_comm*1")
    assert COLOUR.search(printed_on_a_terminal(*words))
    assert not COLOUR.search(printed_on_a_terminal(*words, NO_COLOR="1"))
    assert "\x1b" not in printed_on_a_terminal(*words, "--plain")
    assert "\x1b" not in call(*words)[1]


def test_a_console_of_its_own_is_as_asked():
    console = console_for(plain=True)
    assert (console.plain, console.verbose, console.is_terminal) == (True, False, console.is_terminal)
    assert console.color_system is None
