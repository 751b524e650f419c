"""A result in a notebook: its step, where the time goes, what made it slow and what would help, as a little HTML.

Everything that comes from an input is escaped. Colours are those of the page around it.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from traincast.units import format_share, format_time

if TYPE_CHECKING:
    from traincast.simulation.result import Result

_CELL = 'style="text-align:left;padding:0 1em 0 0"'
_BAR = '<div style="background:currentColor;opacity:0.45;height:0.8em;width:{width:.1f}em"></div>'
_WIDEST_EM = 20.0


def html_of(result: "Result") -> str:
    """Return a result as HTML without scripts and without anything to load."""
    return f"<div>{''.join(_parts(result))}</div>"


def _parts(result: "Result") -> Iterator[str]:
    step_s = result.iteration_time_s
    layout = ", ".join(f"{name} {value}" for name, value in result.parallel.items())
    yield f"<p><b>Step {escape(format_time(step_s))}</b>{_facts(result)}<br>{escape(layout)}</p>"
    rows = [
        (name.replace("_", " "), format_time(time_s), format_share(time_s / step_s), _WIDEST_EM * time_s / step_s)
        for name, time_s in result.breakdown_s.items()
        if time_s > 0 and step_s > 0
    ]
    body = "".join(
        f"<tr><td {_CELL}>{escape(name)}</td><td {_CELL}>{escape(time)}</td><td {_CELL}>{escape(share)}</td>"
        f"<td {_CELL}>{_BAR.format(width=width)}</td></tr>"
        for name, time, share, width in rows
    )
    yield f"<table>{body}</table>"
    yield _list("Causes", [f"{each.name}: {format_time(each.saving_s)}; {each.evidence}" for each in result.causes])
    yield _list(
        "What would help most", [f"{each.change} saves {format_time(each.saving_s)}" for each in result.suggestions]
    )
    yield _list("What if", [f"{each['change']}: {_step(each['iteration_time_s'])}" for each in result.what_if])
    yield _list("Warnings", [note.text for note in result.warnings])


def _facts(result: "Result") -> str:
    found = []
    if result.measured_s is not None:
        found.append(f"measured {format_time(result.measured_s)}")
    if result.interval is not None:
        low, high = (format_time(result.interval[key]) for key in ("low_s", "high_s"))
        found.append(f"{low} to {high} ({format_share(result.interval['level'])})")
    if result.mfu is not None:
        found.append(f"MFU {format_share(result.mfu)}")
    if result.job is not None:
        found.append(result.job.model)
    if result.cluster.get("name"):
        found.append(f"on {result.cluster['name']}")
    return "".join(f", {escape(each)}" for each in found)


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<p><b>{escape(title)}</b></p><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _step(value: object) -> str:
    return format_time(value) if isinstance(value, int | float) else ""
