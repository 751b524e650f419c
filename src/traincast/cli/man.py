"""``traincast man``: the manual page, made from the help (man(7))."""

from collections.abc import Iterator

import click

from traincast import __version__
from traincast.cli.reference import CommandHelp, commands
from traincast.cli.terminal import print_document

_STATUS = (
    ("0", "Done."),
    ("1", "An input or run error: one message on standard error says what, where and what to do."),
    ("2", "Wrong usage."),
    ("3", "The job is infeasible: it does not fit, or does not divide; the message says by how much."),
    ("130", "Interrupted; no partial file is left."),
)
_ENVIRONMENT = (
    ("NO_COLOR", "Set: no colour, on a terminal either."),
    ("COLUMNS", "Width of what is printed, where standard output is not a terminal."),
    ("TRAINCAST_PLAIN", "Set to 1: plain words, as with --plain."),
    ("TRAINCAST_DEBUG", "Set: the traceback of an error."),
)


@click.command(name="man", epilog="To read it: traincast man > traincast.1, then man ./traincast.1")
def command() -> None:
    """Print the manual page of all commands, for man(1)."""
    print_document("\n".join(_page(tuple(commands()))))


def _page(helps: tuple[CommandHelp, ...]) -> Iterator[str]:
    program, *rest = helps
    yield f'.TH TRAINCAST 1 "" "traincast {__version__}" "User Commands"'
    yield f".SH NAME\ntraincast \\- {_text(program.summary.rstrip('.'))}"
    yield f".SH SYNOPSIS\n.B traincast\n{_text(program.usage)}"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(program)
    yield from _options(program)
    yield ".SH COMMANDS"
    for each in rest:
        yield f".SS {_text(each.name)} {_text(each.usage)}"
        yield from _paragraphs(each)
        yield from _options(each)
    for title, rows in (("EXIT STATUS", _STATUS), ("ENVIRONMENT", _ENVIRONMENT)):
        yield f".SH {title}"
        yield from (f".TP\n.B {_text(name)}\n{_text(what)}" for name, what in rows)


def _paragraphs(each: CommandHelp) -> Iterator[str]:
    for text in each.paragraphs:
        if text.startswith("\b"):
            lines = text.removeprefix("\b").strip()
            yield f".PP\n.nf\n{_text(lines)}\n.fi"
        else:
            yield f".PP\n{_text(' '.join(text.split()))}"


def _options(each: CommandHelp) -> Iterator[str]:
    for name, what in each.options:
        yield f".TP\n.B {_text(name)}\n{_text(what)}"


def _text(text: str) -> str:
    """Return a text with what roff would take as its own made plain, in every line."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)
