"""``traincast report``."""

from pathlib import Path

import click

from traincast.cli.terminal import console


@click.command(name="report")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write the step as a page to explore.")
def command(file: Path, html: Path | None) -> None:
    """Show a result.json again; FILE may be the folder that it was written to."""
    from traincast import api
    from traincast.report.terminal.step import print_result

    if html is not None:
        from traincast.api.explorer import explore

        explore(file, html)
        console().print(f"wrote {html}", highlight=False)
        return
    print_result(console(), api.load_result(file))
