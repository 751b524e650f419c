"""``report.html`` in a real browser: what a person does with it, by mouse and by keys."""

import io
import os
import shutil

import numpy as np
import pytest
from msgspec.structs import replace

from support import with_ops
from traincast import api
from traincast.report.explorer.page import write_page

CHROMIUM = os.environ.get("TRAINCAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, or its path in TRAINCAST_CHROMIUM")

READY = "html[data-ready=yes]"
TIMELINE = "window.traincast.page.timeline"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'traincast[browser]'")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page of some runs; at the end nothing was said on the console and nothing asked of a network."""
    said, asked, pages = [], [], []

    def open_page(*runs):
        path = tmp_path / "report.html"
        stream = io.BytesIO()
        write_page(runs, stream)
        path.write_bytes(stream.getvalue())
        page = browser.new_page(viewport={"width": 1400, "height": 950}, color_scheme="light")
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(READY, timeout=20_000)
        pages.append((page, path.as_uri()))
        return page

    yield open_page
    for page, address in pages:
        assert [url for url in asked if not url.startswith(("data:", address))] == []
        page.close()
    assert said == []


def test_memory_over_the_step_and_who_waits_for_whom(show):
    page = show(("pipeline", api.predict("examples/llama3_70b_512gpu.toml")))
    page.get_by_role("tab", name="Memory").click()
    charts = page.locator("#panel figure")
    assert charts.count() == 4
    assert "stage 0, rank" in charts.first.inner_text()
    assert "GiB" in charts.first.inner_text()
    page.get_by_role("tab", name="Who waits for whom").click()
    assert page.locator("#panel tbody tr").count() >= 2
    assert "s" in page.locator("#panel tbody").inner_text()


@pytest.fixture(scope="module")
def replayed():
    return api.simulate("examples/megatron_pp4_tp2")


def selected(page):
    return page.evaluate(f"{TIMELINE}.selected && {TIMELINE}.selected.run.text('name_T', {TIMELINE}.selected.op)")


def seconds_shown(page):
    return page.evaluate(f"{TIMELINE}.to - {TIMELINE}.from")


def test_the_first_screen_says_the_step_where_it_goes_and_what_would_help(show, replayed):
    page = show(("the run", replayed))
    assert page.locator(".step").inner_text() == f"{replayed.iteration_time_s:.4g} s"
    top = page.locator("#summary").inner_text()
    assert "bubble" in top
    assert "rank 7 is" in top
    assert page.locator("#summary").bounding_box()["y"] < 200
    assert page.locator("#canvas").bounding_box()["y"] < 950
    assert page.title() == "the run - traincast"


def test_zooming_and_moving_stay_within_the_step(show, replayed):
    page = show(("the run", replayed))
    whole = seconds_shown(page)
    page.focus("#canvas")
    for _ in range(4):
        page.keyboard.press("w")
    assert seconds_shown(page) == pytest.approx(whole * 0.6**4)
    for _ in range(60):
        page.keyboard.press("d")
    assert page.evaluate(f"{TIMELINE}.to") <= replayed.iteration_time_s
    for _ in range(60):
        page.keyboard.press("a")
    assert page.evaluate(f"{TIMELINE}.from") == 0
    page.keyboard.press("0")
    assert seconds_shown(page) == pytest.approx(whole)
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 700, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(f"{TIMELINE}.to - {TIMELINE}.from < {0.9 * whole}")


def test_search_finds_every_operation_of_a_name_and_steps_through_them(show, replayed):
    page = show(("the run", replayed))
    page.keyboard.press("/")
    page.keyboard.type("allreduce")
    program, timeline = replayed.program, replayed.timeline
    took_N = (timeline.end_s_N - timeline.ready_s_N) > 1e-9
    names_N = np.array([program.ops.name_T[row] for row in program.row_N])
    expected = sum("allreduce" in name.lower() for name in names_N[took_N])
    assert expected
    assert page.locator("#matches").inner_text() == f"{expected:,} found"
    page.keyboard.press("Enter")
    assert "allreduce" in selected(page).lower()
    first = page.evaluate(f"{TIMELINE}.selected.op")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{TIMELINE}.selected.op") != first
    page.keyboard.press("Escape")
    assert page.locator("#matches").inner_text() == ""


