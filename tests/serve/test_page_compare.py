"""The view Compare in a real browser: scenarios as columns with their differences, and how they scale."""

import re

import pytest

import traincast
from planner_page import browsing, needs_browser, opener, picture, serving, sideways, state_of, wrong_for_readers
from traincast.simulation.differences import difference_interval
from traincast.units import format_time

pytestmark = needs_browser
JOB = {
    **{"model": "llama3-8b", "cluster": "h100", "gpus": "64", "seq_length": "8k"},
    **{"global_batch": "256", "tp": "2", "pp": "2"},
}
STEPS = "#scenarios tr.steps td strong"


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


def state(*changes, at=0):
    scenarios = [{"name": f"S{place}", "job": {**JOB, **each}} for place, each in enumerate(changes)]
    return {**state_of("compare", JOB), "scenarios": scenarios, "at": at}


def compared(page, count):
    """Wait for the steps of so many scenarios."""
    page.locator(STEPS).nth(count - 1).wait_for()
    return page


def names(page):
    return page.locator("#scenarios .scenario-name").all_inner_texts()


def test_columns_are_forecasts_and_differences_have_their_own_interval(show):
    page = compared(show(state({}, {"precision": "fp8"}, {"gpus": "128"})), 3)
    results = [predicted(), predicted(precision="fp8"), predicted(gpus=128)]
    assert page.locator(STEPS).all_inner_texts() == [format_time(each.iteration_time_s) for each in results]
    ratio = difference_interval(results[0], results[1])
    row = page.locator("#scenarios tr", has_text="against the first")
    said = row.locator("td").nth(1).inner_text()
    assert format_time(results[0].iteration_time_s - results[1].iteration_time_s) + " shorter" in said
    low, high = (float(each) for each in re.findall(r"([-+]?[\d.]+) %", said)[-2:])
    assert low == pytest.approx(100 * (ratio.low - 1), abs=0.2)
    assert high == pytest.approx(100 * (ratio.high - 1), abs=0.2)
    assert "Precision fp8" in page.locator("#scenarios thead").inner_text()
    assert page.locator("#scenario-parts svg g[aria-label=bar] rect").count() >= 9


@pytest.mark.parametrize(
    ("pressed", "changed"),
    [("Twice the GPUs", {"gpus": "128"}), ("FP8", {"precision": "fp8"}), ("Twice the sequence", {"seq_length": "16k"})],
)
def test_a_scenario_is_duplicated_and_changed_by_a_click(show, pressed, changed):
    page = compared(show(state({})), 1)
    page.get_by_role("button", name=pressed, exact=True).click()
    compared(page, 2)
    assert page.evaluate("() => window.traincast.app.job") == {**JOB, **changed}
    assert page.evaluate("() => window.traincast.app.state.at") == 1


def test_another_cluster_and_faster_nics(show):
    page = compared(show(state({})), 1)
    page.get_by_role("button", name="Another cluster").click()
    page.get_by_role("menuitem", name=re.compile("^b200")).first.click()
    compared(page, 2)
    page.get_by_role("radio", name="S0").click()
    page.get_by_role("button", name="NICs twice as fast").click()
    compared(page, 3)
    assert names(page) == ["S0", "b200", "NICs of 800 Gb/s"]
    assert page.input_value("#field-cluster") == "h100, changed"
    page.focus("#field-cluster")
    page.keyboard.press("Tab")
    assert "100GB/s" in page.evaluate("() => window.traincast.app.job.cluster")
    steps = page.locator(STEPS).all_inner_texts()
    assert steps[1] == format_time(predicted(cluster="b200").iteration_time_s)
    assert "shorter" in page.locator("#scenarios tr", has_text="against the first").locator("td").nth(2).inner_text()


def test_a_scenario_that_cannot_run_says_why_and_the_others_stay(show):
    page = compared(show(state({}, {"tp": "7"}, at=1)), 2)
    steps = page.locator(STEPS).all_inner_texts()
    assert steps[0] == format_time(predicted().iteration_time_s)
    assert "do not divide" in steps[1]
    page.fill("#field-tp", "4")
    page.locator(STEPS).nth(1).filter(has_text=format_time(predicted(tp=4).iteration_time_s)).wait_for()


def test_four_are_the_most_and_one_is_removed_and_renamed(show):
    page = compared(show(state({}, {"tp": "1"}, {"tp": "4"}, {"tp": "8"}, at=2)), 4)
    assert page.get_by_role("button", name="FP8", exact=True).is_disabled()
    page.get_by_role("button", name="Remove scenario S2").click()
    page.wait_for_function("() => document.querySelectorAll('#scenarios .scenario-name').length === 3")
    assert names(page) == ["S0", "S1", "S3"]
    page.get_by_role("radio", name="S3").click()
    page.keyboard.type("eight")
    page.keyboard.press("Enter")
    page.locator("#scenarios .scenario-name", has_text="eight").wait_for()


def test_what_is_not_given_shows_in_the_form_without_the_view_forecast(show):
    page = compared(show(state({}, {"tp": "4", "pp": "1"})), 2)
    page.locator("#field-micro_batch[placeholder='1']").wait_for()
    assert page.get_attribute("#field-cp", "placeholder") == "1"
    page.get_by_role("radio", name="S1").click()
    page.locator("#field-vpp[placeholder='1']").wait_for()
    assert page.locator(".failure").count() == 0


def test_no_model_and_a_model_that_is_not_known_say_what_to_do(show):
    page = compared(show(state({"model": ""}, {"model": "no-such-model"})), 2)
    steps = page.locator(STEPS).all_inner_texts()
    assert steps[0] == "Choose a model"
    assert "no-such-model" in steps[1]
    assert len(steps[1]) < 120
    page.locator("#field-model-wrong", has_text="choose one").wait_for()


def test_the_slider_asks_and_the_curve_grows(show):
    page = compared(show(state({})), 1)
    readout = page.locator("#scaling tbody td").first
    readout.filter(has_text=format_time(predicted().iteration_time_s)).wait_for()
    page.locator("#scaling .slider").focus()
    page.keyboard.press("ArrowRight")
    readout.filter(has_text=format_time(predicted(gpus=128).iteration_time_s)).wait_for()
    assert page.locator("#scaling output").inner_text() == "GPUs: 128"
    page.wait_for_function("() => document.querySelectorAll('#scaling svg g[aria-label=dot] circle').length >= 5")
    page.get_by_label("Over", exact=True).select_option("seq_length")
    readout.filter(has_text=format_time(predicted().iteration_time_s)).wait_for()
    assert page.locator("#scaling output").inner_text() == "Sequence length: 8,192"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")])
def test_it_fits_and_can_be_read_by_everybody(show, width, scheme):
    page = compared(show(state({}, {"precision": "fp8"}, {"tp": "7"}), width=width, scheme=scheme), 3)
    page.wait_for_function("() => document.querySelectorAll('#scaling svg g[aria-label=dot] circle').length >= 6")
    assert sideways(page) <= 0
    assert wrong_for_readers(page) == []
    picture(page, f"compare-{width}-{scheme}")
