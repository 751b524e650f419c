"""``traincast sweep``."""

from pathlib import Path

import click

from traincast.cli.terminal import announced, console


@click.command(name="sweep")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Table to write: .csv or .parquet."
)
@click.option("--on", default="local", metavar="WHERE", show_default=True, help="local, ray, or ray://HOST:PORT.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Jobs at the same time (default: one for each core)."
)
@click.option("--restart", is_flag=True, help="Forget what a stopped sweep of this table has done.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(spec: Path, out: Path, on: str, workers: int | None, restart: bool, quiet: bool) -> None:
    """Forecast many jobs and write one table; run it again to go on with a sweep that was stopped.

    SPEC is a TOML file: [base] is a job, as the sections of a job file or as the path of one; [grid] has the keys that
    vary, each "section.key" with its values; [[cases]] are combinations of their own; [prices] is what a GPU of each
    cluster costs for an hour.
    """
    from traincast.api.sweep import sweep
    from traincast.diagnostics import advanced, announce

    def tell(done: int, total: int) -> None:
        advanced(done / total)

    with announced(quiet=quiet):
        announce(f"forecasting the points of {spec}")
        counts = sweep(spec, out, on=on, workers=workers, restart=restart, tell=tell)
    if not quiet:
        told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items(), key=lambda each: -each[1]))
        console().print(f"wrote {out}: {sum(counts.values()):,} points, {told}", highlight=False)
