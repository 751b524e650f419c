"""Many jobs in one run that can be stopped and gone on with."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, overload

from traincast import __version__
from traincast.api.files import StrPath
from traincast.errors import ConfigError, TraincastError
from traincast.job.words import JOB_WORDS, takes
from traincast.report.sweep_table import check_table, column_names, sweep_rows, write_sweep
from traincast.simulation.columns import Table, table_of
from traincast.sweeps.executors import EXECUTORS, Executor
from traincast.sweeps.journal import Heading, Journal
from traincast.sweeps.points import PointWork, work_of
from traincast.sweeps.rows import Row
from traincast.sweeps.run import run_sweep
from traincast.sweeps.spec import Point, Spec
from traincast.sweeps.words import SWEEP_WORDS, specified
from traincast.units import counted

T = TypeVar("T")
Said = StrPath | Mapping[str, Any] | None
Tell = Callable[[int, int], None]
Keep = Callable[[Path, Spec, Sequence[str], Iterable[tuple[Point, Row]]], T]


@overload
def sweep(spec: Said = None, out: None = None, **words: Any) -> Table: ...  # noqa: ANN401
@overload
def sweep(spec: Said = None, *, out: StrPath, **words: Any) -> dict[str, int]: ...  # noqa: ANN401
@overload
def sweep(spec: Said, out: StrPath, **words: Any) -> dict[str, int]: ...  # noqa: ANN401
@takes(SWEEP_WORDS, JOB_WORDS)
def sweep(
    spec: Said = None,
    out: StrPath | None = None,
    *,
    on: str = "local",
    workers: int | None = None,
    restart: bool = False,
    tell: Tell | None = None,
    progress: bool = False,
    **words: Any,
) -> dict[str, int] | Table:
    """Forecast or plan every point of a sweep, and write one table or return it.

    Stopped, however hard, it goes on with the same call from the journal next to its table, for the same bytes.

    Parameters
    ----------
    spec : path or mapping, optional
        The specification (`traincast.sweeps.spec`): a file, its sections as a mapping, or the words below as one.
    out : path, optional
        Table to write: .csv, or .parquet with the extra ``frames``; or a directory for ``sweep.csv`` and
        ``sweep.html``; by default the table is returned.
    on : str
        Where it runs: ``local``, ``ray``, or ``ray://HOST:PORT``.
    workers : int, optional
        Points at the same time; by default one for each core.
    restart : bool
        Forget what a stopped sweep of that table has done.
    tell : callable, optional
        Told how many points are done, and of how many.
    progress : bool
        Show that on standard error, in a line of a terminal or below the cell of a notebook.
    **words
        Words of `traincast.predict` over `spec`; lists vary: ``tp=[4, 8]``. Or its sections, such as ``base``.

    Returns
    -------
    How many points have each status (`traincast.sweeps.rows.COLUMNS`); without `out` the table, a column a key.

    Raises
    ------
    ConfigError
        If the specification, the table or the executor is not to be had, or the journal is of another sweep.
    TraincastError
        If no point is ``ok``; the table says why.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.sweep(base="examples/llama3_70b_512gpu.toml", tp=[4, 8], workers=1)
    >>> found["parallel.tp"].tolist(), found["status"].tolist()
    ([4, 8], ['ok', 'ok'])
    """
    asked, tell = specified(spec, words), tell or (_show if progress else None)
    work, start = _prepared(asked, on, workers)
    if out is None:
        with TemporaryDirectory() as made:
            return _run(Path(made, "table"), asked, work, start, tell, restart=True, keep=_table)
    table, keep = _written(Path(out))
    return _counted(str(table), _run(table, asked, work, start, tell, restart=restart, keep=keep))


def _prepared(asked: Spec, on: str, workers: int | None) -> tuple[PointWork, Callable[[], Executor]]:
    """Return what a sweep does with its points, and what starts the executor of a name, such as ``ray://HOST:PORT``."""
    name, _, address = on.partition("://")
    work, make = work_of(asked), EXECUTORS.get(name)
    if workers is not None and workers < 1:
        raise ConfigError(f"is {workers}; at least one worker is needed", "workers")
    return work, partial(make, work, workers, address)


def _written(out: Path) -> tuple[Path, Keep[Mapping[str, Sequence[str]]]]:
    """Return the table that a sweep writes, and what writes it with its page, in a folder that is then there."""
    table, page = check_table(out)
    if page is not None:
        page.parent.mkdir(exist_ok=True)
    return table, partial(write_sweep, page=page)


def _show(done: int, of: int) -> None:
    """Write how far a sweep is over what was written before; notebooks follow the carriage return, too."""
    print(f"\r{done:,} of {counted(of, 'point')}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _counted(table: str, told: Mapping[str, Sequence[str]]) -> dict[str, int]:
    if "ok" not in told:
        raise TraincastError(_nothing(table, told))
    return {status: len(messages) for status, messages in told.items()}


def _table(_: Path, asked: Spec, columns: Sequence[str], found: Iterable[tuple[Point, Row]]) -> Table:
    """Return the table of a sweep."""
    told: dict[str, list[str]] = {}
    names = column_names(asked, columns)
    lines = [dict(zip(names, row, strict=True)) for row in sweep_rows(asked, columns, found, told)]
    if "ok" not in told:
        raise TraincastError(_nothing("this sweep", told))
    return table_of(lines)


def _run(
    table: Path,
    asked: Spec,
    work: PointWork,
    start: Callable[[], Executor],
    tell: Tell | None,
    *,
    restart: bool,
    keep: Keep[T],
) -> T:
    """Run what the journal next to a table does not have, and return what `keep` makes of all points."""
    journal = _journal(table, asked, work, restart=restart)
    written = False
    try:
        executor = start()
        try:
            kept = keep(table, asked, work.columns, run_sweep(asked, executor, journal, work.chunk, tell))
            written = True
        finally:
            executor.close()
    finally:
        journal.close(remove=written)
    return kept


def _nothing(table: str, told: Mapping[str, Sequence[str]]) -> str:
    """Return why a sweep has no point that is ok: how many of each kind, and the first message of the most frequent."""
    counts = ", ".join(f"{len(messages):,} {status}" for status, messages in told.items())
    most = max(told.values(), key=len)
    total = sum(map(len, told.values()))
    return f"{table} has no point that is ok: of {counted(total, 'point')} {counts}; the first: {most[0]}"


_LONGEST_NAME_BYTES = 255
"""Limit of a file's name in its folder."""


def _journal(table: Path, asked: Spec, work: PointWork, *, restart: bool) -> Journal:
    """Return the journal next to a table, started over where that is asked for."""
    name = f"{table.name}.journal"
    if len(os.fsencode(name)) > _LONGEST_NAME_BYTES:
        name = f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.journal"
    record = table.with_name(name)
    heading = Heading(fingerprint=asked.fingerprint, version=__version__, points=len(asked), chunk=work.chunk)
    return Journal(record, heading, restart=restart)
