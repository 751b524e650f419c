"""``traincast report``."""

from pathlib import Path

import click

from traincast.cli.terminal import console


@click.command(name="report")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Show a result.json again; FILE may be the folder that it was written to."""
    from traincast import api
    from traincast.report.terminal.step import print_result

    print_result(console(), api.load_result(file))
