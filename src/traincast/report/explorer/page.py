"""The page itself: its parts, what it shows, and a policy that lets it ask for nothing."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from traincast.report.explorer.columns import Packed, packed_run
from traincast.report.explorer.sources import EXPLORER, joined, source
from traincast.report.plain import Plain
from traincast.simulation.result import Result

_STEP = ("explorer.html", (*EXPLORER, "main"))
_POINTS = ("points.html", ("shared", "points"))
"""Each page and its scripts, in the order they run."""
_STYLES = ("palette", "parts", "explorer")


def write_page(runs: Sequence[tuple[str, Result]], stream: BinaryIO) -> None:
    """Write a page that shows one run, or two side by side, each a name and a result with its operations.

    Raises
    ------
    ConfigError
        If a result holds no single operations.
    """
    packed = [packed_run(result, name) for name, result in runs]
    title, data = " and ".join(name for name, _ in runs), [_run(at, each) for at, each in enumerate(packed)]
    for piece in _filled(*_STEP, title, "\n".join(data)):
        stream.write(piece.encode())


def points_page(title: str, data: dict[str, Plain]) -> str:
    """Return a page of many jobs, which charts them and lists them (`traincast.report.explorer.points`)."""
    given = f'<script type="application/json" id="points">{_as_script({"title": title, **data})}</script>'
    return "".join(_filled(*_POINTS, title, given))


def _filled(page: str, scripts: Sequence[str], title: str, data: str) -> Iterator[str]:
    """Yield a page in pieces."""
    style, script = joined(_STYLES, "css"), joined(scripts, "js")
    replaced = {
        "{{policy}}": _policy(style, script),
        "{{title}}": _escaped(title),
        "{{style}}": style,
        "{{data}}": data,
        "{{script}}": script,
    }
    rest = source(page)
    for mark, text in replaced.items():
        before, rest = rest.split(mark)
        yield from (before, text)
    yield rest


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
