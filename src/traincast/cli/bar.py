"""A bar on stderr for work that takes longer than two seconds: what is done, its share in percent, the time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from traincast.cli.time_left import TimeLeft

PATIENCE_S = 2.0
"""Work that is shorter than this shows nothing."""

Tell = Callable[[str, float, float | None], None]
"""Takes what is being done, how much of it is done, and of how much (None: nobody knows)."""


@contextmanager
def late_bar(what: str) -> Iterator[Tell]:
    """Show a bar once the body has taken so long that somebody may wonder; yield what is told of its work.

    It is gone when the body ends, however it ends, so that what is printed after it stands alone.
    """
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("gone{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    left, task = TimeLeft(monotonic()), bar.add_task(what, total=None, left="")

    def tell(doing: str, done: float, total: float | None) -> None:
        said = left.text(monotonic(), done / total) if total else ""
        bar.update(task, description=doing, completed=done, total=total, left=said)

    begun = Timer(PATIENCE_S, bar.start)
    begun.daemon = True
    begun.start()
    try:
        yield tell
    finally:
        begun.cancel()
        begun.join()
        if bar.live.is_started:
            bar.stop()
