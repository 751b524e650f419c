"""The columns of a straggler trace and the job's description next to it, checked.

Letters: N operations of all ranks and steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from traincast.errors import FormatError
from traincast.files import csv_rows, read_bytes, read_text
from traincast.formats.straggler_st import COLUMNS
from traincast.formats.straggler_st.parquet import is_parquet, read_columns
from traincast.names import known_names
from traincast.units import counted, quoted
from traincast.workload.ops import FloatArray, IntArray

COMPUTE = {"forward-compute": "forward", "backward-compute": "backward"}
"""Types of computations of a microbatch, and their pass."""
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
"""Pipeline sends and receives."""
SHARDED = ("params-all-gather", "grads-reduce-scatter")
"""Collectives of the data parallel ranks of a stage, of each model chunk."""
AFTER = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
)
"""What follows the last backward pass, in this order."""
TYPES = (*COMPUTE, *MESSAGES, *SHARDED, *AFTER)
SIZES = ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "world_size")
_WHOLE = tuple(name for name in COLUMNS if name not in ("optype", "start_ts", "duration"))
_LARGEST = {"dp_rank": 2**20, "stage": 2**10, "rank": 2**20, "seq_id": 2**24, "mc": 2**10, "mb_id": 2**24}


class Table(Struct, frozen=True):
    """The rows of a trace, as columns."""

    path: str
    optype_N: IntArray
    """Index into `TYPES`."""
    columns: Mapping[str, IntArray]
    """Columns of whole numbers, [N]."""
    start_s_N: FloatArray
    duration_s_N: FloatArray
    line_N: IntArray
    """1-based line of a CSV file, row of a Parquet file."""

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.optype_N)

    def where(self, chosen_N: Any) -> "Table":  # noqa: ANN401
        """Return some of the rows, in their order."""
        return Table(
            self.path,
            self.optype_N[chosen_N],
            {name: column[chosen_N] for name, column in self.columns.items()},
            self.start_s_N[chosen_N],
            self.duration_s_N[chosen_N],
            self.line_N[chosen_N],
        )


def read_table(path: Path) -> Table:
    """Read the rows of a trace, Parquet or CSV.

    Raises
    ------
    FormatError
        If a column is missing, a value is not a number or out of range, or a type of operation is not known.
    """
    data = read_bytes(path)
    packed = is_parquet(data)
    raw = _parquet(data, str(path)) if packed else _csv(data, str(path))
    count = len(raw["optype"])
    if not count:
        raise FormatError("has no rows", str(path), 1)
    line_N = np.arange(count) + (1 if packed else 2)
    numbers = {name: _numbers(raw[name], name, str(path), line_N) for name in COLUMNS if name != "optype"}
    columns = {name: _whole(numbers[name], name, str(path), line_N) for name in _WHOLE}
    duration_s_N = numbers["duration"]
    bad = np.flatnonzero(duration_s_N < 0)
    if len(bad):
        raise FormatError(f"duration is {duration_s_N[bad[0]]:g} s", str(path), int(line_N[bad[0]]))
    optype_N = _types(raw["optype"], str(path), line_N)
    return Table(str(path), optype_N, columns, numbers["start_ts"], duration_s_N, line_N)


def _parquet(data: bytes, shown: str) -> dict[str, Sequence[Any]]:
    columns = read_columns(data, COLUMNS, shown)
    found: dict[str, Sequence[Any]] = {}
    for name in COLUMNS:
        try:
            found[name] = _names_of(columns[name]) if name == "optype" else columns[name].to_numpy()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise FormatError(f"column {name} cannot be read: {reason}", shown) from None
    return found


def _names_of(column: Any) -> Sequence[str]:  # noqa: ANN401
    """Return a column of polars as texts, of which those that are equal are one: one alone may have a megabyte."""
    import polars

    texts = column.cast(polars.String).fill_null("None")
    known = texts.unique().to_list()
    places = texts.replace_strict(known, list(range(len(known))), return_dtype=polars.Int64)
    return [known[place] for place in places.to_list()]


def _csv(data: bytes, shown: str) -> dict[str, Sequence[Any]]:
    rows = [row for _, row in csv_rows(data.decode("utf-8-sig", errors="replace"), shown)]
    names = [name.strip() for name in rows[0]] if rows else []
    _check_columns(names, shown)
    body = rows[1:]
    while body and not any(body[-1]):
        body.pop()
    short = next((at for at, row in enumerate(body) if len(row) != len(names)), None)
    if short is not None:
        text = f"has {counted(len(body[short]), 'value')} in a table of {counted(len(names), 'column')}"
        raise FormatError(text, shown, short + 2)
    return {name: [row[names.index(name)] for row in body] for name in COLUMNS}


def _check_columns(names: Sequence[str], shown: str) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise FormatError(f"has no column {missing[0]}; a straggler trace has {', '.join(COLUMNS)}", shown, 1)


def _numbers(raw: Sequence[Any], name: str, shown: str, line_N: IntArray) -> FloatArray:
    try:
        found_N = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        found_N = np.array(list(map(_number, raw)))
    bad = np.flatnonzero(~np.isfinite(found_N))
    if len(bad):
        at = int(bad[0])
        raise FormatError(f"{name} is {quoted(raw[at])}; it must be a number", shown, int(line_N[at]))
    return found_N


def _number(value: Any) -> float:  # noqa: ANN401
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _whole(value_N: FloatArray, name: str, shown: str, line_N: IntArray) -> IntArray:
    least, most = (-1 if name in ("mc", "mb_id") else 0), _LARGEST.get(name, 2**62)
    bad = np.flatnonzero((value_N != np.rint(value_N)) | (value_N < least) | (value_N >= most))
    if len(bad):
        at = int(bad[0])
        text = f"{name} is {value_N[at]:g}; it must be a whole number from {least} to {most - 1:,}"
        raise FormatError(text, shown, int(line_N[at]))
    return value_N.astype(np.int64)


def _types(raw: Sequence[Any], shown: str, line_N: IntArray) -> IntArray:
    number = {name: index for index, name in enumerate(TYPES)}
    found = [number.get(str(each).strip(), -1) for each in raw]
    if -1 in found:
        at = found.index(-1)
        text = f"optype {quoted(raw[at])} is not known; {known_names(str(raw[at]), TYPES)}"
        raise FormatError(text, shown, int(line_N[at]))
    return np.array(found, dtype=np.int64)


def meta_next_to(path: Path) -> Path | None:
    """Return the description of a job: ``meta.yaml`` next to its trace, or ``meta-ST.yaml``."""
    names = (f"{path.stem.replace('trace', 'meta', 1)}.yaml", f"{path.stem}.yaml", "meta.yaml")
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)


def read_meta(path: Path) -> dict[str, int]:
    """Read the sizes of a job, lines of ``name: number``.

    Raises
    ------
    FormatError
        If a line is not such a pair, or a size is not a whole number above zero.
    """
    sizes: dict[str, int] = {}
    for line, text in enumerate(read_text(path).splitlines(), 1):
        bare = text.partition("#")[0].strip()
        if not bare or bare == "---":
            continue
        name, colon, value = (part.strip() for part in bare.partition(":"))
        if not colon:
            raise FormatError(f"{quoted(bare)} is not a line like dp_size: 2", str(path), line)
        if name not in SIZES:
            continue
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 2**20:
            raise FormatError(f"{name} is {quoted(value)}; it must be a whole number from 1", str(path), line)
        sizes[name] = int(value)
    return sizes
