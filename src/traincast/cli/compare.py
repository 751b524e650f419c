"""``traincast compare``."""

from pathlib import Path

import click

from traincast.cli.terminal import console, print_json


@click.command(name="compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON and nothing else.")
@click.option("--ranks", is_flag=True, help="Show every rank, and the parts of each.")
def command(a: Path, b: Path, as_json: bool, ranks: bool) -> None:
    """Two results, or a result and a measured trace, side by side.

    A and B are a result.json (or the folder it was written to), a measured trace, or a folder of
    the rank traces of one run. Differences are those of B to A.
    """
    from traincast import api

    comparison = api.compare(a, b)
    if as_json:
        from traincast.report.json import comparison_to_dict

        print_json(comparison_to_dict(comparison))
    else:
        from traincast.report.terminal.comparison import print_comparison

        print_comparison(console(), comparison, ranks=ranks)
