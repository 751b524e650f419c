"""A bar on stderr for work that takes longer than two seconds: what is done, its share in percent, the time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE_S = 2.0
"""Work that is shorter than this shows nothing."""

Tell = Callable[[str, float, float | None], None]
"""Takes what is being done, how much of it is done, and of how much (None: nobody knows)."""


@contextmanager
def late_bar(what: str) -> Iterator[Tell]:
    """Show a bar once the body has taken so long that somebody may wonder; yield what is told of its work.

    It is gone when the body ends, however it ends, so that what is printed after it stands alone.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what, total=None)
    begun = Timer(PATIENCE_S, bar.start)
    begun.daemon = True
    begun.start()
    try:
        yield lambda doing, done, total: bar.update(task, description=doing, completed=done, total=total)
    finally:
        begun.cancel()
        begun.join()
        if bar.live.is_started:
            bar.stop()
