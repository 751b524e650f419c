"""``traincast sweep``."""

from pathlib import Path

import click

from traincast import api, report
from traincast.cli.terminal import console, rated


@click.command(name="sweep")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Table to write, .csv or .parquet; or a directory, for sweep.csv and a page to explore, sweep.html.",
)
@click.option("--on", default="local", metavar="WHERE", show_default=True, help="local, ray, or ray://HOST:PORT.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Jobs at the same time (default: one for each core)."
)
@click.option("--restart", is_flag=True, help="Forget what a stopped sweep of this table has done.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(spec: Path, out: Path, on: str, workers: int | None, restart: bool, quiet: bool) -> None:
    """Forecast or plan many jobs and write one table; run it again to go on with a sweep that was stopped.

    SPEC is a TOML file: [base] is a job, as the sections of a job file or as the path of one; [grid] has the keys that
    vary, each "section.key" with its values; [[cases]] are combinations of their own; [prices] is what a GPU of each
    cluster costs for an hour. With work = "plan" every point is a plan, made as [plan] says.
    """
    written = " and ".join(str(path) for path in report.check_table(out) if path is not None)
    with rated(f"running the points of {spec}", "points", quiet=quiet) as tell:
        counts = api.sweep.sweep(spec, out, on=on, workers=workers, restart=restart, tell=tell)
    if not quiet:
        told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items(), key=lambda each: -each[1]))
        console().print(f"wrote {written}: {sum(counts.values()):,} points, {told}", highlight=False)
