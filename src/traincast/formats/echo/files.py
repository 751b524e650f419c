"""The files of a run: which belong together, and what each rank did."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from glob import escape
from itertools import pairwise, takewhile
from pathlib import Path

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.echo.facts import FileName, parse_name
from traincast.formats.echo.grammar import load
from traincast.formats.echo.lines import TraceOp
from traincast.formats.open import expand_inputs
from traincast.units import counted, format_time

SAME_RUN = timedelta(seconds=30)
"""Files of one prefix whose stamps follow each other within it are one run; nodes differ by about 1 s."""

_BACKWARDS_S = 0.001
_JUMP_S = 3600.0
"""Longest time that may lie between two operations of a step, whatever its length."""
_SHOWN_RUNS = 8
_JUMP_RATIO = 1000.0
"""Times what the file has traced so far that a longer pause may take: a step of days has pauses of hours."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One file: what one rank did."""

    path: Path
    rank: int
    """Rank, or stage in a plan of scope ``stage``."""
    ops: tuple[TraceOp, ...]
    name: FileName
    notes: tuple[Note, ...] = ()
    """Oddities found while reading."""

    @property
    def first_start_s(self) -> float | None:
        """Earliest start on the host's clock in seconds; None where the file has no times."""
        return min((op.start_s for op in self.ops if op.start_s is not None), default=None)

    @property
    def last_end_s(self) -> float | None:
        """Latest end on the host's clock in seconds; None where the file has no times."""
        return max((op.end_s for op in self.ops if op.end_s is not None), default=None)


@dataclass(frozen=True, slots=True)
class Run:
    """The traces of one run, by rank in rising order."""

    key: str
    """Prefix of the names, with the first stamp where there is one."""
    traces: dict[int, RankTrace]


def read_trace(path: Path) -> RankTrace:
    """Read one file and check that it is about one rank.

    Parameters
    ----------
    path : Path
        Rank trace or scheduling plan.

    Returns
    -------
    RankTrace
        The rank is that of the lines; `notes` says where a clock goes back or the name differs.

    Raises
    ------
    FormatError
        If a line cannot be read, is of another rank than the first, or has a time that one step
        cannot hold together with those before.
    """
    ops, name = load(path), parse_name(path)
    first = ops[0]
    for op in ops:
        if (op.scope, op.rank) != (first.scope, first.rank):
            message = (
                f"{op.scope} {op.rank} in a file of {first.scope} {first.rank}; give the lines of each rank in a file"
            )
            raise FormatError(message, str(path), op.line)
    _refuse_jumps(ops)
    notes = _clock_notes(ops)
    if first.scope == "rank" and name.rank not in {None, first.rank}:
        text = f"the name says rank {name.rank}, the lines rank {first.rank}; the lines count"
        notes.append(Note("rank-in-name", text, f"{path}:{first.line}"))
    return RankTrace(path, first.rank, ops, name, tuple(notes))


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read files, folders and patterns, and group what they hold into runs (see `group_runs`)."""
    return group_runs([read_trace(path) for path in expand_inputs(paths)])


def only_run(paths: Sequence[Path]) -> Run:
    """Return the one run of some files.

    Raises
    ------
    FormatError
        If they are of several runs; the message has a pattern for each.
    """
    runs = read_runs(paths)
    if len(runs) > 1:
        files = [trace.path for run in runs for trace in run.traces.values()]
        each = [f"{pattern_of(run, files)!r} ({counted(len(run.traces), 'rank')})" for run in runs[:_SHOWN_RUNS]]
        more = [f"and {len(runs) - _SHOWN_RUNS} more"] if len(runs) > _SHOWN_RUNS else []
        shown = ", ".join([*each, *more])
        text = f"the files are of {len(runs)} runs; give those of one, by a pattern in quotes: {shown}"
        raise FormatError(text, str(paths[0]))
    return runs[0]


def group_runs(traces: Sequence[RankTrace]) -> list[Run]:
    """Group traces into runs: names of one prefix, stamps that follow each other within `SAME_RUN`.

    Parameters
    ----------
    traces : sequence of RankTrace
        In any order. Names without a stamp are one run per prefix.

    Returns
    -------
    list of Run
        Sorted by key.

    Raises
    ------
    FormatError
        If a rank comes twice in one run; names both files.
    """
    by_prefix: dict[str, list[RankTrace]] = defaultdict(list)
    for trace in traces:
        by_prefix[trace.name.prefix].append(trace)
    runs = [_run(part) for alike in by_prefix.values() for part in _split_by_stamp(alike)]
    return sorted(runs, key=lambda run: run.key)


def pattern_of(run: Run, files: Sequence[Path]) -> str:
    """Return a pattern that a run's files match and no other of some files, for a command line.

    Parameters
    ----------
    run : Run
        The run.
    files : sequence of Path
        Those that were given, its own among them.

    Returns
    -------
    str
        The words of the names in which its files differ become ``*``. Where other files match that as
        well, it is the run's first file.
    """
    mine = [trace.path for trace in run.traces.values()]
    folders = {path.parent for path in mine}
    words = zip(*[_words(path.name) for path in mine], strict=False)
    name = "".join(_alike(each) for each in words)
    if len({len(_words(path.name)) for path in mine}) > 1 or len(folders) > 1:
        return escape(str(mine[0]))
    pattern = str(Path(escape(str(mine[0].parent))) / name)
    others = set(files) - set(mine)
    return escape(str(mine[0])) if any(fnmatchcase(str(path), pattern) for path in others) else pattern


def _words(name: str) -> list[str]:
    return re.split(r"([_.])", name)


def _alike(words: tuple[str, ...]) -> str:
    """Return a pattern of words: what they begin with, then a star where they differ."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*words, strict=False))
    return escape(words[0]) if len(set(words)) == 1 else escape("".join(letters[0] for letters in alike)) + "*"


