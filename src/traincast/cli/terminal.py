"""The terminal of a command: results on stdout, progress on stderr when somebody looks."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """Return the console for what the user asked for; coloured only on a terminal."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout."""
    from traincast.report.json import encode

    sys.stdout.buffer.write(encode(document))


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[None]:
    """Show on stderr that something is being done, if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield


@contextmanager
def counted(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr, if stderr is a terminal; yield what is told how much is done, and of how much."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
