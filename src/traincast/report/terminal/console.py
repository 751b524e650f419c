"""The console that views are printed on: how wide, and in which manner."""

from rich.console import Console

_ENDLESS = 100_000
"""Columns of lines that are not to be broken."""


class ReportConsole(Console):
    """A console that knows in which manner its user wants to read."""

    plain = False
    """In words and lines alone, as screen readers read them."""
    verbose = False
    """In full."""


def console_for(*, plain: bool = False, verbose: bool = False, quiet: bool = False) -> ReportConsole:
    """Return a console on standard output."""
    if plain:
        console = ReportConsole(highlight=False, quiet=quiet, color_system=None, no_color=True, width=_ENDLESS)
    else:
        console = ReportConsole(highlight=False, quiet=quiet)
    console.plain, console.verbose = plain, verbose
    return console


def is_plain(console: Console) -> bool:
    """Say whether a console prints words and lines alone."""
    return isinstance(console, ReportConsole) and console.plain


def is_verbose(console: Console) -> bool:
    """Say whether a console prints all in full."""
    return isinstance(console, ReportConsole) and console.verbose
