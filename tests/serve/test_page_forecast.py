"""The shell of the page and its view Forecast in a real browser: the numbers of the command line, by mouse and keys."""

import base64
import json
import re
from xml.etree import ElementTree

import pytest

import traincast
from planner_page import (
    browsing,
    fragment_of,
    needs_browser,
    opener,
    picture,
    serving,
    sideways,
    state_of,
    wrong_for_readers,
)
from traincast.job.failures import Failures
from traincast.report.terminal.step import breakdown_lines
from traincast.report.terminal.training_run import run_lines
from traincast.units import format_share, format_size, format_time

pytestmark = needs_browser
JOB = {
    **{"model": "llama3-8b", "cluster": "h100", "gpus": "64", "seq_length": "8k"},
    **{"global_batch": "256", "tp": "2", "pp": "2"},
}
STEP = "#headline .step"
OPEN_FILE = """async (text) => {
  const { openScenarios } = await import("/assets/toolbar.js");
  openScenarios(window.traincast.app, "saved.json", text);
}"""
SIZES = [(360, "light"), (390, "light"), (390, "dark"), (1440, "light"), (1440, "dark"), (3840, "light")]


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


def predicted(**changes):
    return traincast.predict(**{**JOB, "gpus": 64, "global_batch": 256, "tp": 2, "pp": 2, **changes}, engine="fast")


@pytest.fixture(scope="module")
def result():
    return predicted()


def forecast(page, step=None):
    """Wait for the answer of a forecast: any, or that of a step."""
    page.locator(STEP, has_text=re.compile(r"\d" if step is None else f"^{re.escape(step)}$")).wait_for()
    return page


def job_of(page):
    return page.evaluate("() => window.traincast.app.job")


def test_the_numbers_are_those_of_the_command_line(show, result):
    page = forecast(show(state_of("forecast", JOB)))
    assert page.locator(STEP).inner_text() == format_time(result.iteration_time_s)
    low, high = format_time(result.interval.low_s), format_time(result.interval.high_s)
    assert page.locator("#headline .range").inner_text() == f"between {low} and {high} with 90 %"
    figures = page.locator("#headline .figures").inner_text()
    assert f"{result.tokens_per_s_per_gpu * 64:,.0f}" in figures
    assert format_share(result.mfu) in figures
    assert format_size(max(each.peak for each in result.memory_bytes)) in figures
    rows = page.locator("#breakdown tbody tr").all()
    shown = [tuple(row.locator("th, td").all_inner_texts()) for row in rows]
    assert shown == [(each.name, each.time, each.share) for each in breakdown_lines(result)]
    command = page.locator("#command code").inner_text()
    assert command.startswith("traincast predict --model llama3-8b --cluster h100 --gpus 64")


def test_what_is_assumed_stands_in_the_fields_and_can_be_replaced(show):
    page = forecast(show(state_of("forecast", JOB)))
    assert page.locator("#field-cp").get_attribute("placeholder") == "1"
    assert page.locator("#field-precision").input_value() == ""
    page.get_by_role("button", name="Set Recompute", exact=True).click()
    assert page.evaluate("() => document.activeElement.id") == "field-recompute"
    page.locator("#field-recompute").select_option("full")
    forecast(page, format_time(predicted(recompute="full").iteration_time_s))
    assert "recompute" not in page.locator("#assumptions").inner_text()


def test_a_change_is_answered_and_kept_in_the_address(show):
    page = forecast(show(state_of("forecast", JOB)))
    wider = format_time(predicted(gpus=128).iteration_time_s)
    page.fill("#field-gpus", "128")
    forecast(page, wider)
    page.wait_for_timeout(400)
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    forecast(page, wider)
    assert page.input_value("#field-gpus") == "128"


def test_undo_and_redo_by_button_and_by_key(show):
    page = forecast(show(state_of("forecast", JOB)))
    before = page.locator(STEP).inner_text()
    assert page.get_by_role("button", name="Undo").is_disabled()
    page.focus("#field-gpus")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#field-gpus") == "128"
    forecast(page, format_time(predicted(gpus=128).iteration_time_s))
    page.get_by_role("button", name="Undo").click()
    forecast(page, before)
    assert page.input_value("#field-gpus") == "64"
    page.keyboard.press("r")
    assert page.input_value("#field-gpus") == "128"
    page.keyboard.press("Control+z")
    assert page.input_value("#field-gpus") == "64"


