"""The planner's page in a real browser, for tests: a server of its own, and pages of it that show a state."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("TRAINCAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
LONG_MS = 90_000
"""Time that long work may take on a busy machine."""
PICTURES = os.environ.get("TRAINCAST_PICTURES")
"""Folder where screenshots are kept; none are made without it."""

needs_browser = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, or its path in TRAINCAST_CHROMIUM"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="needs playwright: pip install 'traincast[browser]'"),
    pytest.mark.skipif(find_spec("litestar") is None, reason="needs litestar: pip install 'traincast[serve]'"),
]


@contextmanager
def serving() -> Iterator[str]:
    """Serve while the body runs; its value is the address."""
    command = [sys.executable, "-m", "traincast.cli", "serve", "--no-browser", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process, _ended(process):
        for line in process.stdout or ():
            if "http://" in line:
                yield line[line.index("http://") :].split()[0]
                break


@contextmanager
def _ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """End a process after the body, by force where it does not listen."""
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


@contextmanager
def browsing() -> Iterator[Any]:
    """Run a browser while the body runs."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()


def state_of(view: str, job: dict[str, str], **more: object) -> dict[str, object]:
    """Return a state of the page with one scenario."""
    return {"view": view, "scenarios": [{"name": "A", "job": job}], "at": 0, "plan": {}, "look": {}, **more}


def fragment_of(state: dict[str, object]) -> str:
    """Return a state as the end of an address, as the page writes it."""
    return base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


@contextmanager
def opener(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Give a function that opens a state; at the end nothing was said on the console, nothing asked elsewhere."""
    said: list[str] = []
    elsewhere: list[str] = []
    pages: list[Any] = []

    def open_page(state: dict[str, object], *, width: int = 1440, scheme: str = "light", height: int = 900) -> Any:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(LONG_MS)
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url))
        page.goto(f"{address}#{fragment_of(state)}")
        page.wait_for_selector("html[data-ready=yes]")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    # An answer of another status than 200 is no error of the page: it says what is wrong.
    assert [text for text in said if "Failed to load resource" not in text] == []
    assert [url for url in elsewhere if not url.startswith((address, "data:", f"blob:{address}"))] == []


def wrong_for_readers(page: Any) -> list[str]:
    """Return what axe finds serious or critical on a page, each with the first places of it."""
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'traincast[browser]'")
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def sideways(page: Any) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def picture(page: Any, name: str) -> None:
    """Keep a screenshot, where one is wanted."""
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)
