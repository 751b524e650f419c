"""Random use of a page for some time leaves nothing behind: its memory, its elements, the server's memory and open files.

``TRAINCAST_LONG_USE`` says how many times longer it is than usual: 1000 is a day.
"""

import os
import random
from pathlib import Path

import pytest

from planner_page import browsing, needs_browser, opener, state_of

pytestmark = [*needs_browser, pytest.mark.slow]
LONGER = float(os.environ.get("TRAINCAST_LONG_USE", "1"))
TURNS = 80
JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": "16", "seq_length": "4k", "global_batch": "64", "tp": "2"}
VALUES = {
    **{"gpus": ("8", "16", "32", "x"), "tp": ("1", "2", "4", "3"), "pp": ("1", "2", "4"), "seq_length": ("2k", "4k")},
    **{"precision": ("bf16", "fp8"), "cluster": ("h100", "h200", "nowhere"), "recompute": ("full", "none")},
}
CHANGE = "([name, value]) => window.traincast.app.change({ [name]: value })"
GO = "(view) => window.traincast.app.go(view)"
UNDO = "() => window.traincast.app.store.undo()"
ONE_MORE = """() => {
  const { app } = window.traincast;
  if (app.state.scenarios.length < 3) app.addScenario(app.job);
  else app.update({ scenarios: app.state.scenarios.slice(0, 1), at: 0 });
}"""
BACK = "(state) => window.traincast.app.update(state)"


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


def use(page, dice, turns):
    """Do as somebody who tries everything, a few times a second."""
    for _ in range(turns):
        match dice.choice(["change"] * 5 + ["go", "undo", "one more"]):
            case "change":
                name = dice.choice([*VALUES])
                page.evaluate(CHANGE, [name, dice.choice(VALUES[name])])
            case "go":
                page.evaluate(GO, dice.choice(["forecast", "compare", "plan", "explain"]))
            case "undo":
                page.evaluate(UNDO)
            case _:
                page.evaluate(ONE_MORE)
        page.wait_for_timeout(dice.choice([50, 300]))


def held(page, server):
    """Return what page and server hold, where the page shows the same as at its beginning."""
    page.evaluate(BACK, state_of("forecast", JOB))
    page.locator("#headline:not(.waiting) .step").wait_for()
    page.wait_for_timeout(3000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    pids = [server.process.pid, *server.workers]
    return {
        "heap": found["JSHeapUsedSize"],
        "nodes": found["Nodes"],
        "listeners": found["JSEventListeners"],
        "files": len([*Path(f"/proc/{server.process.pid}/fd").iterdir()]),
        "resident": sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        * os.sysconf("SC_PAGE_SIZE"),
    }


def test_what_is_held_does_not_grow(start, browser):
    server, dice = start(), random.Random(31)  # noqa: S311 the same each time
    with opener(browser, server.url) as show:
        page = show(state_of("forecast", JOB))
        for view in ("plan", "compare", "explain"):
            page.evaluate(GO, view)
            page.wait_for_timeout(1000)
        use(page, dice, TURNS)
        first = held(page, server)
        use(page, dice, int(2 * TURNS * LONGER))
        last = held(page, server)
    print(first, last)
    # States to go back to, and answers that are kept, are limited in number, and come to their limit late.
    assert last["heap"] < 1.5 * first["heap"] + 4e6
    assert last["nodes"] < 1.3 * first["nodes"] + 500
    assert last["listeners"] < 1.3 * first["listeners"] + 100
    assert last["files"] <= first["files"] + 8
    assert last["resident"] < 1.25 * first["resident"] + 80e6
