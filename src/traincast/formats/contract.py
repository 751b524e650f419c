"""The contract of a format: tell a file, describe it, read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from traincast.diagnostics import Note
from traincast.registry import Registry
from traincast.spec.options import LayoutOptions
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


FORMATS: Registry[Format] = Registry("format", "traincast.formats")
