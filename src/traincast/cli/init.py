"""``traincast init``."""

from pathlib import Path

import click

from traincast.errors import ConfigError
from traincast.spec.job_file import TEMPLATE


@click.command(name="init")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def command(file: Path | None, force: bool) -> None:
    """Write a commented job file (to the terminal where no FILE is named)."""
    if file is None:
        click.echo(TEMPLATE, nl=False)
        return
    if file.exists() and not force:
        raise ConfigError("is there already; give --force to write over it, or another name", str(file))
    try:
        file.write_text(TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", str(file)) from None
    click.echo(f"wrote {file}")
