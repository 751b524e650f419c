"""The files of a run: what their names say, which belong together, and what each rank did.

Source of the names: fwyc0573/Megatron-LM, the tracer's output paths, such as
``wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer_rank0_20240923205004.txt`` and
``pp1_tp1_exp4_expn8_dp16_nl8_hs2048_sl2048/wd16_tp1_pp1_exp4_expNum8_l8_bs1_rank3_20250301101500.txt``.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from glob import escape
from itertools import pairwise, takewhile
from pathlib import Path

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.echo.grammar import CallReader, load
from traincast.formats.echo.lines import TraceOp
from traincast.formats.open import expand_inputs
from traincast.progress import told
from traincast.units import counted, format_time

SAME_RUN = timedelta(seconds=30)
"""Files of one prefix whose stamps follow each other within it are one run; nodes differ by about 1 s."""

MANY_RANKS = 1000
"""Ranks from which progress is told: a thousand take some seconds."""

_BACKWARDS_S = 0.001
_JUMP_S = 3600.0
"""Longest time that may lie between two operations of a step, whatever its length."""
_JUMP_RATIO = 1000.0
"""Times what the file has traced so far that a longer pause may take: a step of days has pauses of hours."""
_SHOWN_RUNS = 8

_MARKS = {
    **{name: name for name in ("tp", "pp", "dp", "cp", "ep", "etp", "shard", "rank")},
    **{"wd": "world", "exp": "ep", "expNum": "experts", "expn": "experts", "numl": "layers", "nl": "layers"},
    **{"l": "layers", "bs": "micro_batch", "hs": "hidden", "sl": "sequence"},
}
_WORD = re.compile(r"([A-Za-z]+)([0-9]{1,9})", re.ASCII)
_STAMP = re.compile(r"20[0-9]{12}", re.ASCII)
_OF_ONE_RANK = re.compile(r"20[0-9]{12}|(?:rank|stage)[0-9]{1,9}", re.ASCII)


class FileName(Struct, frozen=True, kw_only=True):
    """What a file's name and, where that is silent, its folder's say; None where neither does."""

    prefix: str
    """The name without what differs between the ranks of a run."""
    world: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    shard: int | None = None
    experts: int | None = None
    layers: int | None = None
    micro_batch: int | None = None
    hidden: int | None = None
    sequence: int | None = None
    rank: int | None = None
    stamp: datetime | None = None
    """When the trace was written."""


def parse_name(path: Path) -> FileName:
    """Read a file's name, completed by that of its folder; nothing in a name is an error."""
    numbers = {key: value for key, value in _numbers(path.parent.name).items() if key != "rank"}
    numbers.update(_numbers(path.stem))
    words = path.stem.split("_")
    stamp = next((found for word in words if (found := _stamp(word)) is not None), None)
    prefix = "_".join(word for word in words if _OF_ONE_RANK.fullmatch(word) is None)
    return FileName(prefix=prefix, stamp=stamp, **numbers)


def _numbers(name: str) -> dict[str, int]:
    """Return the numbers of a name by the fields of `FileName`; the first of a kind counts."""
    found: dict[str, int] = {}
    for word in name.split("_"):
        match = _WORD.fullmatch(word)
        # a degree or size of zero says nothing; ranks count from zero
        if match is not None and match[1] in _MARKS and (int(match[2]) or match[1] == "rank"):
            found.setdefault(_MARKS[match[1]], int(match[2]))
    return found


def _stamp(word: str) -> datetime | None:
    try:
        return datetime.strptime(word, "%Y%m%d%H%M%S") if _STAMP.fullmatch(word) else None  # no zone: only gaps count
    except ValueError:
        return None


class RankTrace(Struct, frozen=True):
    """One file: what one rank did."""

    path: Path
    rank: int
    """Rank, or stage in a plan of scope ``stage``."""
    ops: tuple[TraceOp, ...]
    name: FileName
    warnings: tuple[Note, ...] = ()
    """What looks wrong in the file as a whole."""

    def named(self, name: str) -> list[TraceOp]:
        """Return the operations of that name, in order."""
        return [op for op in self.ops if op.op == name]

    @property
    def stage(self) -> int | None:
        """Stage that the lines say; None where they are silent."""
        return next((op.stage_id for op in self.ops if op.stage_id is not None), None)

    @property
    def first_start_s(self) -> float | None:
        """Earliest start on the host's clock in seconds; None where the file has no times."""
        return min((op.start_s for op in self.ops if op.start_s is not None), default=None)


class Run(Struct, frozen=True):
    """The traces of one run."""

    key: str
    """Prefix of the names, with the first stamp where there is one."""
    traces: dict[int, RankTrace]
    """By rank in rising order."""
    is_profile: bool = False
    """One GPU played the ranks: its communication times mean nothing."""

    @property
    def first(self) -> RankTrace:
        """The trace of the lowest rank."""
        return self.traces[min(self.traces)]

    @property
    def is_forecast(self) -> bool:
        """Whether all of it was simulated."""
        return all(op.is_forecast for op in self.ops)

    @property
    def ops(self) -> Iterator[TraceOp]:
        """Operations of all ranks, one rank after the other."""
        return (op for trace in self.traces.values() for op in trace.ops)

    @property
    def microbatches(self) -> int:
        """Microbatches of the traced step."""
        return max(1, len(self.first.named("forward_step")))


