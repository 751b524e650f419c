"""``traincast collective``."""

import click

from traincast import api, report
from traincast.cli.completion import COLLECTIVES, known, one_of
from traincast.cli.options import in_range, size_range
from traincast.cli.terminal import console, print_json


@click.command(name="collective")
@click.argument("op", shell_complete=one_of(*COLLECTIVES))
@click.option(
    "--size",
    "sizes",
    type=size_range,
    default="1KiB..8GiB",
    show_default=True,
    metavar="SIZE|FROM..TO",
    help="One size, or a range in which each is twice the one before.",
)
@click.option("--gpus", type=in_range("gpus"), metavar="N", help="Ranks that take part (default: one full node).")
@click.option("--nodes", type=in_range("nodes"), metavar="K", help="Nodes they are spread over (default: the fewest).")
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Preset, GPU or TOML file (default: h100, an assumption).",
)
@click.option("--algorithm", metavar="NAME", help="This one, whatever a library would choose (default: the cheapest).")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON and nothing else.")
def command(
    op: str,
    sizes: tuple[int, int],
    gpus: int | None,
    nodes: int | None,
    cluster: str | None,
    algorithm: str | None,
    as_json: bool,
) -> None:
    """Print the cost of one collective: nccl-tests without the GPUs.

    OP is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv, in
    any spelling. Sizes are counted as nccl-tests counts them.
    """
    table = api.collective(op, sizes, gpus, nodes, cluster, algorithm)
    if as_json:
        print_json(report.collective_to_dict(table))
    else:
        report.print_collective(console(), table)
