"""Draw the pictures of the pages again: ``python tools/pictures.py``.

The steps are those of the bundled measured run; the life of a step is drawn from the words below.
"""

import io
from collections.abc import Iterator
from html import escape
from pathlib import Path

import traincast
from traincast.report.picture import write_dark_picture, write_picture

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
LIFE = (
    ("workload", "what ranks do, written once:", "operations, groups, edges"),
    ("program", "laid out by a schedule over", "the ranks that differ"),
    ("costs", "a time for what was not", "measured, with its source"),
    ("timeline", "engine and overlap, in", "rounds until they agree"),
    ("result", "breakdown, interval,", "stragglers, assumptions"),
)
"""What a step is, one after the other, and what that means."""
SOURCES = (
    ("files", "AICB, Chakra, traces: formats/"),
    ("a job", "model, layout, software: model/, job/"),
    ("a cluster", "GPUs, links, fabric: hardware/, fabric/"),
)
"""What goes in, at which of them."""
ACTS = ("lay_out", "time_layout", "Loop.settle", "account")
_WIDE, _HIGH, _APART = 182, 62, 26
_STYLE = (
    "<style>text{fill:#1f2328;font:12px sans-serif}.n{font-weight:bold;font-size:14px}.f{font:11px monospace}"
    ".b{fill:#ddf4ff;stroke:#54aeff}.s{fill:#fff8c5;stroke:#d4a72c}path{stroke:#57606a;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#0c2d6b;stroke:#388bfd}.s{fill:#3b2300;stroke:#bb8009}"
    "path{stroke:#8b949e}}</style>"
)


def life() -> str:
    """Return the picture of the life of a step; its colours follow the reader's."""
    width = len(LIFE) * (_WIDE + _APART) - _APART + 4
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 190" role="img">'
    return f"{head}<title>The life of a step</title>{_STYLE}{''.join(_sources())}{''.join(_stages())}</svg>\n"


def _box(kind: str, x: float, y: float, high: float, *lines: str) -> Iterator[str]:
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDE}" height="{high}" rx="6"/>'
    for number, line in enumerate(lines):
        name = ' class="n"' if number == 0 else ""
        yield f'<text{name} x="{x + _WIDE / 2}" y="{y + 19 + 17 * number}" text-anchor="middle">{escape(line)}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    head = "l-6 -4m6 4l-6 4" if y == to_y else "l-4 -6m4 6l4 -6"
    return f'<path d="M{x} {y}L{to_x} {to_y}{head}"/>'


def _sources() -> Iterator[str]:
    for (name, what), column in zip(SOURCES, (0, 1, 2), strict=True):
        x = 2 + column * (_WIDE + _APART)
        lines = what.split(": ")
        yield from _box("s", x, 2, 58, name, *lines)
        to_x = 2 + _WIDE / 2 + (0 if column < 2 else column) * (_WIDE + _APART)
        yield _arrow(x + _WIDE / 2 - (60 if column == 1 else 0), 60, to_x + (60 if column == 1 else 0), 96)


def _stages() -> Iterator[str]:
    for number, lines in enumerate(LIFE):
        x = 2 + number * (_WIDE + _APART)
        yield from _box("b", x, 98, _HIGH, *lines)
        if number:
            yield _arrow(x - _APART, 98 + _HIGH / 2, x, 98 + _HIGH / 2)
            middle = x - _APART / 2
            yield f'<text class="f" x="{middle}" y="180" text-anchor="middle">{ACTS[number - 1]}</text>'


def main() -> None:
    """Write docs/pictures/*.svg."""
    run = ROOT / "examples" / "megatron_pp4_tp2"
    measured, mended = traincast.simulate(run), traincast.simulate(run, compute_slowdown={7: 0.45})
    drawn = {"life_of_a_step.svg": life().encode()}
    for name, result, write in (
        ("slow_rank.svg", measured, write_picture),
        ("slow_rank_dark.svg", measured, write_dark_picture),
        ("slow_rank_mended.svg", mended, write_picture),
    ):
        stream = io.BytesIO()
        write(result, stream)
        drawn[name] = stream.getvalue()
    for name, content in drawn.items():
        (PICTURES / name).write_bytes(content)
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
