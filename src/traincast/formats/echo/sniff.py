"""Tell a rank trace by its first line."""

import re

from traincast.errors import FormatError
from traincast.formats.contract import Sniff

HEAD = re.compile(r"(rank|stage):(0|[1-9][0-9]{0,8}):([A-Za-z_][A-Za-z0-9_]{0,63})\(", re.ASCII)
"""How a line starts."""


def looks_like(head: str) -> Sniff:
    """Tell how sure it is that a text begins a rank trace or a scheduling plan."""
    line, _, more = head.removeprefix("\ufeff").lstrip().partition("\n")
    if HEAD.match(line) is None:
        return Sniff(0.0, "the first line does not begin like rank:0:forward_step(")
    # Most files hold another format, and do not wait for the grammar of this one.
    from traincast.formats.echo.grammar import parse_line

    try:
        parse_line(line, "", 1)
    except FormatError as problem:
        if not more and "duration=" in line:
            return Sniff(0.8, "begins like a rank trace; its first line goes on beyond the text seen")
        return Sniff(0.5, f"begins like a rank trace, but the first line cannot be read{problem}")
    return Sniff(0.98, "the first line is an operation of a rank trace")
