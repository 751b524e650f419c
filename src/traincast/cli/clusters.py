"""``traincast clusters``."""

import click

from traincast.cli.terminal import console, print_json


@click.command(name="clusters")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON and nothing else.")
def command(as_json: bool) -> None:
    """List the clusters that are known, and where their numbers come from."""
    from traincast import api

    known = api.clusters()
    if as_json:
        from traincast.report.json import clusters_to_dict

        print_json(clusters_to_dict(known))
    else:
        from traincast.report.terminal import print_clusters

        print_clusters(known, console())
