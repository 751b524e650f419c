"""Read the text of an AICB workload of the physical kind: titles, headers, rows; what they say, row by row.

Source: AICB, ``log_analyzer/log.py`` (``LogItem``, ``Workload.dump``), ``utils/utils.py`` (``CommType``,
``CommGroup``) and the files in ``workload/physical``.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import FormatError
from traincast.formats.aicb_physical.sniff import HEADER
from traincast.formats.values import check_lines, filled_lines, read_cell, shown, time_s, whole
from traincast.workload.words import Group, Operation

MESSAGES = ("isend", "irecv")


class PhysicalRow(Struct, frozen=True):
    """One row of the file."""

    line: int
    kind: str
    """``comm_type`` without its class: ``all_reduce``, ``isend``, ``computation``, ``epoch_end`` ..."""
    operation: Operation
    """What the ranks of a group do; NONE for computations, messages and the ends of steps."""
    group: Group
    """Who does it; NONE where nobody else is concerned."""
    ranks: int | None
    """Members of the group, where the file says them."""
    size_bytes: int
    """Payload of the whole group as `Operation` counts it; bytes of a message."""
    gemm: tuple[int, int, int, int] | None
    """Batch, m, n, k of a computation."""
    stage: str
    """Where in the step: ``forward.MegatronRowLinear``."""
    time_s: float | None
    """Seconds it took, where the file is the log of a run."""
    count: int
    """Equal ones, one after the other."""


class Section(Struct, frozen=True):
    """The rows of one rank, which stand for all ranks of its pipeline stage."""

    line: int
    """Line of its title, or of the first header."""
    stage: int | None
    """Pipeline stage; None where the title names none."""
    ranks: int | None
    """Ranks that it stands for; None without a title."""
    rows: tuple[PhysicalRow, ...]
    """In program order, ends of steps included."""


class PhysicalFile(Struct, frozen=True):
    """A whole file: where it came from and the stages that it describes."""

    path: str
    sections: tuple[Section, ...]

    @property
    def rows(self) -> Iterator[PhysicalRow]:
        """Every row of every section."""
        return (row for section in self.sections for row in section.rows)


MOST_LINES = 2**20
"""More lines than other formats may have: a log holds many steps of thousands of rows, most of them alike."""

_COLLECTIVES = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "all_gather_into_tensor": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "reduce_scatter_tensor": Operation.REDUCE_SCATTER,
    "all_to_all": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "barrier": Operation.ALL_REDUCE,
}
_GROUPS = {
    "dp_group": Group.DP,
    "tp_group": Group.TP,
    "pp_group": Group.PP,
    "ep_group": Group.EP,
    "ep_dp_group": Group.EDP,
    "embedding_group": Group.EMB,
    "all": Group.WORLD,
    "all_nodes": Group.WORLD,
}
_KINDS = (*_COLLECTIVES, *MESSAGES, "computation", "epoch_end")
_NEEDED = ("comm_type", "comm_group", "msg_size", "stage")
COLUMNS = (
    *("comm_type", "comm_group", "comm_group_size", "msg_size", "stage", "dst", "src", "additional"),
    *("_elapsed_time", "algbw", "busbw", "count"),
)
_BARRIER_BYTES = 4
"""What a barrier moves: NCCL has none, so it is an all-reduce of one number (torch, ProcessGroupNCCL::barrier)."""
_MOST_BYTES = 2**53
_RANK = re.compile(r"rank(\d{1,9})\b")
_STAGE = re.compile(r"pp_stage(\d{1,9})\b")
_SHAPES = re.compile(r"\(\((\d{1,12}(?: \d{1,12})*)\) \((\d{1,12}(?: \d{1,12})*)\)\)")

T = TypeVar("T")


def parse(path: str, text: str) -> PhysicalFile:
    """Read the text of a file: a header and rows; or a title in brackets before each header, one for every stage.

    Raises
    ------
    FormatError
        With the line in `path`, and the column and value, of the first thing that cannot be read.
    """
    check_lines(text, path, MOST_LINES)
    reader = _Reader(path)
    for line, content in filled_lines(text):
        reader.take(line, content.strip())
    return reader.file()


class _Reader:
    """A walk over the lines of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.columns: dict[str, int] = {}
        self.titles: list[tuple[int, int | None, int | None]] = []
        self.rows: list[list[PhysicalRow]] = []
        self.known: dict[str, PhysicalRow] = {}
        """Rows that were read under the present header, by their text."""

    def take(self, line: int, content: str) -> None:
        if content.startswith("["):
            self._title(line, content)
        elif content.startswith(HEADER):
            self._header(line, content)
        else:
            self._row(line, content)

    def file(self) -> PhysicalFile:
        """Return what was read; sections are in the order of their stages."""
        sections = [Section(*title, tuple(rows)) for title, rows in zip(self.titles, self.rows, strict=True)]
        empty = next((section for section in sections if not section.rows), None)
        if empty is not None or not sections:
            raise FormatError("holds no rows", self.path, empty.line if empty else 1)
        if len(sections) > 1 and {section.stage for section in sections} != set(range(len(sections))):
            raise FormatError(
                f"has {len(sections)} titles; where there is more than one they must be pp_stage0 to "
                f"pp_stage{len(sections) - 1}, each once",
                self.path,
                sections[1].line,
            )
        return PhysicalFile(self.path, tuple(sorted(sections, key=lambda section: section.stage or 0)))

    def _title(self, line: int, content: str) -> None:
        ranks = list(map(int, _RANK.findall(content)))
        if not ranks or not content.endswith("]"):
            text = f"{shown(content)} is not a title such as [rank0 ~ rank7] or [ pp_stage0: [rank0, rank1] ]"
            raise FormatError(text, self.path, line)
        stage = _STAGE.search(content)
        count = max(ranks) - min(ranks) + 1 if "~" in content else len(set(ranks))
        self.titles.append((line, int(stage[1]) if stage else None, count))
        self.rows.append([])
        self.columns = {}

    def _header(self, line: int, content: str) -> None:
        names = [name.strip() for name in content.split(",")]
        unknown = [name for name in names if name not in COLUMNS]
        missing = [name for name in _NEEDED if name not in names]
        if unknown or missing or len(set(names)) < len(names):
            what = (
                f"unknown column {shown(unknown[0])}" if unknown else f"no column {missing[0]}" if missing else "twice"
            )
            raise FormatError(f"the header has {what}; the columns are {', '.join(COLUMNS)}", self.path, line)
        self.columns, self.known = {name: place for place, name in enumerate(names)}, {}
        if not self.titles:
            self.titles.append((line, None, None))
            self.rows.append([])

    def _row(self, line: int, content: str) -> None:
        if not self.columns:
            raise FormatError(f"a header ({HEADER}...) is expected here, not {shown(content)}", self.path, line)
        fields = content.split(",")
        if len(fields) != len(self.columns):
            raise FormatError(f"the row has {len(fields)} cells, the header {len(self.columns)}", self.path, line)
        # Real files repeat a few rows by the thousand.
        known = self.known.get(content)
        row = self.known[content] = self._read(line, fields) if known is None else replace(known, line=line)
        self.rows[-1].append(row)

    def _read(self, line: int, fields: list[str]) -> PhysicalRow:
        def value(name: str, read: Callable[[str], T], absent: str = "None") -> T:
            text = fields[self.columns[name]].strip() if name in self.columns else absent
            return read_cell(read, text, name, self.path, line)

        kind = value("comm_type", _kind)
        collective = kind in _COLLECTIVES
        gemm = value("msg_size", _gemm) if kind == "computation" else None
        sized = collective or kind in MESSAGES
        size_bytes = value("msg_size", lambda size: whole(size, "bytes")) if sized else 0
        return PhysicalRow(
            line=line,
            kind=kind,
            operation=_COLLECTIVES.get(kind, Operation.NONE),
            group=value("comm_group", _group) if sized else Group.NONE,
            ranks=value("comm_group_size", _or_none(whole)) if collective else None,
            size_bytes=_BARRIER_BYTES if kind == "barrier" else size_bytes,
            gemm=gemm,
            stage=value("stage", str),
            time_s=value("_elapsed_time", _or_none(lambda time: time_s(time, 1e3, "ms"))),
            count=value("count", whole, "1"),
        )


