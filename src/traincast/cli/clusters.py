"""``traincast clusters``."""

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.terminal import console, print_json


@click.command(name="clusters")
@click.argument("names", nargs=-1, shell_complete=known("cluster", "gpu"))
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON and nothing else.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the clusters that are known, and where their numbers come from.

    With NAMES (presets, GPUs or TOML files) print every number of these clusters with its unit and source. A
    word that is part of names, such as mi3, lists those that have it.
    """
    known, exact = api.named.search_clusters(names) if names else (api.clusters(), False)
    if as_json:
        print_json(report.clusters_to_dict(known))
        return
    if exact:
        report.print_cluster_numbers(console(), known)
    else:
        report.print_clusters(console(), known, every=not names)
