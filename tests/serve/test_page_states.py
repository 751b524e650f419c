"""Every number that stands in the page is the one that the command line prints for the same job.

The page is brought to a state by its own address, as a link does, and read as a person reads it; the report of the
command line is read as it is printed.
"""

import itertools
import re
import shlex

import pytest
from click.testing import CliRunner
from tests.serve.test_states import state

from planner_page import browsing, fragment_of, needs_browser, opener, serving, state_of
from traincast.cli.main import cli
from traincast.errors import TraincastError
from traincast.serve.answers.words import command_of

pytestmark = [*needs_browser, pytest.mark.slow]
STATES, MOST_REFUSED = 200, 50
WIDE = {"COLUMNS": "300"}
FIRST = {"model": "llama3-8b", "cluster": "h100", "gpus": "8", "seq_length": "2k", "global_batch": "16"}
GO = """([fragment, command]) => {
  window.wanted = command;
  window.replaced = document.querySelector(".failure");
  location.hash = fragment;
}"""
ANSWERED = """() => {
  const headline = document.querySelector("#headline");
  const wrong = [...document.querySelectorAll(".problem:not([hidden]) .failure")].find((each) => each !== window.replaced);
  const command = document.querySelector("#command code").textContent.trim();
  return Boolean(wrong) || (command === window.wanted && !headline.hidden && !headline.classList.contains("waiting"));
}"""
READ = """() => {
  const text = (where) => [...document.querySelectorAll(where)].map((each) => each.textContent.trim());
  if (!document.querySelector(".problem").hidden) return { wrong: document.querySelector(".failure-said").innerText };
  return {
    step: text("#headline .step")[0], range: text("#headline .range")[0], values: text("#headline .figures .value"),
    beneath: text("#headline .figures .hint"), unit: text("#breakdown thead th")[1],
    parts: [...document.querySelectorAll("#breakdown tbody tr")].map((row) => [...row.children].map((each) => each.textContent.trim())),
    stages: [...document.querySelectorAll("#memory tbody tr")].map((row) => [...row.children].map((each) => each.textContent.trim())),
    run: [...document.querySelectorAll("#run dl dt")].map((each) => [each.textContent, each.nextSibling.querySelector("strong").textContent]),
  };
}"""


@pytest.fixture(scope="module")
def page():
    with serving() as address, browsing() as browser, opener(browser, address) as show:
        shown = show(state_of("forecast", FIRST))
        shown.locator("#headline:not(.waiting) .step", has_text=re.compile(r"\d")).wait_for()
        yield shown


def printed(job):
    """Return what the command line prints for a job: its report, or what it says is wrong."""
    found = CliRunner().invoke(cli, [*shlex.split(command_of(job))[1:], "--no-suggest"], env=WIDE)
    if found.exception is None:
        return found.output
    assert isinstance(found.exception, TraincastError), found.exception
    return found.exception


def states():
    """Yield random jobs with what the command line prints; some of them are refused."""
    refused = 0
    for number in itertools.count(1000):
        job = state(number)
        said = printed(job)
        refused += not isinstance(said, str)
        if isinstance(said, str) or refused <= MOST_REFUSED:
            yield job, said


def shown(page, job):
    """Return what stands in the page for a job, once it does."""
    page.evaluate(GO, [fragment_of(state_of("forecast", job)), command_of(job)])
    page.wait_for_function(ANSWERED, polling="raf")
    return page.evaluate(READ)


def letters(text):
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def check_refusal(read, error):
    """The page says what the command line does; what a button offers is not said once more."""
    message = str(error)
    *before, last = message.split("; ")
    wanted = "; ".join(before) if last.startswith("allow_oom") else message
    assert letters(read["wrong"]) == letters(wanted)


def facts_of(report):
    """Return the lines above the tables of a report by their first word."""
    head = report.split("\n\n")[0].splitlines()
    return {name: rest.strip() for name, rest in (line.strip().split(maxsplit=1) for line in head)}


def check_numbers(read, report):
    """Each number of the page is one that is printed, where it is printed."""
    facts = facts_of(report)
    assert read["step"] == facts["Step"]
    if "interval" in facts:
        low, high = re.fullmatch(r"(.+) to (.+) \(90 %\)", facts["interval"]).groups()
        assert read["range"] == f"between {low} and {high} with 90 %"
    tokens, mfu, memory, gpus = read["values"]
    assert facts["tokens"].startswith(f"{tokens} a second")
    assert f"{read['beneath'][0].removesuffix(' a GPU')} tokens/s/GPU" in facts["tokens"]
    assert read["beneath"][1].replace(" a GPU", "/GPU") in facts["FLOP/s"]
    assert facts["MFU"].startswith(mfu)
    assert facts["layout"].startswith(f"{gpus} ranks")
    assert memory in report
    check_parts(read, report)
    check_stages(read, report)
    for name, much in read["run"]:
        line = next(line.split() for line in report.splitlines() if line.strip().startswith(f"{name} "))
        assert " ".join(line).startswith(f"{name} {much}")


def section(report, title):
    """Return the lines of a section of a report below its headings."""
    return re.search(rf"^{title}.*\n([\s\S]*?)(\n\n|\Z)", report, re.MULTILINE)[1].splitlines()


def check_parts(read, report):
    heads, *lines = section(report, "Where the time goes")
    assert heads.split()[0] == read["unit"]
    found = [re.match(r"  (\S[^\d]*?) +([\d.,]+) +(<?[\d.]+ %)", line) for line in lines]
    wanted = [each.groups() for each in found if each]
    assert wanted
    assert [tuple(row) for row in read["parts"]] == wanted


def check_stages(read, report):
    """The fullest stage of the page is the fullest that is printed; each other one is printed, where there are few."""
    peaks = [each[0] for line in section(report, "Stages") if (each := re.findall(r"[\d.]+ [KMGT]iB", line))]
    own = [row[-3] for row in read["stages"]]
    assert set(own) >= set(peaks)
    assert read["values"][2] in own


def test_two_hundred_random_states_by_the_address_of_the_page(page):
    ran = 0
    for job, said in itertools.islice(states(), STATES):
        read = shown(page, job)
        try:
            if isinstance(said, str):
                ran += 1
                check_numbers(read, said)
            else:
                check_refusal(read, said)
        except (AssertionError, KeyError, ValueError, AttributeError) as error:
            raise AssertionError(f"{job}\n{read}\n{said}") from error
    assert ran >= STATES - MOST_REFUSED
