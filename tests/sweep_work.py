"""Work for the executors' tests: what goes wrong with a point is said in its document."""

import os
import signal

from traincast.sweeps.spec import Point


def points(*whats):
    """Points that do as they are told."""
    return [Point(at, (), {"do": what}) for at, what in enumerate(whats)]


def work(chunk):
    """Return a row for each point, or raise, or die."""
    return [_row(point) for point in chunk]


def _row(point):
    match point.document["do"]:
        case "raise":
            raise RuntimeError("a defect")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "ok", "step_s": float(point.index)}
