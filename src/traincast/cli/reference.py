"""What the help says of every command, in parts: the manual page and the site's reference are made from it."""

from collections.abc import Iterator
from typing import NamedTuple

import click

from traincast.cli.main import cli


class CommandHelp(NamedTuple):
    """One command."""

    name: str
    """As it is typed: ``traincast simulate``; the program itself is ``traincast``."""
    usage: str
    """Its arguments: ``[OPTIONS] FILES...``."""
    summary: str
    """The first sentence of its help."""
    paragraphs: tuple[str, ...]
    """All of its help; one that begins with ``\\b`` keeps its lines."""
    options: tuple[tuple[str, str], ...]
    """Options as they are typed, with what they do."""


def commands() -> Iterator[CommandHelp]:
    """Yield the program, then its commands in the order of its help."""
    context = cli.make_context("traincast", [], resilient_parsing=True)
    yield _help(cli, context)
    for name in cli.list_commands(context):
        each = cli.get_command(context, name)
        if each is not None:
            yield _help(each, each.make_context(name, [], context, resilient_parsing=True))


def _help(command: click.Command, context: click.Context) -> CommandHelp:
    text = "\n\n".join(part for part in (command.help, command.epilog) if part)
    paragraphs = tuple(part.strip("\n") for part in text.split("\n\n") if part.strip())
    options = (each for each in command.get_params(context) if isinstance(each, click.Option))
    records = (each.get_help_record(context) for each in options)
    return CommandHelp(
        context.command_path,
        " ".join(command.collect_usage_pieces(context)),
        command.get_short_help_str(200),
        paragraphs,
        tuple(record for record in records if record is not None),
    )
