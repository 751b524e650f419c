"""Write an AICB file that was read back: byte for byte, but for what the user said otherwise.

Changed are the degrees of the header, the number of microbatches and of rows, and compute times that are others in the
workload than in the file. Everything else, spaces and spellings among it, stays as it was written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.files import read_unpacked
from traincast.formats.aicb.grammar import FIRST_FIELD, PHASES, AicbFile, Column, parse
from traincast.formats.aicb.meaning import Structure, structure
from traincast.formats.contract import read_again
from traincast.formats.values import whole
from traincast.formats.writer import Run, Written
from traincast.units import GIGA
from traincast.workload.words import Kind, Phase
from traincast.workload.workload import Workload

CellTimes = Mapping[tuple[int, Column], float]
"""Compute times in seconds by line of the file and column."""

_KEYS = {
    "tp": ("model_parallel_NPU_group",),
    "ep": ("ep", "expert_parallel_npu_group"),
    "pp": ("pp",),
    "vpp": ("vpp",),
    "ga": ("ga",),
    "all_gpus": ("all_gpus",),
    "pp_comm": ("pp_comm",),
}
"""Names of what the header may say, the usual one first."""
_NOTHING: Mapping[str, int] = MappingProxyType({})
_SAME = 1e-9
"""Relative difference of two times up to which they are one: times are whole numbers of ns."""


def rewritten(run: Run, vpp: str = "") -> Written:
    """Return the file of a workload that was read from one AICB file; its header says `vpp` where that is not empty.

    Raises
    ------
    FormatError
        If the file is no longer what it was, or the workload is another one in more than times.
    ConfigError
        If `vpp` is not a number.
    """
    workload = run.workload
    (source,) = workload.inputs
    text = read_unpacked(Path(source.path)).decode("latin-1")
    file = parse(source.path, text)
    written = edited(file, text, run, _changed_times(file, workload), {"vpp": said_vpp(vpp)} if vpp else {})
    return Written([(Path(source.path).name, [written.encode("latin-1")])], tuple(_lost(workload)))


def said_vpp(said: str) -> int:
    """Return virtual stages as an option says them; ConfigError where that is not a number from 1."""
    try:
        return whole(said, least=1)
    except ValueError as problem:
        raise ConfigError(str(problem), "option vpp") from None


def edited(file: AicbFile, text: str, run: Run, times: CellTimes, said: Mapping[str, int] = _NOTHING) -> str:
    """Return the text of a file with the degrees and microbatches of a run, some times, and a header that says more."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    filled = [at for at, line in enumerate(lines) if line.strip()]
    lines[filled[0]] = _header(lines[filled[0]], {**_said(file, run.workload), **said})
    for (line, column), time_s in times.items():
        lines[line - 1] = _with_time(lines[line - 1], column, time_s)
    parts = structure(file)
    wanted = run.workload.parallel.microbatches
    if run.workload.layout.microbatches is None or wanted == len(parts.blocks):
        return "".join(lines)
    return "".join(_with_blocks(file, parts, lines, filled, wanted))


def _said(file: AicbFile, workload: Workload) -> dict[str, int]:
    """Return what the header is to say otherwise, by its key."""
    asked, parallel, header = workload.layout, workload.parallel, file.header
    world = any(getattr(asked, name) is not None for name in ("gpus", "dp", "tp", "pp", "cp"))
    found = {
        "tp": (asked.tp, header.tp),
        "ep": (asked.ep, header.ep),
        "pp": (asked.pp, header.pp),
        "vpp": (asked.vpp, header.vpp),
        "ga": (asked.microbatches, header.ga),
        "all_gpus": (parallel.world_size if world else None, header.all_gpus),
        "pp_comm": (asked.pp_message_bytes, header.pp_message_bytes),
    }
    return {key: new for key, (new, old) in found.items() if new is not None and new != old}