def read_trace(path: Path, calls: CallReader | None = None) -> RankTrace:
    """Read a rank trace or scheduling plan, and check that it is about one rank: that of its lines.

    Raises
    ------
    FormatError
        If a line cannot be read, is of another rank than the first, or has a time that one step
        cannot hold together with those before.
    """
    ops, name = load(path, calls), parse_name(path)
    first = ops[0]
    for op in ops:
        if (op.scope, op.rank) != (first.scope, first.rank):
            text = f"{op.scope} {op.rank} in a file of {first.scope} {first.rank}"
            raise FormatError(f"{text}; give the lines of each rank in a file", str(path), op.line)
    _refuse_jumps(ops)
    warnings = _backward_clock(ops)
    if first.scope == "rank" and name.rank not in {None, first.rank}:
        text = f"the name says rank {name.rank}, the lines rank {first.rank}; the lines count"
        warnings.append(Note("rank-in-name", text, f"{path}:{first.line}"))
    return RankTrace(path, first.rank, ops, name, tuple(warnings))


def only_run(paths: Sequence[Path]) -> Run:
    """Return the one run of some files; the error where they are of several has a pattern for each."""
    runs = read_runs(paths)
    if len(runs) > 1:
        files = [trace.path for run in runs for trace in run.traces.values()]
        shown = [f"{_pattern_of(run, files)!r} ({counted(len(run.traces), 'rank')})" for run in runs[:_SHOWN_RUNS]]
        shown += [f"and {len(runs) - _SHOWN_RUNS} more"] if len(runs) > _SHOWN_RUNS else []
        text = f"the files are of {len(runs)} runs; give those of one, by a pattern in quotes: {', '.join(shown)}"
        raise FormatError(text, str(paths[0]))
    return runs[0]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read files, folders and patterns, and group what they hold into runs, sorted by key.

    The names of a run have one prefix and stamps that follow each other within `SAME_RUN`; names without a stamp
    are one run per prefix.

    Raises
    ------
    FormatError
        If a file cannot be read, or a rank comes twice in one run; names both files.
    """
    files = expand_inputs(paths)
    calls = CallReader()
    traces = [read_trace(file, calls) for file in told(f"reading {len(files):,} rank traces", files, MANY_RANKS)]
    parts: list[list[RankTrace]] = []
    for trace in sorted(traces, key=lambda each: (each.name.prefix, each.name.stamp or datetime.min, each.rank)):
        if not parts or not _are_one_run(parts[-1][-1].name, trace.name):
            parts.append([])
        parts[-1].append(trace)
    return sorted(map(_run, parts), key=lambda run: run.key)


def _are_one_run(name: FileName, following: FileName) -> bool:
    pause = (following.stamp or datetime.min) - (name.stamp or datetime.min)
    return name.prefix == following.prefix and pause <= SAME_RUN


def _run(traces: list[RankTrace]) -> Run:
    by_rank: dict[int, RankTrace] = {}
    for trace in sorted(traces, key=lambda each: (each.rank, str(each.path))):
        if trace.rank in by_rank:
            message = f"rank {trace.rank} is also in {by_rank[trace.rank].path}; give the files of one run"
            raise FormatError(message, str(trace.path))
        by_rank[trace.rank] = trace
    name = traces[0].name
    return Run(name.prefix if name.stamp is None else f"{name.prefix}_{name.stamp:%Y%m%d%H%M%S}", by_rank)


def _pattern_of(run: Run, files: Sequence[Path]) -> str:
    """Return a pattern that a run's files match and no other of those given; where there is none, its first file."""
    mine = [trace.path for trace in run.traces.values()]
    words = [re.split(r"([_.])", path.name) for path in mine]
    if len(set(map(len, words))) > 1 or len({path.parent for path in mine}) > 1:
        return escape(str(mine[0]))
    name = "".join(map(_alike, zip(*words, strict=True)))
    pattern = str(Path(escape(str(mine[0].parent))) / name)
    others = set(files) - set(mine)
    return escape(str(mine[0])) if any(fnmatchcase(str(path), pattern) for path in others) else pattern


def _alike(words: tuple[str, ...]) -> str:
    """Return a pattern of words: what they begin with, then a star where they differ."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*words, strict=False))
    return escape(words[0]) if len(set(words)) == 1 else escape("".join(letters[0] for letters in alike)) + "*"


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
                raise _jump(op, f"{format_time(pause_s)} before")
            if last_s - op.end_s > _JUMP_S:
                raise _jump(op, f"-{format_time(last_s - op.end_s)} at")
        for sub in op.sub_ops:
            # a time stamp of 0 is left open, as that of an operation is
            outside_s = max(op.start_s - sub.end_s, sub.end_s - op.end_s) if sub.end_s else 0.0
            if outside_s > _JUMP_S:
                raise _jump(op, f"{format_time(outside_s)} at a sub-operation of")
        last_s, traced_s = op.end_s, traced_s + (op.duration_s or 0.0)


def _jump(op: TraceOp, by: str) -> FormatError:
    message = (
        f"the clock jumps by {by} {op.raw_op}; one step cannot hold it: is the time stamp damaged, or are two steps in "
        "one file?"
    )
    return FormatError(message, op.path, op.line)


def _backward_clock(ops: Sequence[TraceOp]) -> list[Note]:
    """Warn of ends that lie before the end of the line above: lines are in the order of the program."""
    ends = [(op.end_s, op) for op in ops if op.end_s is not None]
    back = [(earlier - end_s, op) for (earlier, _), (end_s, op) in pairwise(ends) if earlier > end_s + _BACKWARDS_S]
    if not back:
        return []
    most_s, op = max(back, key=lambda item: item[0])
    times = "once" if len(back) == 1 else f"{len(back)} times"
    text = f"the clock goes back {times}, the most by {most_s * 1e3:.2f} ms here"
    return [Note("clock-goes-back", text, f"{op.path}:{op.line}")]
