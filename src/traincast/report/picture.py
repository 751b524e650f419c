"""``step.svg``: a step as a picture, a row for each rank; ``step-dark.svg`` for dark pages. Both on request alone.

Each instant of a rank has the colour of its owner in the breakdown (`traincast.analysis.breakdown`): computation by its
pass, exposed transfers, waiting for messages (bubble) or members of a collective, and what else there is. What is
narrower than a quarter of a unit is drawn with its neighbours of one colour, or left out.
"""

from collections.abc import Collection, Iterable, Iterator
from html import escape
from typing import BinaryIO, NamedTuple

import numpy as np

from traincast.analysis.breakdown import rank_owners
from traincast.analysis.timed_program import TimedProgram
from traincast.report.files import file_report
from traincast.report.operations import choose_ranks, simulated
from traincast.simulation.result import Result
from traincast.units import format_time
from traincast.workload.words import Kind

MOST_RANKS = 64
"""Rows of a picture; of more ranks those that matter are shown."""
_WIDTH, _LEFT, _ROW, _GAP, _TOP = 900, 106, 14, 4, 54
_NARROWEST = 0.25
_COLOURS = {
    "forward": ("#4477aa", "#4a86c5"),
    "backward": ("#66aadd", "#7cc0ef"),
    "weight gradient": ("#99ccee", "#b3dcf7"),
    "recompute": ("#7766bb", "#9d8ce0"),
    "optimizer and other work": ("#228833", "#3fae54"),
    "exposed communication": ("#ee7733", "#f08a4b"),
    "waiting for messages (bubble)": ("#dddddd", "#30363d"),
    "waiting for members": ("#eeccaa", "#7a5c3d"),
    "other": ("#ffffff", "#0d1117"),
}
"""What a colour stands for, on a light page and on a dark one; that of ``other`` is the page's."""


class _Theme(NamedTuple):
    """Colours of a picture."""

    dark: bool
    ink: str
    line: str

    def colour(self, name: str) -> str:
        """Return the colour of what a rank does."""
        return _COLOURS[name][self.dark]


_LIGHT, _DARK = _Theme(False, "#000", "#999"), _Theme(True, "#e6edf3", "#6e7681")
_NAMES = tuple(_COLOURS)
_FIRST_WAIT, _BUBBLE, _NOBODY = 7, 6, 12


@file_report("picture", "step.svg", needs_timeline=True, on_request=True)
def write_picture(result: Result, stream: BinaryIO) -> None:
    """Write the step of a result as an SVG picture.

    Raises
    ------
    ConfigError
        If the result holds no single operations.
    """
    _draw(result, stream, _LIGHT)


@file_report("picture-dark", "step-dark.svg", needs_timeline=True, on_request=True)
def write_dark_picture(result: Result, stream: BinaryIO) -> None:
    """Write the same picture in colours for dark pages (errors as `write_picture`)."""
    _draw(result, stream, _DARK)


def _draw(result: Result, stream: BinaryIO, theme: _Theme) -> None:
    step = simulated(result)
    program, timeline = step.program, step.timeline
    choice = choose_ranks(result, [1] * len(program.rank_R), MOST_RANKS, "rows")
    rows = [(index, list(_spans(step, index))) for index in choice.indices]
    height = _TOP + len(rows) * (_ROW + _GAP) + 34
    said = f"Step {format_time(result.iteration_time_s)}: where the time of {len(rows)} ranks goes"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 10} {height}" role="img" '
        f'font-family="sans-serif" font-size="11" fill="{theme.ink}"><title>{escape(said)}</title>'
        f'<rect width="100%" height="100%" fill="{theme.colour("other")}"/>'
        f'<text x="4" y="14" font-size="13">{escape(said)}</text>'
    )
    stream.write(head.encode())
    stream.write("".join(_legend({name for _, spans in rows for name, *_ in spans}, theme)).encode())
    scale = _WIDTH / timeline.step_s if timeline.step_s > 0 else 0.0
    for number, (index, spans) in enumerate(rows):
        label = f"rank {program.rank_R[index]}, stage {program.stage_R[index]}"
        stream.write("".join(_row(label, spans, scale, _TOP + number * (_ROW + _GAP), theme)).encode())
    stream.write("".join(_axis(result.iteration_time_s, height - 18, theme)).encode() + b"</svg>\n")


def _legend(shown: Collection[str], theme: _Theme) -> Iterator[str]:
    """Yield what the colours of the picture stand for."""
    x, y = 4.0, 24
    for name in _COLOURS:
        if name == "other" or name not in shown:
            continue
        wide = 22 + 6.4 * len(name)
        if x + wide > _LEFT + _WIDTH:
            x, y = 4.0, y + 14
        yield f'<rect x="{x:.0f}" y="{y}" width="10" height="10" fill="{theme.colour(name)}"/>'
        yield f'<text x="{x + 14:.0f}" y="{y + 9}">{escape(name)}</text>'
        x += wide


def _row(label: str, spans: Iterable[tuple[str, float, float]], scale: float, y: int, theme: _Theme) -> Iterator[str]:
    yield f'<text x="4" y="{y + _ROW - 3}">{label}</text>'
    for name, begin_s, end_s in spans:
        x, wide = _LEFT + begin_s * scale, (end_s - begin_s) * scale
        if name != "other" and wide >= _NARROWEST:
            yield f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW}" fill="{theme.colour(name)}"/>'


def _spans(step: TimedProgram, index: int) -> Iterator[tuple[str, float, float]]:
    """Yield what a rank did from when to when; neighbours that are alike are one."""
    program, timeline = step.program, step.timeline
    _, border_B, owner_B = rank_owners(step, index)
    mine = program.rank_slice(index)
    row_N = program.row_N[mine]
    at = np.flatnonzero((program.ops.kind_T[row_N] == Kind.COMPUTE) & (timeline.duration_s_N[mine] > 0))
    at = at[np.argsort(timeline.start_s_N[mine][at], kind="stable")]
    what_B = np.full(len(owner_B), _NAMES.index("other"))
    what_B[(owner_B > 0) & (owner_B < _BUBBLE)] = _NAMES.index("exposed communication")
    what_B[owner_B == _BUBBLE] = _NAMES.index("waiting for messages (bubble)")
    what_B[(owner_B >= _FIRST_WAIT) & (owner_B < _NOBODY)] = _NAMES.index("waiting for members")
    if len(at):
        running = np.searchsorted(timeline.start_s_N[mine][at], border_B[:-1], side="right") - 1
        phase_B = program.ops.phase_T[row_N[at[np.maximum(running, 0)]]]
        what_B = np.where(owner_B == 0, phase_B, what_B)
    bounds = np.flatnonzero(np.diff(what_B, prepend=-1, append=-1))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield _NAMES[int(what_B[begin])], float(border_B[begin]), float(border_B[end])


def _axis(step_s: float, y: int, theme: _Theme) -> Iterator[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + share * _WIDTH
        anchor = "end" if share == 1 else "start" if share == 0 else "middle"
        yield f'<path d="M{x:.0f} {_TOP}V{y}" stroke="{theme.line}" stroke-width="0.5"/>'
        yield f'<text x="{x:.0f}" y="{y + 12}" text-anchor="{anchor}">{escape(format_time(share * step_s))}</text>'
