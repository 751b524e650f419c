"""The fuzzer notices what it is for: each planted fault gets its name, sound inputs none; cases repeat."""

import sys
import time
from pathlib import Path

import click
import pytest

from fuzz import Maker, Tally
from fuzzing import judge as judging
from fuzzing.arguments import COMMANDS, FORMS, options_of
from fuzzing.case import Case
from fuzzing.judge import Verdict, judge
from fuzzing.pool import Limits, run_cases
from fuzzing.seeds import SEEDS
from fuzzing.values import LONG
from traincast.errors import TraincastError

RESULT = '{"schema": "traincast.result/1", "iteration_time_s": %s, "ranks": [], "breakdown_s": {"compute": %s}}\n'


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _printing(text):
    return lambda _: sys.stdout.write(text)


def _refusing(*lines):
    def command(_):
        for line in lines:
            click.echo(line, err=True)
        sys.exit(1)

    return command


def _raising(error):
    def command(_):
        raise error

    return command


def _leaving(_):
    Path(".traincast-left").mkdir()
    click.echo("done")


def _cut(_):
    Path("out").mkdir()
    Path("out/result.json").write_text('{"schema": ')
    click.echo("done")


def _announced(_):
    click.echo("simulating about 5,000,000 operations of 16 ranks: about 50 s and 3 GiB", err=True)
    _busy(_)


def _busy(_):
    while True:
        pass


PLANTED = {
    "done": ((), _printing("Step 1 s\n")),
    "refused": ((), _refusing("error: x is -1; it must be positive")),
    "exception": ((), _raising(KeyError("x"))),
    "memory": ((), _refusing("error: not enough memory for this")),
    "timeout": ((), _busy),
    "announced": ((), _announced),
    "messages": ((), _refusing()),
    "messages twice": ((), _refusing("error: a", "error: b")),
    "exit code": ((), lambda _: sys.exit(120)),
    "control character": ((), _printing("a \x1b[31mred\x1b[0m name\n")),
    "long value": ((), _refusing(f"error: {LONG} is unknown")),
    "not finite": ((), _printing("Step inf s\n")),
    "bad JSON": (("--json",), _printing('{"schema": "x"')),
    "bad JSON of NaN": (("--json",), _printing('{"schema": "x", "y": NaN}')),
    "step": (("--json",), _printing(RESULT % (0.0, 0.0))),
    "breakdown": (("--json",), _printing(RESULT % (1.0, 0.5))),
    "leftover": ((), _leaving),
    "bad output": ((), _cut),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_each_planted_fault_is_named(tmp_path, monkeypatch, planted):
    more, command = PLANTED[planted]
    monkeypatch.setattr(judging, "main", command)
    verdict = judge(Case("options", 0, {}, ("simulate", *more)), tmp_path, 0.2)
    assert planted.startswith(verdict.outcome)
    assert verdict.failed == (planted not in ("done", "refused", "announced"))


def test_words_of_the_input_may_come_back(tmp_path, monkeypatch):
    case = Case("aicb", 0, {"w.txt": b"nan -1 5 NONE 0"}, ("simulate", "w.txt"))
    monkeypatch.setattr(judging, "main", _printing("slowest row nan\n"))
    assert judge(case, tmp_path, 1.0).outcome == "done"
    monkeypatch.setattr(judging, "main", _printing("Step nan s\n"))
    assert judge(case, tmp_path, 1.0).outcome == "not finite"


def test_an_error_of_ours_is_an_exception_where_it_escapes(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "main", _raising(TraincastError("x")))
    verdict = judge(Case("options", 0, {}, ("simulate",)), tmp_path, 1.0)
    assert verdict.outcome == "exception"
    assert "TraincastError" in verdict.signature


def test_every_command_gets_options_of_every_value():
    assert {command for seed in SEEDS["options"]() for command, *_ in seed.commands} == set(COMMANDS)


@pytest.mark.slow
def test_cases_repeat_and_differ_by_number_and_seed(monkeypatch):
    make, again, other = Maker(1), Maker(1), Maker(2)
    now_s = time.time()
    for kind in SEEDS:
        first = [make(kind, number) for number in range(20)]
        with monkeypatch.context() as later:
            later.setattr(time, "time", lambda: now_s + 3600)
            assert first == [again(kind, number) for number in range(20)]
        assert len({str(make(kind, number)) for number in range(20)}) > 15
        assert [make(kind, number) for number in range(20)] != [other(kind, number) for number in range(20)]


def test_a_case_that_ends_its_worker_ends_no_other(monkeypatch):
    def make(kind, number):
        return Case(kind, number, {}, ("simulate", str(number)))

    def command(arguments):
        if arguments[1] == "1":
            import os

            os._exit(7)
        click.echo("done")

    monkeypatch.setattr(judging, "main", command)
    numbers = [("options", number) for number in range(4)]
    found = dict(run_cases(numbers, make, Limits(5.0, 1 << 32), 2, time.monotonic() + 60))
    assert {number: verdict.outcome for (_, number), verdict in found.items()} == {
        **dict.fromkeys((0, 2, 3), "done"),
        1: "killed",
    }


def test_the_shortest_case_of_a_failure_is_kept(tmp_path):
    make = Maker(1)
    tally = Tally(make)
    verdict = Verdict("exception", "exception: KeyError at a.py:1 f", "said", 0.1)
    for number in range(10):
        tally.add("aicb", number, verdict)
    ((case, _),) = tally.failures.values()
    assert case.size == min(make("aicb", number).size for number in range(10))
    tally.keep(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert (kept / "w.txt").read_bytes() == case.files["w.txt"]
    assert (kept / "command.sh").read_text().startswith("traincast ")


def test_the_forms_of_values_are_those_of_options():
    assert set(FORMS) <= {option.metavar for command in COMMANDS for option in options_of(command)}
