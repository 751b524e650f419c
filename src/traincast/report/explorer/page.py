"""The page itself: its parts, what it shows, and a policy that lets it ask for nothing."""

import base64
import hashlib
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from traincast.report.explorer.columns import Packed, packed_run
from traincast.report.plain import Plain
from traincast.shipped import shipped_text
from traincast.simulation.result import Result

SCRIPTS = ("store", "colours", "timeline", "panels", "main")
"""Scripts of the page, in the order they run."""


def write_page(runs: Sequence[tuple[str, Result]], stream: BinaryIO) -> None:
    """Write a page that shows one run, or two side by side, each a name and a result with its operations.

    Raises
    ------
    ConfigError
        If a result holds no single operations.
    """
    packed = [packed_run(result, name) for name, result in runs]
    style, script = _asset("explorer.css"), "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    replaced = {
        "{{policy}}": _policy(style, script),
        "{{title}}": _escaped(" and ".join(name for name, _ in runs)),
        "{{style}}": style,
        "{{data}}": "\n".join(_run(at, each) for at, each in enumerate(packed)),
        "{{script}}": script,
    }
    page = _asset("explorer.html")
    for mark, text in replaced.items():
        before, after = page.split(mark)
        stream.write(before.encode())
        stream.write(text.encode())
        page = after
    stream.write(page.encode())


def _run(at: int, packed: Packed) -> str:
    header = _as_script(dict(packed.header))
    return (
        f'<script type="application/json" id="run-{at}">{header}</script>\n'
        f'<script type="text/plain" id="columns-{at}">{packed.columns}</script>'
    )


def _as_script(value: Plain) -> str:
    """Return JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = msgspec.json.encode(value).decode("utf-8")
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _escaped(text: str) -> str:
    for sign, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot")):
        text = text.replace(sign, f"&{name};")
    return text


def _policy(style: str, script: str) -> str:
    """Return the content security policy: this style and this script by their hashes, and nothing from anywhere.

    Source: W3C, Content Security Policy Level 3, "hash-source".
    """
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return shipped_text(f"explorer/{name}")
