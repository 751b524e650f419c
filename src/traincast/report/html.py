"""``report.html``: a step to explore in a browser."""

from typing import BinaryIO

from traincast.report.explorer.page import write_page
from traincast.report.files import file_report
from traincast.simulation.result import Result


@file_report("html", "report.html", needs_timeline=True)
def write_html(result: Result, stream: BinaryIO) -> None:
    """Write the explorer of a step (`traincast.report.explorer`).

    Raises
    ------
    ConfigError
        If the result holds no single operations.
    """
    write_page([(title_of(result), result)], stream)


def title_of(result: Result) -> str:
    """Return what a result is of, in a few words: its model, or its first file."""
    what = result.job.model if result.job else ""
    if not what and result.inputs:
        what = result.inputs[0].path.replace("\\", "/").rsplit("/", 1)[-1]
    return " on ".join(filter(None, (what or "a step", result.cluster.name)))
