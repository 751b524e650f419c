"""``traincast models``."""

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.options import in_range
from traincast.cli.terminal import console, print_json


@click.command(name="models")
@click.argument("names", nargs=-1, shell_complete=known("model"))
@click.option(
    "--seq-length",
    type=in_range("seq_length", 1),
    default=4096,
    show_default=True,
    metavar="N",
    help="Tokens of a sequence, for the FLOPs of attention.",
)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON and nothing else.")
def command(names: tuple[str, ...], seq_length: int, as_json: bool) -> None:
    """List the built-in models with their parameter counts.

    With NAMES (built-in models, config.json files of Hugging Face, TOML files) print the parameters and FLOPs of
    these by part, and where the numbers come from. A word that is part of names, such as llama, lists those.
    """
    known, exact = api.named.search_models(names) if names else (api.models(), False)
    if as_json:
        print_json(report.models_to_dict(known, seq_length))
        return
    if exact:
        report.print_model_counts(console(), known, seq_length)
    else:
        report.print_models(console(), known)