def _split_by_stamp(traces: list[RankTrace]) -> list[list[RankTrace]]:
    parts = [part] if (part := [trace for trace in traces if trace.name.stamp is None]) else []
    stamped = [(trace.name.stamp, trace) for trace in traces if trace.name.stamp is not None]
    last = None
    for stamp, trace in sorted(stamped, key=lambda item: (item[0], item[1].rank)):
        if last is None or stamp - last > SAME_RUN:
            parts.append([])
        parts[-1].append(trace)
        last = stamp
    return parts


def _run(traces: list[RankTrace]) -> Run:
    by_rank: dict[int, RankTrace] = {}
    for trace in sorted(traces, key=lambda each: (each.rank, str(each.path))):
        if trace.rank in by_rank:
            message = f"rank {trace.rank} is also in {by_rank[trace.rank].path}; give the files of one run"
            raise FormatError(message, str(trace.path))
        by_rank[trace.rank] = trace
    name = traces[0].name
    return Run(name.prefix if name.stamp is None else f"{name.prefix}_{name.stamp:%Y%m%d%H%M%S}", by_rank)


def _refuse_jumps(ops: Sequence[TraceOp]) -> None:
    """Refuse time stamps hours away from those before: the step would seem to last as long."""
    last_s: float | None = None
    traced_s = 0.0
    for op in ops:
        if op.start_s is None or op.end_s is None:
            continue
        if last_s is not None:
            pause_s = op.start_s - last_s
            if pause_s > max(_JUMP_S, _JUMP_RATIO * traced_s):
                raise _jump(op, f"the clock jumps by {format_time(pause_s)} before {op.raw_op}")
            if last_s - op.end_s > _JUMP_S:
                raise _jump(op, f"the clock jumps by -{format_time(last_s - op.end_s)} at {op.raw_op}")
        for sub in op.sub_ops:
            # a time stamp of 0 is left open, as that of an operation is
            outside_s = max(op.start_s - sub.end_s, sub.end_s - op.end_s) if sub.end_s else 0.0
            if outside_s > _JUMP_S:
                raise _jump(op, f"the clock jumps by {format_time(outside_s)} at a sub-operation of {op.raw_op}")
        last_s, traced_s = op.end_s, traced_s + (op.duration_s or 0.0)


def _jump(op: TraceOp, what: str) -> FormatError:
    message = f"{what}; one step cannot hold it: is the time stamp damaged, or are two steps in one file?"
    return FormatError(message, op.path, op.line)


def _clock_notes(ops: Sequence[TraceOp]) -> list[Note]:
    """Remark ends that lie before the end of the line above: lines are in the order of the program."""
    ends = [(op.end_s, op) for op in ops if op.end_s is not None]
    back = [(earlier - end_s, op) for (earlier, _), (end_s, op) in pairwise(ends) if earlier > end_s + _BACKWARDS_S]
    if not back:
        return []
    most_s, op = max(back, key=lambda item: item[0])
    times = "once" if len(back) == 1 else f"{len(back)} times"
    text = f"the clock goes back {times}, the most by {most_s * 1e3:.2f} ms here"
    return [Note("clock-goes-back", text, f"{op.path}:{op.line}")]