def test_a_click_selects_and_the_side_says_what_it_waited_for(show, replayed):
    page = show(("the run", replayed))
    op = page.evaluate(f"{TIMELINE}.runs[0].path[{TIMELINE}.runs[0].path.length >> 1]")
    page.evaluate(f"{TIMELINE}.select({TIMELINE}.runs[0], {op})")
    page.evaluate(f"{TIMELINE}.select(null, null)")
    at = page.evaluate(
        f"(() => {{ const t = {TIMELINE}, r = t.runs[0], l = r.laneFor({op}); "
        f"return [t.x((r.startS({op}) + r.endS({op})) / 2), t.y(l) + l.height / 2]; }})()"
    )
    box = page.locator("#canvas").bounding_box()
    page.mouse.click(box["x"] + at[0], box["y"] + at[1])
    assert page.evaluate(f"{TIMELINE}.selected.op") == op
    side = page.locator("#details")
    assert "on the critical path" in side.inner_text()
    assert "Could start when this ended" in side.inner_text()
    before = page.evaluate(f"{TIMELINE}.runs[0].causeOf({op})")
    side.get_by_role("button").first.click()
    assert page.evaluate(f"{TIMELINE}.selected.op") == before


def test_keys_go_from_operation_to_operation(show, replayed):
    page = show(("the run", replayed))
    page.focus("#canvas")
    page.keyboard.press("ArrowRight")
    first = page.evaluate(f"{TIMELINE}.selected.op")
    page.keyboard.press("ArrowRight")
    second = page.evaluate(f"{TIMELINE}.selected.op")
    assert second > first
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(f"{TIMELINE}.selected.op") == first
    page.keyboard.press("ArrowDown")
    lanes = page.evaluate(f"[{TIMELINE}.runs[0].laneOf[{first}], {TIMELINE}.runs[0].laneOf[{TIMELINE}.selected.op]]")
    assert lanes[1] == lanes[0] + 1
    page.keyboard.press("c")
    assert page.get_attribute("#path", "aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert selected(page) is None


def test_the_whole_page_is_reached_by_tab_and_both_themes_can_be_read(show, replayed):
    page = show(("the run", replayed))
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "search", "colour", "canvas", "path"} <= reached
    for _ in range(2):
        for text, behind in (
            ("--text", "--page"),
            ("--soft", "--page"),
            ("--warn", "--warn-back"),
            ("--accent", "--page"),
        ):
            assert contrast(*(page.evaluate(VALUE, name) for name in (text, behind))) >= 4.5, (text, behind)
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


VALUE = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"


