"""``traincast inspect``."""

from pathlib import Path

import click

from traincast.cli.terminal import console, print_json


@click.command(name="inspect")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per file and nothing else.")
def command(files: tuple[Path, ...], as_json: bool) -> None:
    """Say what a file is: format, version, contents, totals, problems."""
    from traincast import api

    for file in api.expand(files):
        inspection = api.inspect(file)
        if as_json:
            from traincast.report.json import inspection_to_dict

            print_json(inspection_to_dict(inspection))
        else:
            from traincast.report.terminal import print_inspection

            print_inspection(inspection, console())
