"""``traincast inspect``."""

from pathlib import Path

import click

from traincast import api, report
from traincast.cli.terminal import console, print_json


@click.command(name="inspect")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--all", "whole", is_flag=True, help="Show every file; by default of more than 3 the first and last.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else; of several files a list."
)
def command(files: tuple[Path, ...], whole: bool, as_json: bool) -> None:
    """Say what a file is: format, version, contents, totals, problems."""
    inspections = api.inspect_all(files)
    if as_json:
        found = list(inspections)
        print_json(report.inspection_to_dict(found[0]) if len(found) == 1 else report.inspections_to_dict(found))
    else:
        report.print_inspections(console(), list(inspections), whole=whole)
