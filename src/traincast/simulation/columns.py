"""A result as columns, for numpy and data frames: its operations, ranks, communications, parts and what-ifs.

Letters: N operations, T template operations.
"""

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.errors import ConfigError, UnknownNameError
from traincast.units import counted
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation, Phase, Provenance, Stream

Columns = dict[str, npt.NDArray[Any]]


class Table(dict[str, npt.NDArray[Any]]):
    """Columns of one length by name, which pandas and polars take as they are; its length is that of a column.

    For others it is a stream of Arrow.

    Arrow's PyCapsule interface is what these libraries are moving to: polars 2.0 dropped the dataframe interchange
    protocol, pandas 4.0 will. The stream itself is made by polars or pyarrow, one of which whoever reads it has; its
    release callbacks must run in whatever state a reader is in, which needs C.

    Source: https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html

    Examples
    --------
    >>> import traincast
    >>> ranks = traincast.simulate("examples/megatron_pp4_tp2").table("ranks")
    >>> len(ranks), ranks["rank"].tolist()
    (8, [0, 1, 2, 3, 4, 5, 6, 7])
    >>> list(dict(ranks))[:3]
    ['rank', 'stage', 'represents']
    """

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        """Refuse a column that there is not: `UnknownNameError` names those there are."""
        raise UnknownNameError("column", name, self)

    @property
    def columns(self) -> Columns:
        """The columns as a plain dict."""
        return dict(self)

    def to_pandas(self) -> Any:  # noqa: ANN401 pandas need not be there
        """Return a data frame of pandas; `ConfigError` where pandas is not installed."""
        return _library("pandas", "pip install pandas").DataFrame(self.columns)

    def to_polars(self) -> Any:  # noqa: ANN401 polars need not be there
        """Return a data frame of polars; `ConfigError` where polars is not installed."""
        return _library("polars", "pip install 'traincast[frames]'").DataFrame(_plain(self))

    def __len__(self) -> int:
        return len(next(iter(self.values()), ()))

    def __repr__(self) -> str:
        return f"<Table: {counted(len(self), 'row')} of {', '.join(self)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule ``arrow_array_stream``; `ConfigError` where neither polars nor pyarrow is installed."""
        return _made_by_a_library(self).__arrow_c_stream__(requested_schema)


def table_of(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Return lines as a table: a column for every key; values that are tables themselves give columns of their own."""
    flat = list(map(_flat, lines))
    names = dict.fromkeys(name for line in flat for name in line)
    return Table({name: _column([line.get(name) for line in flat]) for name in names})


def _library(name: str, install: str) -> Any:  # noqa: ANN401
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"data frames of {name} need it: {install}") from None


def _plain(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    return {name: _for_frames(column) for name, column in columns.items()}


def _made_by_a_library(columns: Mapping[str, npt.NDArray[Any]]) -> Any:  # noqa: ANN401
    """Return columns as a table of polars or pyarrow, first of one that is imported already."""
    plain = _plain(columns)
    for name in sorted(("polars", "pyarrow"), key=lambda each: each not in sys.modules):
        try:
            library = import_module(name)
        except ImportError:
            continue
        return library.DataFrame(plain) if name == "polars" else library.table(plain)
    raise ConfigError("frames need polars or pyarrow: pip install 'traincast[frames]'")


def operations(program: Program, timeline: Timeline) -> Table:
    """Return every operation of a simulated program as a table; times in seconds, sizes in bytes."""
    ops, row_N = program.ops, program.row_N
    size_N = ops.size_bytes_T[row_N]
    columns = {
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
    return Table(columns)


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
