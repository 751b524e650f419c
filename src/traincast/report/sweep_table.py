"""The rows of a sweep as one file, CSV or Parquet (extra ``frames``), or as CSV and a page in a directory."""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from traincast import __version__
from traincast.errors import ConfigError
from traincast.report.explorer.points import sweep_page
from traincast.report.files import check_writable, write_whole
from traincast.report.plain import csv_line, encodable
from traincast.sweeps.rows import Row
from traincast.sweeps.spec import Point, Spec

_TABLE, _PAGE = "sweep.csv", "sweep.html"
Cell = str | int | float | bool | None


def write_sweep(
    path: Path, spec: Spec, columns: Sequence[str], found: Iterable[tuple[Point, Row]], page: Path | None = None
) -> dict[str, list[str]]:
    """Write a row for every point, and what it was made from; return the messages of the points by their status.

    A `page` is written, too, where one is named. The same sweep gives the same bytes, however often it was stopped.

    Raises
    ------
    ConfigError
        If the file is of another kind, or cannot be written, or Parquet is asked for without polars.
    """
    told: dict[str, list[str]] = {}
    names = column_names(spec, columns)
    rows = list(sweep_rows(spec, columns, found, told))
    write_whole(path, _parquet(names, rows) if path.suffix == ".parquet" else _csv(names, rows))
    if page is not None:
        made = [dict(zip(names, row, strict=True)) for row in rows]
        write_whole(page, sweep_page(f"Sweep {spec.path}".strip(), spec.keys, made).encode())
    return told


def column_names(spec: Spec, columns: Sequence[str]) -> list[str]:
    """Return the names of the columns of a table, those that its work has among them."""
    return ["point", *spec.keys, *columns, "traincast_version", "sweep_sha256"]


def sweep_rows(
    spec: Spec, columns: Sequence[str], found: Iterable[tuple[Point, Row]], told: dict[str, list[str]]
) -> Iterator[list[Cell]]:
    """Yield the cells of each point, and note its message under its status in `told`."""
    for point, row in found:
        told.setdefault(str(row["status"]), []).append(str(row.get("message") or ""))
        said = dict(point.said)
        varied = [_cell(said.get(key)) for key in spec.keys]
        yield [point.index, *varied, *map(row.get, columns), __version__, spec.fingerprint]


def check_table(path: Path) -> tuple[Path, Path | None]:
    """Return the files of a table and of its page; refuse what a sweep cannot be written to, before anything runs.

    A directory, which need not exist, is to hold ``sweep.csv`` and ``sweep.html``; a file has no page.

    Raises
    ------
    ConfigError
        If a file ends in neither .csv nor .parquet, polars is not there for the latter, or it cannot be written.
    """
    is_table = path.suffix in (".csv", ".parquet")
    if not is_table and (path.is_dir() or not (path.suffix or path.exists())):
        for target in (path / _TABLE, path / _PAGE):
            check_writable(target if path.is_dir() else path)
        return path / _TABLE, path / _PAGE
    if not is_table:
        raise ConfigError("must end in .csv or .parquet, or be a directory", str(path))
    if path.suffix == ".parquet":
        _polars()
    check_writable(path)
    return path, None


def _cell(value: object) -> Cell:
    """Return a value of a key in one type, since another point may have one of another type."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, list):
        return " ".join(map(str, value))
    return encodable(str(value))


def _csv(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    return "".join(f"{csv_line(row)}\n" for row in (names, *rows)).encode()


def _parquet(names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    polars = _polars()
    columns = {}
    for at, name in enumerate(names):
        cells = [row[at] for row in rows]
        kinds = {type(cell) for cell in cells if cell is not None}
        mixed = len(kinds) > 1 and not kinds <= {int, float}
        columns[name] = [None if cell is None else str(cell) for cell in cells] if mixed else cells
    content = io.BytesIO()
    polars.DataFrame(columns, strict=False, infer_schema_length=None).write_parquet(content)
    return content.getvalue()


def _polars() -> Any:  # noqa: ANN401 polars need not be there
    try:
        import polars
    except ImportError:
        raise ConfigError("Parquet needs polars: pip install 'traincast[frames]'; or end the name in .csv") from None
    return polars
