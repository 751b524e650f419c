"""Time the tasks of a job on this machine: its operators, or under torchrun its collectives."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from traincast.measuring.collectives import TorchCollectives
from traincast.measuring.kernels import TorchKernels, import_torch
from traincast.measuring.timing import MeasureError, Summary, Task, measure

_PLAIN: Callable[[Path], str] = partial(Path.read_text, encoding="utf-8")
"""How a script reads the file that it goes on with; traincast itself has a guard for it."""


def under_torchrun() -> bool:
    """Say whether several ranks were started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def run(
    operators: Sequence[Task],
    collectives: Sequence[Task],
    out: Path,
    *,
    minutes: float,
    spread: float,
    tell: Callable[[str], None],
    read_text: Callable[[Path], str] = _PLAIN,
) -> Summary:
    """Time operators, or under torchrun collectives, into a CSV file.

    Raises
    ------
    MeasureError
        If there is no PyTorch or GPU, nothing to time, or the file is another's.
    """
    tasks = collectives if under_torchrun() else operators
    if not tasks:
        what = "collectives between several GPUs" if under_torchrun() else "operators"
        raise MeasureError(f"the job has no {what} to time")
    torch = import_torch()
    if not under_torchrun():
        kernels = TorchKernels(torch)
        return measure(tasks, kernels, out, read_text=read_text, limit_s=60 * minutes, spread=spread, tell=tell)
    ranks = TorchCollectives(torch)
    try:
        said = tell if ranks.writes else lambda _: None
        return measure(tasks, ranks, out, read_text=read_text, limit_s=60 * minutes, spread=spread, tell=said)
    finally:
        ranks.close()


def main(operators: Sequence[Task], collectives: Sequence[Task]) -> None:
    """Run as a script: ``python measure.py [OUT.csv] [MINUTES]``, or the same under torchrun."""
    words = sys.argv[1:]
    out = Path(words[0] if words else "collectives.csv" if under_torchrun() else "operators.csv")
    try:
        minutes = float(words[1]) if len(words) > 1 else 10.0
        found = run(
            operators,
            collectives,
            out,
            minutes=minutes,
            spread=0.01,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (MeasureError, ValueError) as error:
        sys.exit(f"error: {error}")
    for line in found.lines(out):
        print(line)
