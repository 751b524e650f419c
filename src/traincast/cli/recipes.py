"""``traincast recipes``."""

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.terminal import console


@click.command(name="recipes")
@click.argument("words", nargs=-1, shell_complete=known("recipe", files=False))
def command(words: tuple[str, ...]) -> None:
    """List the published recipes whose settings are known, for --recipe of predict and plan.

    WORDS are parts of a name or of its release, such as deepseek gb200 26.08; all must be there.
    """
    report.print_recipes(console(), api.recipes(words))