def _kind(text: str) -> str:
    kind = text.removeprefix("CommType.")
    if kind not in _KINDS:
        raise ValueError(f"unknown operation {shown(text)}; known: {', '.join(_KINDS)}")
    return kind


def _group(text: str) -> Group:
    name = text.removeprefix("CommGroup.")
    if name == "ep_tp_group":
        raise ValueError("ep_tp_group: a group that spans tp and ep is not modelled")
    if name not in _GROUPS:
        raise ValueError(f"unknown group {shown(text)}; known: {', '.join(_GROUPS)}")
    return _GROUPS[name]


def _or_none(read: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: None if text in ("None", "") else read(text)


def _gemm(text: str) -> tuple[int, int, int, int]:
    """Read the shapes of the two factors of a GEMM as batch, m, n, k."""
    match = _SHAPES.fullmatch(text)
    shapes = [list(map(int, each.split())) for each in match.groups()] if match else []
    if not shapes or min(map(min, shapes)) < 1 or len(shapes[1]) < 2 or shapes[0][-1] != shapes[1][-2]:
        raise ValueError(f"{shown(text)} is not two shapes that can be multiplied, such as ((4096 1 640) (640 5120))")
    batch, k, n = math.prod(shapes[1][:-2]), shapes[1][-2], shapes[1][-1]
    rows, rest = divmod(math.prod(shapes[0][:-1]), batch)
    if rest or rows * n * k * batch >= _MOST_BYTES:
        raise ValueError(f"{shown(text)} is not two shapes that can be multiplied, or too large")
    return batch, max(1, rows), n, k
