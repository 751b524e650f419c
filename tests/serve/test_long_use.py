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
SHOWN = {
    "plan": ".plan-headline:has-text('Run ')",
    "compare": "#scenarios tr.steps td strong",
    "explain": ".examples button",
    "forecast": "#headline:not(.waiting) .step",
}
"""What is seen of a view once it has its answer."""
MOST_NODES, MOST_LISTENERS = 200, 60
"""What may come on top in a stretch of use: less than one of each turn."""
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


QUIET = """() => {
  const { app } = window.traincast;
  const counted = document.querySelectorAll("*").length;
  const now = performance.now();
  const busy = [...document.querySelectorAll(".toast, .waiting")].some((each) => each.checkVisibility());
  const still = !app.server.running.size && !busy;
  if (!still || counted !== window.counted) Object.assign(window, { counted, since: now });
  return now - window.since > 1500;
}"""
ATTACHED = """() => {
  const nodes = document.createTreeWalker(document);
  let count = 1;
  while (nodes.nextNode()) count++;
  return count;
}"""


def home(page):
    """Show every view of the same job once, each until its last answer is there; end with the view Forecast."""
    page.evaluate("() => { window.scrollTo(0, 0); document.activeElement?.blur(); }")
    for view, shown in SHOWN.items():
        page.evaluate(BACK, state_of(view, JOB))
        page.locator(shown).first.wait_for()
        page.evaluate("() => { window.counted = null; }")
        page.wait_for_function(QUIET, polling=100)


def held(page, server):
    """Return what page and server hold, where every view shows the same as at the beginning."""
    home(page)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    pids = [server.process.pid, *server.workers]
    attached = page.evaluate(ATTACHED)
    return {
        "heap": found["JSHeapUsedSize"],
        "attached": attached,
        "detached": found["Nodes"] - attached,
        "listeners": found["JSEventListeners"],
        "files": len([*Path(f"/proc/{server.process.pid}/fd").iterdir()]),
        "resident": sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        * os.sysconf("SC_PAGE_SIZE"),
    }


def test_what_is_held_does_not_grow(start, browser):
    server, dice = start(), random.Random(31)  # noqa: S311 the same each time
    with opener(browser, server.url) as show:
        page = show(state_of("forecast", JOB))
        home(page)
        use(page, dice, TURNS)
        first = held(page, server)
        use(page, dice, int(2 * TURNS * LONGER))
        last = held(page, server)
    print(first, last)
    # The page shows the same, and holds nothing else but a part of what it may keep: answers and states to go back to
    # are limited in number, and come to their limit late.
    assert last["attached"] == pytest.approx(first["attached"], rel=0.02)
    assert last["detached"] < first["detached"] + MOST_NODES
    assert last["listeners"] < first["listeners"] + MOST_LISTENERS
    assert last["heap"] < 1.5 * first["heap"] + 4e6
    assert last["files"] <= first["files"] + 8
    assert last["resident"] < 1.25 * first["resident"] + 80e6
