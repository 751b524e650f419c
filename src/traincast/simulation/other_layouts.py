"""What else the files of a run allow that do not say how it was laid out, with the step of each."""

from collections.abc import Callable
from math import prod

from msgspec.structs import replace

from traincast.analysis.summary import OtherLayout
from traincast.errors import TraincastError
from traincast.simulation.step import Setting
from traincast.simulation.what_if import Changed
from traincast.workload.workload import Workload

MOST_GPUS = 8192
"""GPUs of a layout up to which it is tried."""
DEGREES = ("tp", "dp", "pp", "ep", "microbatches")


def other_layouts(workload: Workload, setting: Setting, rerun: Callable[[Changed], float]) -> tuple[OtherLayout, ...]:
    """Return the other layouts that a workload's files allow, each with its step; those that cannot run are left out.

    Parameters
    ----------
    workload : Workload
    setting : Setting
        How the step is simulated.
    rerun : callable
        Simulates a changed run and returns its step, in seconds.
    """
    plain = replace(setting, what_if=(), jitter=0.0, failures=None)
    found = []
    for fields in workload.other_layouts:
        gpus = prod(fields[name] for name in ("tp", "dp", "pp")) * workload.parallel.cp
        if gpus > MOST_GPUS:
            continue
        try:
            step_s = rerun(Changed(plain, dict(fields)))
        except TraincastError:
            continue
        found.append(OtherLayout(**{name: fields[name] for name in DEGREES}, gpus=gpus, iteration_time_s=step_s))
    return tuple(found)
