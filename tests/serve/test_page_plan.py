"""The view Plan in a real browser: all layouts as points and rows, limits edited in place, one layout in full."""

import json

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
from traincast.units import format_time

pytestmark = needs_browser
JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": "8", "seq_length": "8k", "global_batch": "16"}
LARGE = {"model": "deepseek-v3", "cluster": "h100", "gpus": "2048", "seq_length": "4k", "global_batch": "15360"}
ROWS = "#plan-table tbody tr:not(.space)"
MEMORY = "#plan-table thead button:text-is('memory')"
FILTER = "#plan-table input[type=search]"
DOTS = "#plan-chart svg.plot g[aria-label=dot]:not([fill=none]) circle"

CASES = "#plan-cases tbody td:nth-child"
FEW = {"cp": "1", "micro_batch": "1"}
CHOSEN = """(text) => document.querySelector('.layout-line').textContent.startsWith(text)
  && document.querySelector('#plan-table tr[aria-current=true] th').textContent === text"""


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
def plan():
    return traincast.plan(model="llama3-8b", cluster="h100", gpus=8, seq_length=8192, global_batch=16)


@pytest.fixture(scope="module")
def one(browser, address):
    """Return a function that gives a page whose plan is made, as nobody has touched it."""
    with opener(browser, address) as open_page:
        page = planned(open_page(state_of("plan", JOB)))

        def untouched(width=1440, scheme="light"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.evaluate("() => window.traincast.app.update({ plan: {} })")
            page.fill(FILTER, "")
            while page.locator("#plan-table th[aria-sort]").count():
                page.locator("#plan-table th[aria-sort] button").click()
            # Only rows near those that are seen are in the page: the first one of it may be any.
            page.evaluate("() => { document.querySelector('#plan-table .many-box').scrollTop = 0; }")
            best = page.locator('#plan-table [data-at="0"]')
            text = best.inner_text()
            best.click()
            page.wait_for_function(CHOSEN, arg=text)
            page.locator(".layout-forecast:not(.waiting) dl").first.wait_for()
            return page

        yield untouched


def planned(page):
    """Wait for the answer of a search."""
    page.locator(".plan-headline", has_text="Run ").wait_for()
    page.locator(".layout-forecast dl").first.wait_for()
    return page


def state_in_address(page):
    """Return the state that the address of a page holds, once it is written."""
    page.wait_for_timeout(400)
    return page.evaluate("() => window.traincast.app.state")


def test_the_headline_and_the_first_row_are_what_the_command_line_says(one, plan):
    page = one()
    assert page.locator(".plan-headline").first.inner_text() == f"Run {plan.best[0].layout.text}"
    first = page.locator(ROWS).first
    assert first.locator("th").inner_text() == plan.best[0].layout.text
    assert first.locator("td").first.inner_text() == format_time(plan.best[0].step_s)
    assert f"{plan.evaluated:,} layouts" in page.locator(".plan-facts").inner_text()
    tied = page.locator(f"{ROWS}.tied").count()
    assert tied == sum(each.tied for each in plan.shown)


def test_every_layout_is_a_point_and_the_pareto_set_is_joined(one):
    page = one()
    known = page.evaluate("() => Number(document.querySelector('#plan-table output').textContent.replace(',', ''))")
    assert page.locator(DOTS).count() == known > 50
    assert page.locator("#plan-chart svg.plot g[aria-label=line] path").count() == 1
    page.select_option("#plan-chart select >> nth=1", "micro_batch")
    assert "micro batch" in page.locator("#plan-chart svg.plot").text_content()
    assert page.locator("#plan-chart svg.plot g[aria-label=line] path").count() == 0
    assert state_in_address(page)["plan"]["x"] == "micro_batch"


def test_the_table_sorts_and_filters_and_the_chart_follows(one):
    page = one()
    page.locator(MEMORY).click()
    texts = page.locator(f"{ROWS} td:nth-child(3)").all_inner_texts()
    sizes = [float(each.split()[0]) for each in texts]
    assert sizes == sorted(sizes)
    assert page.locator("#plan-table th[aria-sort]").get_attribute("aria-sort") == "ascending"
    all_dots = page.locator(DOTS).count()
    page.fill(FILTER, "tp=2")
    assert all("TP2" in each for each in page.locator(f"{ROWS} th").all_inner_texts())
    assert 0 < page.locator(DOTS).count() < all_dots
    page.fill(FILTER, "nothing is called so")
    assert "clear it" in page.locator("#plan-table tbody").inner_text()
    page.fill(FILTER, "")
    page.locator(MEMORY).click()
    assert page.locator("#plan-table th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.locator(MEMORY).click()
    assert page.locator("#plan-table th[aria-sort]").count() == 0


def test_keys_go_through_the_table_and_open_a_layout(one):
    page = one()
    page.locator(f"{ROWS} button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    wanted = page.locator(f"{ROWS} button").nth(2).inner_text()
    page.keyboard.press("Enter")
    page.locator(".layout-line", has_text=wanted).wait_for()
    page.get_by_role("button", name="Why not this one?").click()
    page.locator(".layout-why p").first.wait_for()
    assert page.locator(f"{ROWS}[aria-current=true] th").inner_text() == wanted
    page.locator(f"{ROWS} button").nth(2).focus()
    page.keyboard.press("End")
    assert page.evaluate("() => document.activeElement.dataset.at") == str(
        page.evaluate("() => Number(document.querySelector('#plan-table output').textContent.replace(',', '')) - 1")
    )


def test_a_click_on_a_point_opens_its_layout(one):
    page = one()
    page.fill(FILTER, "micro_batch=2")
    before = page.locator(".layout-line").inner_text()
    page.locator(DOTS).first.scroll_into_view_if_needed()
    box = page.locator(DOTS).first.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.up()
    page.locator(".layout-line", has_text="micro batch 2").wait_for()
    assert page.locator(".layout-line").inner_text() != before


def test_a_limit_is_edited_in_place_kept_in_the_state_and_undone(show):
    page = planned(show(state_of("plan", JOB)))
    page.fill("#limit-tp", "2")
    page.keyboard.press("Enter")
    page.locator("#plan-table output", has_text="").wait_for()
    # A small plan may be made before anybody sees that it is searched.
    page.wait_for_function(
        "where => { const found = [...document.querySelectorAll(where)];"
        " return found.length > 0 && found.every((each) => each.textContent.includes('TP2')); }",
        arg=f"{ROWS} th",
    )
    planned(page)
    assert all("TP2" in each for each in page.locator(f"{ROWS} th").all_inner_texts())
    assert state_in_address(page)["plan"]["fix"] == {"tp": "2"}
    page.fill("#limit-tp", "<=4")
    page.keyboard.press("Enter")
    assert state_in_address(page)["plan"] == {"max_tp": "4"}
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo").click()
    assert state_in_address(page)["plan"] == {}
    assert page.input_value("#limit-tp") == ""


def test_what_cannot_be_says_why_and_how_to_get_on(show):
    page = show(state_of("plan", JOB, plan={"fix": {"tp": "7"}}))
    page.locator(".plan-head .failure").wait_for()
    assert page.locator(".plan-head .failure").inner_text().strip()
    page.get_by_role("button", name="Clear what it is held to").click()
    planned(page)
    page = show(state_of("plan", {**JOB, "model": "no-such-model"}))
    page.locator(".plan-head .failure").wait_for()
    assert "no-such-model" in page.locator(".plan-head .failure").inner_text()


def test_no_model_says_what_to_do(show):
    page = show(state_of("plan", {"gpus": "8"}))
    page.get_by_role("button", name="Choose a model").click()
    assert page.evaluate("() => document.activeElement.id") == "field-model"


def test_stop_stops_and_the_server_goes_on(show):
    page = show(state_of("plan", LARGE))
    page.get_by_role("button", name="Stop").click()
    page.locator(".plan-headline", has_text="Stopped").wait_for()
    assert page.get_by_role("button", name="Search again").is_visible()
    page.evaluate("(job) => window.traincast.app.replaceJob(job)", JOB)
    planned(page)


def test_a_layout_goes_into_the_form_and_forecasts_the_same_step(show, plan):
    page = planned(show(state_of("plan", JOB)))
    page.get_by_role("button", name="Use this layout").click()
    assert state_in_address(page)["scenarios"][0]["job"]["tp"] == str(plan.best[0].layout.tp)
    page.get_by_role("button", name="Forecast it").click()
    page.locator("#headline .step", has_text=format_time(plan.best[0].step_s)).wait_for()


def test_a_layout_has_flags_for_frameworks_and_a_timeline(one, plan):
    page = one()
    page.get_by_role("button", name="Megatron-LM").click()
    page.locator(".layout-flags pre").wait_for()
    assert f"--tensor-model-parallel-size {plan.best[0].layout.tp}" in page.locator(".layout-flags pre").inner_text()
    page.get_by_role("button", name="Show its timeline").click()
    page.locator("#layout-timeline canvas").wait_for()
    assert "compute" in page.locator("#layout-timeline .summary").inner_text()
    page.locator("#layout-timeline canvas").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#layout-timeline .details").wait_for()


def test_every_row_of_the_screen_can_be_forecast(one):
    page = one()
    page.fill(FILTER, "micro_batch=2")
    for at in (0, 3, 6):
        page.locator(f"{ROWS} button").nth(at).click()
        page.locator(".layout-forecast dl").first.wait_for()
        step = page.locator(f"{ROWS}[aria-current=true] td").first.inner_text()
        told = page.locator(".layout-forecast dd").first.inner_text()
        assert seconds(told) == pytest.approx(seconds(step), rel=0.1)
    assert page.locator(".layout-card .failure").count() == 0


def seconds(text):
    """Return a time as the page writes it."""
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


TABLE = """async () => {
  const { Table } = await import('/assets/table.js');
  const made = new Table({ caption: 'Many', open(row) { window.opened = row.name; } });
  document.getElementById('answer').append(made.root);
  const rows = Array.from({ length: 5000 }, (_, at) => ({ name: `<img src=x> ${at}`, size: (at * 7919) % 5003 }));
  const column = (name, words) => (
    { name, title: name, words, value: (row) => row[name], text: (row) => String(row[name]) });
  const begin = performance.now();
  made.show([column('name', true), column('size')], rows);
  made.sort('size');
  return performance.now() - begin;
}"""


def test_five_thousand_rows_are_shown_few_at_a_time_and_nothing_of_them_is_markup(show):
    page = show(state_of("forecast", JOB))
    assert page.evaluate(TABLE) < 400
    table = page.get_by_role("table", name="Many")
    assert table.get_attribute("aria-rowcount") == "5001"
    assert 10 < table.locator("tbody tr").count() < 80
    assert page.locator("img").count() == 0
    first = table.locator("tbody button").first
    first.focus()
    page.keyboard.press("End")
    assert page.evaluate("() => document.activeElement.dataset.at") == "4999"
    page.keyboard.press("Enter")
    assert page.evaluate("() => window.opened").startswith("<img")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark"), (390, "light"), (1440, "dark")])
def test_the_view_reads_well_on_every_screen(one, width, scheme):
    page = one(width, scheme)
    page.locator(".layout-forecast dl").first.wait_for()
    page.wait_for_timeout(300)
    picture(page, f"plan_{width}_{scheme}")
    assert sideways(page) <= 0
    assert wrong_for_readers(page) == []


def test_several_clusters_are_ranked_by_money_and_each_can_be_looked_into(show):
    page = planned(show(state_of("plan", JOB)))
    page.locator("summary", has_text="Several clusters").click()
    page.fill("#limit-gpu_hour_price", "h100=2, h200=2.1, b200=9")
    page.fill("#limit-clusters", "h100, h200, b200")
    page.keyboard.press("Enter")
    page.select_option("#limit-rank_by", "cost")
    page.locator("#plan-cases tbody tr").nth(2).wait_for()
    prices = {"h100": 2.0, "h200": 2.1, "b200": 9.0}
    found = traincast.plans(
        **{"model": "llama3-8b", "clusters": [*prices], "gpus": 8, "seq_length": 8192, "global_batch": 16},
        **{"gpu_hour_price": prices, "rank_by": "cost", "engine": "fast"},
    )
    rows = page.locator("#plan-cases tbody tr").all()
    assert [row.locator("td").first.inner_text() for row in rows] == [each.cluster for each in found.best]
    ties = [row.get_by_text("too close to tell").count() for row in rows]
    assert ties == [each.tied for each in found.places]
    assert [format_time(each.step_s) for each in found.best] == page.locator(f"{CASES}(7)").all_inner_texts()
    first = found.best[0]
    assert page.locator(".plan-headline").inner_text() == f"Run {first.layout.text} on 8 GPUs of {first.cluster}"
    assert "the least cost of a token with" in page.locator(".plan-facts").inner_text()
    rows[2].get_by_role("button").click()
    page.locator(".layout-line", has_text=f"8 GPUs of {found.best[2].cluster}").wait_for()
    page.locator(".layout-forecast:not(.waiting) dl").first.wait_for()
    assert page.locator(".layout-forecast dd").first.inner_text() == format_time(found.best[2].step_s)
    page.get_by_role("button", name="Why not this one?").click()
    page.locator(".layout-why h3", has_text="Why this one").wait_for()
    page.get_by_role("button", name="Use this layout").click()
    assert page.evaluate("() => window.traincast.app.job.cluster") == found.best[2].cluster
    picture(page, "plan_several_1440_light")
    assert wrong_for_readers(page) == []


def test_what_days_and_money_buy_is_asked_in_place(show):
    job = {name: value for name, value in JOB.items() if name != "gpus"}
    page = show(state_of("plan", {**job, "gpu_hour_price": "2.5"}, plan={"days": "60", "budget": "1M", "fix": FEW}))
    page.locator("#plan-cases tbody tr").first.wait_for()
    assert page.input_value("#limit-days") == "60"
    found = traincast.plans(
        **{"model": "llama3-8b", "cluster": "h100", "seq_length": 8192, "global_batch": 16, "days": 60},
        **{"budget": 1e6, "gpu_hour_price": 2.5, "fix": {"cp": 1, "micro_batch": 1}, "engine": "fast"},
    )
    goal = found.goal.chosen
    text = page.locator(".plan-facts").inner_text()
    assert page.locator(".plan-headline").inner_text() == f"Run {goal.layout} on {goal.gpus} GPUs of h100"
    assert "Within 60 days and a cost of 1,000,000" in text
    assert "The largest that it buys" in text
    page.fill("#limit-budget", "100")
    page.keyboard.press("Enter")
    page.locator(".plan-headline", has_text="No run is within").wait_for()
    assert "the nearest" in page.locator(".plan-facts").inner_text()
    page.fill("#limit-days", "soon")
    page.keyboard.press("Enter")
    page.locator(".plan-head .failure", has_text="days").wait_for()


def test_the_address_of_a_plan_opens_the_same_plan(show):
    held = {"fix": {"tp": "2"}, "x": "days", "colour": "pp"}
    page = planned(show(state_of("plan", {**JOB, "tokens": "1T"}, plan=held)))
    assert page.input_value("#limit-tp") == "2"
    assert page.locator("#plan-chart select >> nth=1").input_value() == "days"
    assert json.loads(json.dumps(state_in_address(page)["plan"])) == held
    assert fragment_of(state_of("plan", JOB))