def contrast(one, other):
    """Return the contrast ratio of two colours (WCAG 2.2, "relative luminance")."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_tables_lead_to_the_timeline(show, replayed):
    page = show(("the run", replayed))
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.locator("#panel").inner_text().strip()
    page.get_by_role("tab", name="Waits", exact=True).click()
    page.locator("#panel button").first.click()
    waits_N = replayed.timeline.start_s_N - replayed.timeline.ready_s_N
    op = page.evaluate(f"{TIMELINE}.selected.op")
    assert waits_N[op] == pytest.approx(waits_N.max())


def lanes_in_view(page, rank):
    return page.evaluate(
        f"(() => {{ const t = {TIMELINE}; return t.lanes.filter((l) => l.owner.rank === {rank})"
        f".map((l) => t.y(l) >= 0 && t.y(l) + l.height <= t.box.clientHeight); }})()"
    )


@pytest.mark.parametrize("slow", [0, 3, 6])
def test_the_page_opens_on_the_slow_rank_and_its_sentence_leads_to_what_is_slow(show, slow):
    result = api.simulate("examples/megatron_pp4_tp2", compute_slowdown={7: 1 / 2.2, slow: 3.0})
    assert [each.rank for each in result.stragglers] == [slow]
    page = show(("the run", result))
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate(f"[...{TIMELINE}.marked]") == [slow]
    assert all(lanes_in_view(page, slow))
    page.mouse.click(*centre(page.locator("#summary ol button").first))
    from_s, to_s = page.evaluate(f"[{TIMELINE}.from, {TIMELINE}.to]")
    assert 0 <= from_s < to_s <= result.iteration_time_s
    assert to_s - from_s > result.stragglers[0].cost_s
    bright = page.evaluate(
        f"(() => {{ const t = {TIMELINE}, r = t.runs[0]; "
        "return [...new Set([...Array(r.count).keys()].filter((op) => r.run[op] && !t.isFaint(r, op))"
        ".map((op) => r.laneFor(op).owner.rank))]; })()"
    )
    assert bright == [slow]
    page.keyboard.press("Escape")
    page.locator("#summary ol button").first.click()
    assert page.evaluate(f"{TIMELINE}.focus") is None


def centre(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_table_of_ranks_leads_to_a_rank_and_not_to_its_first_gap(show, replayed):
    page = show(("the run", replayed))
    page.get_by_role("tab", name="Ranks").click()
    page.locator("#panel button").last.click()
    assert page.evaluate(f"[...{TIMELINE}.marked]") == [7]
    assert all(lanes_in_view(page, 7))
    assert seconds_shown(page) == pytest.approx(replayed.iteration_time_s)


@pytest.mark.parametrize("width", [1400, 390])
def test_the_tip_covers_neither_its_bar_nor_the_side(show, replayed, width):
    page = show(("the run", replayed))
    page.set_viewport_size({"width": width, "height": 950})
    assert page.locator("#details").is_hidden()
    whole = page.locator("#lanes").bounding_box()["width"]
    assert whole == page.locator(".tools").bounding_box()["width"]
    page.evaluate(f"{TIMELINE}.select({TIMELINE}.runs[0], {TIMELINE}.runs[0].path[0])")
    side = page.locator("#details").bounding_box()
    page.locator("#lanes").scroll_into_view_if_needed()
    lanes = page.evaluate(
        f"(() => {{ const t = {TIMELINE}, r = t.runs[0], box = t.canvas.getBoundingClientRect(); "
        "return t.visible().flatMap((l) => [l.ops[0], l.ops.at(-1)].filter((op) => r.run[op] || r.wait[op])"
        ".map((op) => [box.left + t.x((r.readyS(op) + r.endS(op)) / 2), box.top + t.y(l), l.height])); })()"
    )
    seen = 0
    bottom = page.locator("#lanes").bounding_box()
    for x, y, height in lanes:
        if y + height / 2 > min(950, bottom["y"] + bottom["height"]):
            continue
        page.mouse.move(x, y + height / 2)
        if not page.locator("#tip").is_visible():
            continue
        seen += 1
        tip, side = page.locator("#tip").bounding_box(), page.locator("#details").bounding_box()
        assert tip["y"] >= y + height or tip["y"] + tip["height"] <= y
        assert tip["x"] + tip["width"] <= side["x"] or tip["y"] + tip["height"] <= side["y"]
    assert seen > 5


def test_two_runs_lie_side_by_side_and_their_differences_are_told(show, replayed):
    slow = api.simulate("examples/megatron_pp4_tp2", compute_slowdown={0: 1.5})
    page = show(("before", replayed), ("after", slow))
    assert page.locator(".step").count() == 2
    assert page.evaluate(f"{TIMELINE}.lanes.length") == 2 * page.evaluate(f"{TIMELINE}.runs[0].lanes.length")
    table = page.locator("#panel").inner_text()
    assert "A is before, B is after" in table
    assert "By operation" in table


def test_three_hundred_thousand_operations_are_drawn(show):
    whole = api.simulate("examples/aicb_gpt_405b_1024gpu.txt", cluster="h100", unfold=True)
    page = show(("all ranks", whole))
    assert page.evaluate(f"{TIMELINE}.runs[0].count") > 200_000
    page.focus("#canvas")
    page.keyboard.press("w")
    page.keyboard.press("ArrowRight")
    assert selected(page)


def test_nothing_of_a_file_runs(show, replayed):
    bad = "<img src=x onerror=\"document.title='owned'\">"
    ops = replace(replayed.program.ops, name_T=tuple(bad for _ in replayed.program.ops.name_T))
    page = show((bad, with_ops(replayed, ops)))
    page.focus("#canvas")
    page.keyboard.press("ArrowRight")
    assert page.locator("#details").get_by_text("<img").count()
    assert page.locator("img").count() == 0
    assert page.title() == f"{bad} - traincast"


def test_a_phone_shows_a_page_without_scrolling_sideways(show, replayed):
    title = "a_file_name_without_any_place_to_break_it_" * 4
    for runs in ([(title, replayed)], [(title, replayed), (title, replayed)]):
        page = show(*runs)
        page.set_viewport_size({"width": 390, "height": 800})
        for tab in page.get_by_role("tab").all():
            tab.click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
