"""How a command prints: in words, in full, or nothing but errors (`traincast.cli.manner_options`)."""

from dataclasses import dataclass

import click

KEY = "traincast.manner"
"""Where a command keeps it."""


@dataclass(slots=True)
class Manner:
    """How the running command prints."""

    plain: bool = False
    """In words and lines, for screen readers: no bars, no drawings, no columns, no colour."""
    verbose: bool = False
    """All of what is usually told in brief."""
    quiet: bool = False
    """Nothing but errors, and documents that were asked for (``--json``)."""


def manner() -> Manner:
    """Return how the running command prints; the usual way where none runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return Manner()
    found: Manner = context.find_root().meta.setdefault(KEY, Manner())
    return found
