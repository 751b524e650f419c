"""The view Explain in a real browser: files are dropped or picked, and what is in them is told and can be tried."""

import json
from pathlib import Path

import pytest

import traincast
from planner_page import (
    browsing,
    needs_browser,
    opener,
    picture,
    serving,
    sideways,
    state_of,
    wrong_for_readers,
)
from traincast.units import format_time

pytestmark = needs_browser
EXAMPLES = Path(__file__).parents[2] / "examples"
TRACES = EXAMPLES / "megatron_pp4_tp2"
JOB = {
    "model": "llama3-8b",
    "cluster": "h100",
    "gpus": "64",
    "seq_length": "8k",
    "global_batch": "128",
    "tp": "2",
    "pp": "2",
}
EMPTY = state_of("explain", JOB)


@pytest.fixture(scope="module")
def address():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture
def show(browser, address):
    with opener(browser, address) as found:
        yield found


@pytest.fixture(scope="module")
def traced(browser, address):
    """Return a page on which the bundled traces are explained."""
    with opener(browser, address) as open_page:
        page = open_page(EMPTY)
        page.get_by_role("button", name="megatron_pp4_tp2").click()
        page.locator("#explained-timeline canvas").wait_for()
        yield page


@pytest.fixture(scope="module")
def replayed():
    return traincast.simulate(TRACES)


def brought(page, *paths):
    """Pick files as a person does."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose files").click()
    chooser.value.set_files([str(path) for path in paths])
    return page


DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const place = document.querySelector('.drop');
  for (const kind of ['dragover', 'drop']) place.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_an_empty_view_says_what_to_do(show):
    page = show(EMPTY)
    assert "Drop a run here" in page.locator(".drop").inner_text()
    page.locator(".examples button").first.wait_for()
    picture(page, "explain_empty_1440_light")
    assert wrong_for_readers(page) == []


def test_the_bundled_traces_tell_their_step_their_straggler_and_their_path(traced, replayed):
    page = traced
    assert page.locator("#explained-step .plan-headline").inner_text() == format_time(replayed.iteration_time_s)
    assert format_time(replayed.measured_s) in page.locator("#explained-step").inner_text()
    (slow,) = replayed.stragglers
    row = page.locator("#stragglers tbody tr").first.inner_text()
    assert f"rank {slow.rank}" in row
    assert format_time(slow.cost_s) in row
    assert "backward" in page.locator("#critical-path").inner_text()
    assert "Echo rank trace" in page.locator("#card-what-it-is").inner_text()


def test_a_click_on_the_straggler_and_on_the_path_shows_them_on_the_timeline(traced):
    page = traced
    page.get_by_role("button", name="rank 7").first.click()
    page.locator("#critical-path").get_by_role("button", name="On the timeline").click()
    assert (
        page.locator("#explained-timeline")
        .get_by_role("button", name="Critical path")
        .first.get_attribute("aria-pressed")
        == "true"
    )
    page.locator("#explained-timeline canvas").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#explained-timeline .details").wait_for()
    for tab in page.locator("#explained-timeline [role=tab]").all():
        tab.click()
        assert page.locator("#explained-timeline [role=tabpanel]").inner_text().strip()


def test_a_what_if_is_tried_by_a_click_and_by_words(traced):
    page = traced
    tried = traincast.simulate(TRACES, what_if=["rank7.own=peers"]).what_if[0]
    page.locator("#what-if").get_by_role("button", name="Try: rank 7").click()
    page.get_by_role("table", name="Tried").wait_for()
    assert format_time(tried.iteration_time_s) in page.get_by_role("table", name="Tried").inner_text()
    page.get_by_label("What if").last.fill("compute*0.5")
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Tried").locator("tbody tr").nth(1).wait_for()
    page.get_by_label("What if").last.fill("nothing*0.5")
    page.keyboard.press("Enter")
    page.locator("#what-if .note").wait_for()
    assert "nothing" in page.locator("#what-if .note").inner_text()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark"), (390, "light"), (1440, "dark")])
def test_the_view_reads_well_on_every_screen(traced, width, scheme):
    page = traced
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_timeout(300)
    picture(page, f"explain_{width}_{scheme}")
    assert sideways(page) <= 0
    assert wrong_for_readers(page) == []


def test_several_rank_files_are_one_run(show, replayed):
    page = brought(show(EMPTY), *sorted(TRACES.glob("*rank*.txt")))
    page.locator("#explained-step .plan-headline", has_text=format_time(replayed.iteration_time_s)).wait_for()


def test_one_rank_alone_says_what_is_missing(show):
    page = brought(show(EMPTY), next(TRACES.glob("*rank7*.txt")))
    page.locator("#explained-step").wait_for()
    assert "drop the files of the other ranks" in page.locator("#stragglers").inner_text()


def test_a_log_is_checked_against_its_own_job_and_that_of_the_form(show):
    page = show(EMPTY)
    page.evaluate(DROP, ["today.log", (EXAMPLES / "check" / "today.log").read_text()])
    page.locator("#check .verdict").wait_for()
    own = page.locator("#check .verdict").inner_text()
    expected = traincast.check(EXAMPLES / "check" / "today.log", cluster="h100").verdict.word.value
    assert own.startswith(expected)
    page.get_by_role("button", name="Against the job in the form").click()
    page.locator("#check h3", has_text="in the form").wait_for()
    assert page.locator("#check .verdict").inner_text() != own
    page.get_by_role("button", name="Put its job into the form").click()
    assert page.evaluate("() => window.traincast.app.job.seq_length") == "8192"
    assert page.evaluate("() => window.traincast.app.state.view") == "forecast"


def test_a_result_is_explained_again(show, tmp_path):
    result = traincast.predict(**{**JOB, "gpus": 64, "global_batch": 128, "tp": 2, "pp": 2})
    (tmp_path / "result.json").write_text(json.dumps(traincast.report.result_to_dict(result)))
    page = brought(show(EMPTY), tmp_path / "result.json")
    page.locator("#explained-step .plan-headline", has_text=format_time(result.iteration_time_s)).wait_for()
    page.locator("#explained-timeline canvas").wait_for()


def test_what_is_no_run_says_so_and_nothing_of_it_is_markup(show, tmp_path):
    bad = tmp_path / "<img src=x onerror=document.title='owned'>.txt"
    bad.write_text("<script>document.title = 'owned'</script>\n" * 3)
    page = brought(show(EMPTY), bad)
    page.locator(".answer-of .card").first.wait_for()
    assert page.locator("img").count() == 0
    assert page.title() != "owned"
    page.get_by_role("button", name="today.log").click()
    page.locator("#check .verdict").wait_for()


def test_what_was_explained_is_in_the_address_and_what_is_gone_says_so(show):
    page = show(EMPTY)
    page.get_by_role("button", name="today.log").click()
    page.locator("#check .verdict").wait_for()
    page.wait_for_timeout(400)
    page.reload()
    page.locator("#check .verdict").wait_for()
    page = show({"view": "explain", "look": {"explain": {"task": "no-such-task", "name": "lost.log"}}})
    page.get_by_text("These files are not kept any more").wait_for()