def test_a_whole_run_with_its_failures_is_counted(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.get_by_role("button", name="Say the tokens of the run").click()
    page.keyboard.type("15T")
    page.fill("#field-gpu_hour_price", "2.5")
    page.locator("#field-failures").click()
    page.locator(".options:popover-open [role=option]").first.click()
    run = predicted(tokens="15T", gpu_hour_price=2.5, failures=Failures()).training_run
    page.locator("#run", has_text="goodput").wait_for()
    assert page.locator("#run dt").all_inner_texts() == [name for name, _, _ in run_lines(run)]
    assert page.locator("#run strong").all_inner_texts() == [much for _, much, _ in run_lines(run)]


def test_a_mistake_is_told_at_its_field_and_the_last_numbers_stay(show):
    page = forecast(show(state_of("forecast", JOB)))
    before = page.locator(STEP).inner_text()
    height = page.locator("#breakdown").bounding_box()["y"]
    page.fill("#field-gpus", "many")
    wrong = page.locator("#field-gpus-wrong")
    wrong.wait_for()
    assert "whole number" in wrong.inner_text()
    assert page.locator("#field-gpus").get_attribute("aria-invalid") == "true"
    assert page.locator(STEP).text_content() == before
    assert page.locator("#breakdown").bounding_box()["y"] == pytest.approx(height, abs=40)
    page.fill("#field-gpus", "64")
    wrong.wait_for(state="hidden")
    assert page.locator(".failure").count() == 0 or not page.locator(".failure").is_visible()


def test_a_job_that_cannot_be_says_why_and_leads_on(show):
    page = show(state_of("forecast", {**JOB, "tp": "7"}))
    page.locator(".failure").wait_for()
    assert "do not divide" in page.locator(".failure").inner_text()
    page.get_by_role("button", name="Find layouts that fit").click()
    assert page.get_by_role("tab", name="Plan").get_attribute("aria-selected") == "true"


def test_no_model_is_an_empty_state_that_says_what_to_do(show):
    page = show(state_of("forecast", {"gpus": "64"}))
    page.get_by_role("button", name="Choose a model").click()
    page.keyboard.type("llama 3 8b")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert job_of(page)["model"].startswith("llama")


def test_models_are_found_by_parts_of_their_names_and_chosen_by_keys(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.focus("#field-model")
    page.keyboard.type("v3 deep")
    options = page.locator(".options:popover-open [role=option]")
    options.first.wait_for()
    names = options.locator("span").all_inner_texts()
    assert "deepseek-v3" in names
    assert all("v3" in each and "deep" in each for each in names)
    page.keyboard.press("ArrowDown")
    marked = page.locator("#field-model").get_attribute("aria-activedescendant")
    assert page.locator(f"#{marked}").get_attribute("data-value") == names[0]
    page.keyboard.press("Enter")
    assert job_of(page)["model"] == names[0]
    assert page.locator(".options:popover-open").count() == 0


def test_every_setting_is_found_and_a_set_one_is_marked_and_cleared(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("attention kernel")
    page.locator("#field-attention_kernel").select_option("fa2")
    field = page.locator("[data-field=attention_kernel]")
    assert "set" in field.get_attribute("class").split()
    field.get_by_role("button").click()
    assert "attention_kernel" not in job_of(page)
    fields = page.evaluate("() => window.traincast.app.about.fields.map((each) => each.name)")
    assert page.evaluate("(names) => names.filter((name) => !document.getElementById(`field-${name}`))", fields) == []


def test_advice_is_applied_by_a_click_and_taken_back(show):
    page = forecast(show(state_of("forecast", JOB)))
    apply = page.locator("#advice").get_by_role("button", name="Apply")
    apply.first.wait_for()
    assert page.locator("#advice .saving").first.inner_text().startswith("\N{MINUS SIGN}")
    apply.first.click()
    assert job_of(page) != JOB
    page.locator(".toast").get_by_role("button", name="Undo").click()
    assert job_of(page) == JOB


def test_pasted_flags_fill_the_form_and_what_is_not_understood_is_said(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("p")
    page.keyboard.type("--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --frobnicate 3")
    page.keyboard.type(" --max-position-embeddings 4096 --tensor-model-parallel-size 4 --micro-batch-size 1")
    page.keyboard.type(" --global-batch-size 128 --world-size 64")
    page.get_by_role("button", name="Fill the form").click()
    page.locator(".missed").wait_for()
    assert "frobnicate" in page.locator(".missed").inner_text()
    page.get_by_role("button", name="Done").click()
    job = job_of(page)
    assert (job["tp"], job["seq_length"], job["global_batch"]) == ("4", "4096", "128")


PASTE = """(text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""
DROP = """(text) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], "job.toml"));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""
JOB_FILE = """
[model]
name = "llama3-8b"
[batch]
seq_length = 8192
global_batch = 128
micro_batch = 1
[parallel]
tp = 4
[cluster]
name = "h200"
gpus = 32
"""


def test_a_text_is_pasted_and_a_file_is_dropped_anywhere(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate(PASTE, "traincast predict --model llama3-8b --gpus 16 --seq-length 4k --global-batch 64 --tp 1")
    page.locator(".toast", has_text="command line of traincast").wait_for()
    assert job_of(page) == {**{"model": "llama3-8b", "gpus": "16", "seq_length": "4k"}, "global_batch": "64", "tp": "1"}
    page.evaluate(DROP, JOB_FILE)
    page.locator(".toast", has_text="job file").wait_for()
    job = job_of(page)
    assert (job["cluster"], job["gpus"], job["tp"], job["global_batch"]) == ("h200", "32", "4", "128")


def test_the_timeline_is_drawn_when_it_is_seen(show):
    page = forecast(show(state_of("forecast", JOB)))
    assert page.locator("#timeline canvas").count() == 0
    page.locator("#timeline").scroll_into_view_if_needed()
    page.locator("#timeline canvas").first.wait_for()


def test_a_link_holds_the_whole_state(show, address):
    page = forecast(show(state_of("forecast", {**JOB, "recompute": "full"})))
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.get_by_role("button", name="Copy a link").click()
    page.wait_for_function("() => window.copied")
    link = page.evaluate("() => window.copied")
    assert link.startswith(address)
    fragment = link.partition("#")[2]
    state = json.loads(base64.urlsafe_b64decode(fragment + "=" * (-len(fragment) % 4)))
    assert state["scenarios"][0]["job"] == {**JOB, "recompute": "full"}


def test_a_link_is_taken_though_the_page_writes_its_address_meanwhile(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate("() => window.traincast.app.change({ recompute: 'full' })")
    page.wait_for_function("(before) => location.hash !== before", arg=page.evaluate("location.hash"))
    page.evaluate(
        """(fragment) => {
          const own = location.hash;
          location.hash = fragment;
          history.replaceState(null, "", own);
        }""",
        fragment_of(state_of("forecast", {**JOB, "precision": "fp8"})),
    )
    page.wait_for_function("() => window.traincast.app.job.precision === 'fp8'")


def test_a_long_state_is_deflated_and_read_again(show):
    page = forecast(show(state_of("forecast", JOB)))
    same = page.evaluate(
        """async () => {
          const { encode, decode } = await import("/assets/state.js");
          const { state } = window.traincast.app;
          const long = { ...state, look: { text: "é".repeat(5000) } };
          const written = await encode(long);
          return [written.length < 1000, JSON.stringify(await decode(written)) === JSON.stringify(long)];
        }"""
    )
    assert same == [True, True]


@pytest.mark.parametrize("fragment", ["nothing", "z.AAAA", "eyJzY2VuYXJpb3MiOiA3fQ"])
def test_a_link_that_holds_no_state_is_said_and_the_page_works(browser, address, fragment):
    page = browser.new_page()
    page.goto(f"{address}#{fragment}")
    page.locator(".toast", has_text="holds no state").wait_for()
    forecast(page)
    page.close()


def test_scenarios_are_saved_and_opened_again(show, tmp_path):
    page = forecast(show(state_of("forecast", JOB)))
    page.get_by_role("button", name="Save and export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save scenarios").click()
    path = tmp_path / "saved.json"
    download.value.save_as(path)
    saved = json.loads(path.read_text())
    assert saved["scenarios"] == [{"name": "A", "job": JOB}]
    saved["scenarios"].append({"name": "<b>B</b>", "job": {**JOB, "gpus": 128}})
    page.evaluate(OPEN_FILE, json.dumps(saved))
    assert page.get_by_role("radio").all_inner_texts() == ["A", "<b>B</b>"]
    page.evaluate(OPEN_FILE, "[1]")
    page.locator(".toast.wrong", has_text="holds no scenarios").wait_for()


def test_what_is_exported_forecasts_the_same(show, result, tmp_path):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.get_by_role("button", name="Save and export").click()
    page.get_by_role("menuitem", name="Command line").click()
    page.wait_for_function("() => window.copied")
    assert page.evaluate("() => window.copied").strip() == page.locator("#command code").inner_text()
    page.get_by_role("button", name="Save and export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Job file").click()
    download.value.save_as(tmp_path / download.value.suggested_filename)
    again = traincast.predict(tmp_path / "job.toml", engine="fast")
    assert again.iteration_time_s == pytest.approx(result.iteration_time_s, rel=1e-12)


def test_what_opens_can_be_read_by_everybody(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.locator("#field-cluster").click()
    page.locator(".options:popover-open").wait_for()
    assert wrong_for_readers(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Save and export").click()
    page.locator(".menu:popover-open").wait_for()
    assert wrong_for_readers(page) == []
    page.keyboard.press("Escape")
    page.locator(".section summary", has_text="Whole run").click()
    page.get_by_role("button", name="Paste flags").click()
    page.get_by_role("dialog").wait_for()
    assert wrong_for_readers(page) == []
    page.keyboard.press("Escape")
    page.fill("#field-tp", "7")
    page.locator(".failure").wait_for()
    page.wait_for_timeout(400)
    assert wrong_for_readers(page) == []
    picture(page, "forecast-refused")


def test_pictures_stand_alone(show, tmp_path):
    page = forecast(show(state_of("forecast", JOB)))
    for kind in ("SVG", "PNG"):
        page.locator("#memory").get_by_role("button", name="Picture").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=kind).click()
        download.value.save_as(tmp_path / f"memory.{kind}")
    text = (tmp_path / "memory.SVG").read_text()
    assert "var(" not in text
    assert "GiB" in "".join(ElementTree.fromstring(text).itertext())  # noqa: S314 our own
    assert (tmp_path / "memory.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_name_never_becomes_markup(show):
    name = "<img src=x onerror=alert(1)>"
    scenarios = [{"name": name, "job": JOB}, {"name": "B", "job": {"model": name}}]
    page = forecast(show(state_of("forecast", JOB, scenarios=scenarios)))
    assert page.get_by_role("radio").first.inner_text() == name
    page.get_by_role("radio", name="B").click()
    page.locator(".failure").wait_for()
    assert name in page.locator(".failure").inner_text()
    assert page.locator("#page img").count() == 0


def test_themes_and_keys(show):
    page = forecast(show(state_of("forecast", JOB)))
    page.evaluate("document.activeElement.blur()")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    page.keyboard.press("3")
    assert page.get_by_role("tab", name="Compare").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Compare").focus()
    page.keyboard.press("Home")
    assert page.get_by_role("tab", name="Forecast").get_attribute("aria-selected") == "true"


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_fits_and_can_be_read_by_everybody(show, width, scheme):
    page = forecast(show(state_of("forecast", JOB), width=width, scheme=scheme, height=2160 if width > 2000 else 900))
    page.locator("#advice .choices, #advice .hint").first.wait_for()
    page.wait_for_timeout(300)
    assert sideways(page) <= 0
    assert wrong_for_readers(page) == []
    picture(page, f"forecast-{width}-{scheme}")
