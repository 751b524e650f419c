"""``traincast init``."""

from pathlib import Path

import click

from traincast.cli.terminal import print_line
from traincast.job.job_file import TEMPLATE
from traincast.report.files import refuse_existing, write_whole


@click.command(name="init")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def command(file: Path | None, force: bool) -> None:
    """Write a commented job file (to the terminal where no FILE is named)."""
    if file is None:
        print_line(TEMPLATE.removesuffix("\n"))
        return
    if not force:
        refuse_existing(file)
    write_whole(file, TEMPLATE.encode())
    print_line(f"wrote {file}")
