"""A result in a notebook: its step, where the time goes, what made it slow and what would help, as a little HTML.

Everything that comes from an input is escaped. Text has the colour of the page around it; parts have the same
colours in every result, told from each other on light and dark pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from traincast.units import format_share, format_time

if TYPE_CHECKING:
    from traincast.simulation.result import Result

_CELL = 'style="text-align:left;padding:0 1em 0 0"'
_SEGMENT = '<div title="{text}" style="background:{colour};height:1.2em;width:{width:.2f}%"></div>'
_MARK = '<span style="background:{colour};display:inline-block;height:0.8em;width:0.8em"></span>'
_COLOURS = {"compute": "#4477aa", "bubble": "#999999", "other": "#bb9966"} | {
    **{"exposed_tp": "#ee7733", "exposed_cp": "#cc3311", "exposed_ep": "#aa4499", "exposed_pp": "#228833"},
    **{"exposed_dp": "#ccaa00"},
}
"""Of the owners of an instant of the step."""


def colour_of(part: str) -> str:
    """Return the colour of a part of the step, the same in every result."""
    return _COLOURS.get(part, "#777777")


def html_of(result: "Result") -> str:
    """Return a result as HTML without scripts and without anything to load."""
    return f"<div>{''.join(_parts(result))}</div>"


def _parts(result: "Result") -> Iterator[str]:
    step_s = result.iteration_time_s
    layout = ", ".join(f"{name} {value}" for name, value in asdict(result.parallel).items())
    yield f"<p><b>Step {escape(format_time(step_s))}</b>{_facts(result)}<br>{escape(layout)}</p>"
    yield _breakdown({name: time_s for name, time_s in result.breakdown_s.items() if time_s > 0}, step_s)
    yield _list("Causes", [f"{each.name}: {format_time(each.saving_s)}; {each.evidence}" for each in result.causes])
    yield _list(
        "What to change",
        [
            f"{each.name} saves {format_time(each.saving_s)}: {each.spelled}"
            for each in result.advice
            if each.taken and each.same_numbers
        ],
    )
    yield _list(
        "What would help most", [f"{each.change} saves {format_time(each.saving_s)}" for each in result.suggestions]
    )
    yield _list("What if", [f"{each.change}: {format_time(each.iteration_time_s)}" for each in result.what_if])
    yield _list("Warnings", [note.text for note in result.warnings])


def _breakdown(part_s: Mapping[str, float], step_s: float) -> str:
    """Return the step as a bar of its parts, and a table of them in the colours of the bar."""
    segments, rows = [], []
    for name, time_s in part_s.items():
        colour, share = colour_of(name), time_s / step_s
        cells = (name.replace("_", " "), format_time(time_s), format_share(share))
        segments.append(_SEGMENT.format(text=escape(f"{cells[0]} {cells[2]}"), colour=colour, width=100 * share))
        body = "".join(f"<td {_CELL}>{escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr><td>{_MARK.format(colour=colour)}</td>{body}</tr>")
    bar = f'<div style="display:flex;max-width:40em">{"".join(segments)}</div>'
    return f"{bar}<table>{''.join(rows)}</table>"


def _facts(result: "Result") -> str:
    found = []
    if result.measured_s is not None:
        found.append(f"measured {format_time(result.measured_s)}")
    if result.interval is not None:
        low, high = format_time(result.interval.low_s), format_time(result.interval.high_s)
        found.append(f"{low} to {high} ({format_share(result.interval.level)})")
    if result.mfu is not None:
        found.append(f"MFU {format_share(result.mfu)}")
    if result.job is not None:
        found.append(result.job.model)
    if result.cluster.name:
        found.append(f"on {result.cluster.name}")
    return "".join(f", {escape(each)}" for each in found)


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<p><b>{escape(title)}</b></p><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
