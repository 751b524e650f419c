"""``plan.html`` and ``sweep.html``: what they hold, and what a person does with them in a browser."""

import csv
import json
import os
import re
import shutil

import pytest

import traincast
from traincast import api
from traincast.job.draft import Draft
from traincast.report.explorer.points import MOST_ROWS, sweep_page
from traincast.report.plan_files import write_plan

CHROMIUM = os.environ.get("TRAINCAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
BAD = "</script><img src=x onerror=alert(1)>"
MODELS = {"dense": "llama3-8b", "experts": "qwen3-30b-a3b"}


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="points">(.*?)</script>', page, re.DOTALL)
    found = json.loads(text)
    names = [column["name"] for column in found["columns"]]
    return found, [dict(zip(names, row, strict=True)) for row in found["rows"]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """The folder of a plan of each kind of model, with the plan, and of two together."""
    fix = {"tp": (1, 2), "pp": (1, 2), "micro_batch": (1, 2)}
    fields = {"gpus": 16, "global_batch": 16, "seq_length": 4096, "cp": 1}
    several = api.plans(Draft(fields=fields), models=list(MODELS.values()), clusters=["h100"], fix=fix)
    found = {**dict(zip(MODELS, several.plans, strict=True)), "several": several}
    folders = {name: tmp_path_factory.mktemp(name) for name in found}
    for name, plan in found.items():
        write_plan(plan, folders[name])
    return {name: (folders[name], plan) for name, plan in found.items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "out"
    grid = {"parallel.tp": [1, 2, 3, 4], "cluster.name": ["h100", "a100"], "batch.micro_batch": [1, 2]}
    base = {"model": {"name": "llama3-8b"}, "cluster": {"gpus": 16}, "batch": {"seq_length": 4096, "global_batch": 32}}
    traincast.sweep({"base": base, "grid": grid}, out=out, workers=1)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "several"])
def test_the_page_of_a_plan_holds_every_layout_with_its_figures(plans, name):
    folder, plan = plans[name]
    found, rows = data_of((folder / "plan.html").read_text())
    shown = plan.shown
    cases = getattr(plan, "plans", (plan,))
    for each, row in zip(shown, rows, strict=False):
        assert (row["layout"], row["step_s"], row["peak_bytes"]) == (each.layout.text, each.step_s, each.peak_bytes)
    assert all(row["simulated"] == (at < len(shown)) for at, row in enumerate(rows))
    estimated = {(each.layout.text, each.step_s) for case in cases for each in case.estimated}
    assert {(row["layout"], row["step_s"]) for row in rows[len(shown) :]} <= estimated
    assert len(rows) >= len(estimated)
    assert [rows[at]["layout"] for at in found["best"]] == [case.best[0].layout.text for case in cases]
    joined = [(rows[at]["peak_bytes"], rows[at]["step_s"]) for at in found["joined"]]
    assert sorted(joined) == sorted((each.peak_bytes, each.step_s) for each in plan.pareto if name != "several")
    files = {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("plan.")}
    assert {each["name"]: each["text"] for each in found["texts"]} == files


def test_a_column_of_a_page_tells_jobs_apart_and_what_is_the_same_is_a_fact(plans):
    for folder, _ in plans.values():
        found, rows = data_of((folder / "plan.html").read_text())
        kept = {"row", "layout", "step_s", "peak_bytes"}
        for column in found["columns"]:
            assert column["name"] in kept or len({row[column["name"]] for row in rows}) > 1, column
        assert "cluster h100" in " ".join(found["facts"])


@pytest.mark.slow
def test_a_sweep_into_a_folder_writes_a_table_and_the_same_rows_as_a_page(swept):
    assert {path.name for path in swept.iterdir()} == {"sweep.csv", "sweep.html"}
    found, rows = data_of((swept / "sweep.html").read_text())
    lines = list(csv.DictReader((swept / "sweep.csv").read_text().splitlines()))
    assert len(rows) == len(lines) == 16
    for row, line in zip(rows, lines, strict=True):
        assert all(str("" if row[name] is None else row[name]) == line[name] for name in row if name != "row")
    assert (found["x"], found["y"]) == ("parallel.tp", "step_s")
    assert found["colour"] in ("cluster.name", "batch.micro_batch")
    assert {row["status"] for row in rows} == {"ok", "infeasible"}
    assert rows[found["best"][0]]["step_s"] == min(row["step_s"] for row in rows if row["step_s"] is not None)


def test_no_text_of_a_sweep_becomes_markup_and_a_large_one_says_what_is_left_out():
    rows = [{"point": at, "model.name": BAD, "status": "ok", "step_s": 1.0 + at} for at in range(MOST_ROWS + 5)]
    page = sweep_page(BAD, ["model.name"], rows)
    assert "<img" not in page
    found, shown = data_of(page)
    assert (found["title"], len(shown)) == (BAD, MOST_ROWS)
    assert "of 20,005 the first 20,000" in " ".join(found["facts"])
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[\w./-]+", page)) == {"http://www.w3.org/2000/svg"}


@pytest.fixture(scope="module")
def show():
    """Open a file; nothing is said on its console and nothing asked of a network."""
    if CHROMIUM is None:
        pytest.skip("needs chromium, or its path in TRAINCAST_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'traincast[browser]'")
    said, asked = [], []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(path, width=1440):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
            return page

        yield open_page
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def lines_of(page):
    return page.locator("#panel tbody tr").all_inner_texts()


def test_every_job_is_a_point_and_the_table_sorts_and_filters_with_the_chart(show, plans):
    folder, plan = plans["dense"]
    page = show(folder / "plan.html")
    rows = data_of((folder / "plan.html").read_text())[1]
    assert page.locator("#chart circle").count() == len(rows)
    assert page.locator("#chart polyline").count() == 1
    assert page.locator("#panel tr.best").inner_text().startswith(plan.best[0].layout.text)
    for _, falling in ((0, False), (1, True)):
        page.locator("#panel th button", has_text="peak memory").click()
        shown = [
            int(each) for each in page.locator("#panel tbody tr").evaluate_all("all => all.map(e => e.dataset.row)")
        ]
        peaks = [rows[at]["peak_bytes"] for at in shown]
        assert peaks == sorted(peaks, reverse=falling)
    page.fill("#filter", "tp=2 pp=1")
    kept = [row for row in rows if row["tp"] == 2 and row["pp"] == 1]
    assert 0 < len(kept) < len(rows)
    assert len(lines_of(page)) == page.locator("#chart circle").count() == len(kept)
    page.fill("#filter", "nothing is called so")
    assert lines_of(page) == []


def test_a_point_tells_its_layout_and_a_click_finds_its_line(show, plans):
    folder, plan = plans["dense"]
    page = show(folder / "plan.html")
    best = page.locator("#chart circle.best")
    best.hover()
    tip = page.locator("#tip")
    assert plan.best[0].layout.text in tip.inner_text()
    box = best.bounding_box()
    told = tip.bounding_box()
    assert told["x"] >= box["x"] + box["width"] or told["x"] + told["width"] <= box["x"]
    best.click()
    assert page.locator("#panel tr[aria-current]").inner_text().startswith(plan.best[0].layout.text)


def test_the_axes_of_a_sweep_are_chosen_and_points_that_differ_in_one_key_are_joined(show, swept):
    page = show(swept / "sweep.html")
    ok = [row for row in data_of((swept / "sweep.html").read_text())[1] if row["step_s"] is not None]
    assert page.locator("#chart circle").count() == len(ok)
    others = {(row["cluster.name"], row["batch.micro_batch"]) for row in ok}
    assert page.locator("#chart polyline").count() == len(others)
    page.select_option("#x", "cluster.name")
    assert page.locator("#chart polyline").count() == len(
        {(row["parallel.tp"], row["batch.micro_batch"]) for row in ok}
    )
    page.select_option("#colour", "parallel.tp")
    assert page.locator("#legend .chip").count() == 4
    page.click("#theme")
    assert page.locator("#chart circle").count() == len(ok)


@pytest.mark.parametrize("name", [*MODELS, "several", "sweep"])
def test_a_phone_shows_the_pages_without_scrolling_sideways(show, plans, swept, name):
    page = show(swept / "sweep.html" if name == "sweep" else plans[name][0] / "plan.html", width=390)
    for summary in page.locator("#texts summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#chart svg").bounding_box()["width"] <= 390