def _header(line: str, said: Mapping[str, int]) -> str:
    """Return the first line with other values; keys that it has not stand before the checkpoints."""
    for key, value in said.items():
        names = "|".join(_KEYS[key])
        line, found = re.subn(
            rf"((?:^|\s)(?:{names})\s*:?\s*)[^\s:]+", rf"\g<1>{value}", line, count=1, flags=re.IGNORECASE
        )
        if not found:
            at = re.search(r"\s+(?=checkpoints\b)|\s*$", line)
            place = len(line) if at is None else at.start()
            line = f"{line[:place]} {_KEYS[key][0]}: {value}{line[place:]}"
    return line


def _with_time(line: str, column: Column, time_s: float) -> str:
    """Return a row with another compute time in a column, in ns."""
    fields = list(re.finditer(r"\S+", line))
    field = fields[FIRST_FIELD[column]]
    return f"{line[: field.start()]}{round(time_s * GIGA)}{line[field.end() :]}"


def _changed_times(file: AicbFile, workload: Workload) -> dict[tuple[int, Column], float]:
    """Return the compute times that the workload has otherwise than the file makes it.

    Raises
    ------
    FormatError
        If operations are others, or ranks differ in a time, for which a file has one place.
    """
    again = read_again(workload)
    was, now = again.ops, workload.ops
    if len(was) != len(now) or not np.array_equal(was.line_T, now.line_T):
        raise FormatError("its operations differ from those of the file; only times can be written back", file.path)
    row_of = {row.line: row for row in file.rows}
    computes_T = (was.kind_T == Kind.COMPUTE) & (was.line_T > 0)
    other_T = computes_T & (np.abs(now.duration_s_T - was.duration_s_T) > _SAME * was.duration_s_T)
    found: dict[tuple[int, Column], set[float]] = {}
    for at in np.flatnonzero(computes_T if other_T.any() else other_T).tolist():
        row, phase = row_of[int(was.line_T[at])], Phase(int(was.phase_T[at]))
        for column in Column:
            if phase in (PHASES[column], Phase.STEP) and row.cell(column).compute_s == was.duration_s_T[at]:
                found.setdefault((row.line, column), set()).add(float(now.duration_s_T[at]))
    for (line, _), times_s in found.items():
        if len(times_s) > 1:
            text = "ranks compute for different times here, and an AICB file describes all ranks alike"
            raise FormatError(text, file.path, line)
    return {cell: min(times_s) for cell, times_s in found.items()}


def _with_blocks(
    file: AicbFile, parts: Structure, lines: Sequence[str], filled: Sequence[int], wanted: int
) -> Iterator[str]:
    """Yield the lines with another number of microbatches: the first ones, or the last one again."""
    starts = [file.rows[min(block.rows)].line - 1 for block in parts.blocks]
    end = file.rows[max(parts.blocks[-1].rows)].line
    spans = [*pairwise([*starts, end])]
    chosen = [spans[min(at, len(spans) - 1)] for at in range(wanted)]
    rows = sum(1 for at in filled if starts[0] <= at < end)
    kept = sum(sum(1 for at in filled if begin <= at < stop) for begin, stop in chosen)
    head = list(lines[: starts[0]])
    if file.declared_rows is not None:
        place = filled[1]
        head[place] = re.sub(r"\d+", str(file.declared_rows - rows + kept), head[place], count=1)
    yield from head
    for begin, stop in chosen:
        yield from (line if line.endswith("\n") else f"{line}\n" for line in lines[begin:stop])
    yield from lines[end:]


def _lost(workload: Workload) -> Iterator[Note]:
    """Say what was asked for and has no place in the file."""
    asked = workload.layout
    yield Note(
        "aicb-cluster", "a file names no cluster: compute times are kept, and whoever reads it says where it runs"
    )
    for name, flag in (
        ("cp", "--cp"),
        ("etp", "--etp"),
        ("schedule", "--schedule"),
        ("overlap_grad_reduce", "--overlap-grad-reduce"),
        ("expert_imbalance", "--expert-imbalance"),
        ("expert_loads", "--expert-loads"),
    ):
        value = getattr(asked, name)
        if value not in (None, False):
            yield Note(f"aicb-{name.replace('_', '-')}", f"the format has no {name} ({value}): read it with {flag}")
    if workload.parallel.microbatches != 1 and asked.tp is not None:
        yield Note("aicb-sizes", "sizes and compute times are those of the file, whatever its degrees")
