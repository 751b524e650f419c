"""Do the ten tasks of docs/planner.md in the page, and take its pictures: ``tools/pictures_of_planner.py [TASK...]``.

Needs the extras serve and browser, and Chromium. It ends with an error where a task takes more than ten clicks or a
minute.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from planner_page import browsing, serving  # noqa: E402 it lies beside the tests
from planner_tasks import MOST_S, TASKS, done  # noqa: E402 beside this file

PICTURES = ROOT / "docs" / "pictures"
_WIDE, _HIGH = 1160, 720
_QUALITY = 70
MOST_BYTES = 1_000_000
"""Of all pictures together."""


@contextmanager
def pages(browser: Any) -> Iterator[Callable[[str], Any]]:  # noqa: ANN401
    """Give a function that opens an address in a page, of the size of a picture."""
    context = browser.new_context(viewport={"width": _WIDE, "height": _HIGH})
    context.set_default_timeout(MOST_S * 1000)

    def open_page(address: str) -> Any:  # noqa: ANN401
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_page
    context.close()


def main(names: list[str]) -> None:
    """Do the tasks, and write docs/pictures/planner_*.jpg."""
    with serving() as address, browsing() as browser:
        for task in TASKS:
            if names and task.name not in names:
                continue
            with pages(browser) as open_page:
                found, page = done(task, address, open_page)
                if task.look:
                    page.locator(task.look).scroll_into_view_if_needed()
                else:
                    page.evaluate("() => scrollTo(0, 0)")
                page.mouse.move(0, 0)
                page.wait_for_timeout(600)
                path = PICTURES / f"planner_{task.name}.jpg"
                page.screenshot(path=str(path), type="jpeg", quality=_QUALITY)
            print(f"{task.title}: {found.clicks} clicks, {found.seconds:.1f} s: {found.answer}", flush=True)
    size = sum(each.stat().st_size for each in PICTURES.glob("planner_*.jpg"))
    if size > MOST_BYTES:
        raise SystemExit(f"the pictures are {size} bytes; at most {MOST_BYTES}")


if __name__ == "__main__":
    main(sys.argv[1:])
