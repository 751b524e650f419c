"""A result as columns, for numpy and data frames: its operations, ranks, communications, parts and what-ifs.

Letters: N operations, T template operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from traincast.errors import ConfigError, UnknownNameError
from traincast.workload.words import Group, Kind, Operation, Phase, Provenance, Stream

if TYPE_CHECKING:
    from traincast.simulation.result import Result

TABLES = ("operations", "ranks", "collectives", "parts", "stragglers", "causes", "suggestions", "what_if")
"""What a result has columns of."""
Columns = dict[str, npt.NDArray[Any]]


def columns_of(result: "Result", of: str = "operations") -> Columns:
    """Return one table of a result, a numpy array a column; times in seconds, sizes in bytes.

    Raises
    ------
    UnknownNameError
        If there is no table of that name.
    ConfigError
        If operations are asked for and the result holds none, as one read from a file.
    """
    if of not in TABLES:
        raise UnknownNameError("table", of, TABLES)
    if of == "operations":
        return _operations(result)
    lines = [_flat(each if isinstance(each, Mapping) else asdict(each)) for each in getattr(result, of)]
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: _column([line.get(name) for line in lines]) for name in names}


def frame_of(result: "Result", of: str = "operations") -> Any:  # noqa: ANN401 polars need not be there
    """Return one table of a result as a data frame of polars.

    Raises
    ------
    ConfigError
        If polars is not installed.
    """
    try:
        import polars
    except ImportError:
        raise ConfigError("data frames need polars: pip install 'traincast[frames]'") from None
    return polars.DataFrame({name: _for_frames(column) for name, column in columns_of(result, of).items()})


def _operations(result: "Result") -> Columns:
    program, timeline = result.program, result.timeline
    if program is None or timeline is None:
        raise ConfigError("this result holds no single operations; run it again to get them (traincast.run_again)")
    ops, row_N = program.ops, program.row_N
    size_N = ops.size_bytes_T[row_N]
    return {
        "rank": program.rank_N.astype(np.int64),
        "stage": program.stage_N.astype(np.int64),
        "virtual_stage": program.virtual_stage_N.astype(np.int64),
        "microbatch": program.microbatch_N.astype(np.int64),
        "name": np.array(ops.name_T, dtype=object)[row_N],
        "kind": _words(Kind, ops.kind_T)[row_N],
        "phase": _words(Phase, ops.phase_T)[row_N],
        "stream": _words(Stream, ops.stream_T)[row_N],
        "group": _words(Group, ops.group_T)[row_N],
        "operation": _words(Operation, ops.operation_T)[row_N],
        "layer": ops.layer_T[row_N].astype(np.int64),
        "size_bytes": size_N.astype(np.int64),
        "ready_s": timeline.ready_s_N,
        "start_s": timeline.start_s_N,
        "end_s": timeline.end_s_N,
        "duration_s": timeline.duration_s_N,
        "provenance": _words(Provenance, ops.provenance_T)[row_N],
    }


def _words(kind: type[IntEnum], number_T: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the names of some numbers of a vocabulary in lower case; empty for none."""
    names = {int(each): "" if each.name == "NONE" else each.name.lower() for each in kind}
    return np.array([names[number] for number in number_T.tolist()], dtype=object)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with the values of a table in it under names of their own."""
    found: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= {str(key): each for key, each in value.items()}
        elif isinstance(value, (tuple, list)):
            found[name] = ", ".join(map(str, value))
        else:
            found[name] = value
    return found


def _column(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return values as an array: numbers with NaN for none, else objects."""
    numbers = [value for value in values if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        if len(numbers) == len(values) and all(isinstance(value, int) for value in numbers):
            return np.array(values, dtype=np.int64)
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array(values, dtype=object)


def _for_frames(column: npt.NDArray[Any]) -> Any:  # noqa: ANN401
    return column.tolist() if column.dtype == object else column
