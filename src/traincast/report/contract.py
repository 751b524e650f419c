"""The contract of a file report: a name, a file name, and what writes the bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from traincast.registry import Registry
from traincast.simulation.result import Result

Writer = Callable[[Result, BinaryIO], None]
"""Writes a result to a binary stream; the same result gives the same bytes."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """One kind of output file.

    Parameters
    ----------
    name : str
        Name in `REPORTS`: ``"json"``.
    filename : str
        File in the output directory: ``"result.json"``.
    write : Writer
        What writes it.
    needs_timeline : bool
        Whether it shows single operations; a result read back from JSON has none.
    """

    name: str
    filename: str
    write: Writer
    needs_timeline: bool = False


REPORTS: Registry[FileReport] = Registry("report", "traincast.report")


def file_report(name: str, filename: str, *, needs_timeline: bool = False) -> Callable[[Writer], Writer]:
    """Return a decorator that enters a writer in `REPORTS`.

    Parameters
    ----------
    name, filename, needs_timeline
        As in `FileReport`.

    Returns
    -------
    callable
        Decorator that returns the writer as it was.
    """

    def enter(write: Writer) -> Writer:
        REPORTS.register(name)(FileReport(name, filename, write, needs_timeline))
        return write

    return enter
