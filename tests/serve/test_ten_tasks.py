"""Ten tasks that a person does with the page, each in at most ten clicks and a minute."""

import re
from pathlib import Path

import pytest

from pictures_of_planner import MOST_BYTES, PICTURES, pages
from planner_page import browsing, needs_browser, serving
from planner_tasks import TASKS, done

PAGE = Path(__file__).parents[2] / "docs" / "planner.md"


@pytest.fixture(scope="module")
def address():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param(each, id=each.name, marks=needs_browser) for each in TASKS])
def test_it_takes_at_most_ten_clicks_and_a_minute(browser, address, task):
    with pages(browser) as open_page:
        found, _ = done(task, address, open_page)
    assert re.search(r"\d", found.answer)


def test_each_task_is_written_up_with_its_picture():
    text = PAGE.read_text(encoding="utf-8")
    for number, task in enumerate(TASKS, 1):
        assert f"### {number}. {task.title}\n" in text
        assert f"(pictures/planner_{task.name}.jpg)" in text
        assert (PICTURES / f"planner_{task.name}.jpg").is_file()


def test_the_pictures_are_small():
    assert sum(each.stat().st_size for each in PICTURES.glob("planner_*.jpg")) <= MOST_BYTES
