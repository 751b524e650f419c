"""Many jobs in one run that can be stopped and gone on with."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traincast import __version__
from traincast.api import StrPath
from traincast.errors import ConfigError, TraincastError
from traincast.report.sweep_table import check_table, write_sweep
from traincast.sweep.executors import EXECUTORS, Executor
from traincast.sweep.journal import Heading, Journal
from traincast.sweep.points import PointWork, work_of
from traincast.sweep.run import run_sweep
from traincast.sweep.spec import Spec, read_spec
from traincast.units import counted

Tell = Callable[[int, int], None]


def sweep(
    spec: StrPath,
    out: StrPath,
    *,
    on: str = "local",
    workers: int | None = None,
    restart: bool = False,
    tell: Tell | None = None,
) -> dict[str, int]:
    """Forecast or plan every point of a sweep and write one table.

    Stopped, however hard, it goes on with the same call from ``OUT.journal``, and the table has the same bytes.

    Parameters
    ----------
    spec : path
        The specification (`traincast.sweep.spec`).
    out : path
        Table to write: .csv, or .parquet with the extra ``frames``.
    on : str
        Where it runs: ``local``, ``ray``, or ``ray://HOST:PORT``.
    workers : int, optional
        Points at the same time; by default one for each core.
    restart : bool
        Forget what a stopped sweep of that table has done.
    tell : callable, optional
        Told how many points are done, and of how many.

    Returns
    -------
    How many points have each status (`traincast.sweep.rows.COLUMNS`).

    Raises
    ------
    ConfigError
        If the specification, the table or the executor is not to be had, or the journal is of another sweep.
    TraincastError
        If no point is ``ok``; the table says why.

    Examples
    --------
    >>> from pathlib import Path
    >>> import traincast
    >>> _ = Path("sweep.toml").write_text('''
    ... base = "examples/llama3_70b_512gpu.toml"
    ... [grid]
    ... "parallel.tp" = [4, 8]
    ... ''')
    >>> traincast.sweep("sweep.toml", "found.csv", workers=1)
    {'ok': 2}
    """
    asked, table = read_spec(Path(spec)), check_table(Path(out))
    name, _, address = on.partition("://")
    work, make = work_of(asked), EXECUTORS.get(name)
    if workers is not None and workers < 1:
        raise ConfigError(f"is {workers}; at least one worker is needed", "workers")
    told = _written(table, asked, work, lambda: make(work, workers, address), tell, restart=restart)
    if "ok" not in told:
        raise TraincastError(_nothing(table, told))
    return {status: len(messages) for status, messages in told.items()}


def _written(
    table: Path, asked: Spec, work: PointWork, start: Callable[[], Executor], tell: Tell | None, *, restart: bool
) -> Mapping[str, Sequence[str]]:
    """Run what the journal beside a table does not have, and write the table; return the messages by status."""
    journal = _journal(table, asked, work, restart=restart)
    written = False
    try:
        executor = start()
        try:
            told = write_sweep(table, asked, work.columns, run_sweep(asked, executor, journal, work.chunk, tell))
            written = True
        finally:
            executor.close()
    finally:
        journal.close(remove=written)
    return told


def _nothing(table: Path, told: Mapping[str, Sequence[str]]) -> str:
    """Return why a sweep has no point that is ok: how many of each kind, and the first message of the most frequent."""
    counts = ", ".join(f"{len(messages):,} {status}" for status, messages in told.items())
    most = max(told.values(), key=len)
    total = sum(map(len, told.values()))
    return f"{table} has no point that is ok: of {counted(total, 'point')} {counts}; the first: {most[0]}"


def _journal(table: Path, asked: Spec, work: PointWork, *, restart: bool) -> Journal:
    """Return the journal beside a table, begun anew where that is asked for."""
    record = table.with_name(f"{table.name}.journal")
    if restart:
        record.unlink(missing_ok=True)
    heading = Heading(fingerprint=asked.fingerprint, version=__version__, points=len(asked), chunk=work.chunk)
    return Journal(record, heading)
