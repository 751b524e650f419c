"""How fast ``report.html`` is written and drawn: sample 000, and 300,000 operations of all its ranks.

    python benchmarks/explorer.py

Times of the browser next to that of an empty page in the same browser; a frame next to the 16.7 ms of a screen of 60
Hz. Needs the extra ``browser`` and Chromium (its path in TRAINCAST_CHROMIUM where it is not on the path).
"""

import os
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from traincast import api
from traincast.report.explorer.page import write_page

FILE = Path(__file__).parents[1] / "examples" / "aicb_gpt_405b_1024gpu.txt"
FRAMES = """() => { const t = window.traincast.page.timeline, from = performance.now();
for (let n = 0; n < 20; n++) t.paint(); return (performance.now() - from) / 20; }"""


def main() -> None:
    """Write pages, draw them, and print how long both took."""
    chromium = os.environ.get("TRAINCAST_CHROMIUM") or shutil.which("chromium")
    if chromium is None or find_spec("playwright") is None:
        sys.exit("needs Chromium, and playwright: pip install 'traincast[browser]'")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        empty = Path(folder) / "empty.html"
        empty.write_text("<!doctype html><title>empty</title><p>empty")
        page = browser.new_page(viewport={"width": 1400, "height": 950})
        page.goto(empty.as_uri())
        begin = time.perf_counter()
        page.goto(empty.as_uri())
        empty_s = time.perf_counter() - begin
        for name, unfold in (("sample 000", False), ("all 1,024 ranks of it", True)):
            result = api.simulate(FILE, cluster="h100", unfold=unfold)
            path = Path(folder) / "report.html"
            begin = time.perf_counter()
            with path.open("wb") as stream:
                write_page([(name, result)], stream)
            written_s = time.perf_counter() - begin
            begin = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready=yes]")
            shown_s = time.perf_counter() - begin
            ops = page.evaluate("window.traincast.page.timeline.runs[0].count")
            print(
                f"{name}: {ops:,} operations, {path.stat().st_size / 1e6:.2f} MB, written in {written_s:.2f} s; "
                f"first screen {shown_s:.2f} s ({shown_s / empty_s:.0f} x an empty page), "
                f"a frame {page.evaluate(FRAMES):.1f} ms (60 Hz: 16.7 ms)"
            )
        browser.close()


if __name__ == "__main__":
    main()
