"""The contract of a format: tell a file, describe it, read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.job.options import LayoutOptions
from traincast.registry import Registry
from traincast.workload.experts import ExpertLoads
from traincast.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Sniff:
    """How sure a format is that a file is its own: 0 is no, 1 is certain, with the reason."""

    confidence: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One line of an inspection's totals: communications of one group, or compute of one phase."""

    group: str
    """``compute`` or a group's name."""
    what: str
    """Phase of the compute (``forward``), or operation of the communication (``all_gather``)."""
    count: int
    size_bytes: int
    """Bytes; 0 for compute."""
    time_s: float | None
    """Seconds written in the file; None where it says none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a file is, in the words of ``traincast inspect``."""

    path: str
    format: str
    generation: str
    """Version or producer of the file, as far as it can be told."""
    confidence: float
    evidence: tuple[str, ...]
    """Why the generation is believed."""
    counts: dict[str, int]
    """Rows, blocks, layers and the like."""
    layout: dict[str, int | str | None]
    """What the file says of its layout; None where it is silent."""
    totals: tuple[Total, ...]
    oddities: tuple[Note, ...]
    """Everything unusual, each with its ``file:line``."""
    taken_by: str = ""
    """Which command takes the file, where it is no workload."""


class Format(Protocol):
    """One file format; an instance is registered in `FORMATS` under its name."""

    name: str
    title: str
    """What a file of it is, in the words of a message: ``NeuSight operator forecast``."""
    options: frozenset[str]
    """Fields of `LayoutOptions` that mean something to it; the user may set no other one."""

    def sniff(self, path: Path, head: str) -> Sniff:
        """Tell from the first 64 KiB (text without a byte-order mark, undecodable bytes replaced) how sure it is."""

    def inspect(self, path: Path) -> Inspection:
        """Describe the file. Raises FormatError with the line of the first thing that cannot be read."""

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> Workload:
        """Read files of one run into the intermediate form."""


ReadRun = Callable[[Sequence[Path], str, LayoutOptions], Workload]
"""Reads the files of one run, given the name of their format and what to override of their layout."""


@dataclass(slots=True, kw_only=True, eq=False)
class FileFormat:
    """A format that is made of functions, as all are that come with traincast."""

    name: str
    title: str
    options: frozenset[str]
    looks_like: Callable[[str], Sniff]
    """Tells from the beginning of a file how sure it is."""
    describe: Callable[[Path], Inspection]
    read_run: ReadRun
    expert_loads: Callable[[Sequence[Path], int | None], tuple[ExpertLoads, Note]] | None = None
    """Of traces: the tokens that each expert rank of a run got, over the mean, and what is to be said of them."""

    def sniff(self, path: Path, head: str) -> Sniff:  # noqa: ARG002
        """Tell from the beginning of a file how sure it is."""
        return self.looks_like(head)

    def inspect(self, path: Path) -> Inspection:
        """Describe the file."""
        return self.describe(path)

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> Workload:
        """Read the files of one run."""
        return self.read_run(paths, self.name, options)


def of_one_file(what: str, read: Callable[[Path, str, LayoutOptions], Workload]) -> ReadRun:
    """Return the reader of a format in which one file describes a whole run; it refuses several.

    Parameters
    ----------
    what : str
        Such a file, with its article.
    read : callable
        Reads it, given the name of the format and the options.
    """

    def read_run(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
        if len(paths) != 1:
            raise FormatError(f"{what} is one file for a whole run; give one file", str(paths[1]))
        return read(paths[0], name, options)

    return read_run


FORMATS: Registry[Format] = Registry("format", "traincast.formats")
