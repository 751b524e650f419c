"""Forecast many published runs at once, on all cores."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context

from traincast.calibrate.runs.run import RunRow, job_of_run
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable
from traincast.simulation.confidence import deviation, sensitivities
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting

_CHUNK = 8
"""Runs that a worker takes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is forecast of a run; `step_s` None where it cannot be, for the reason given."""

    step_s: float | None
    deviation: float = 0.0
    """Standard deviation of the logarithm of the step."""
    slopes: Mapping[str, float] = field(default_factory=dict)
    """Sensitivities, by the class of the factor."""
    gpu: str = ""
    framework: str = ""
    reason: str = ""


def forecast_run(row: RunRow, factors: FactorTable, engine: str = "auto") -> Forecast:
    """Forecast one run."""
    try:
        job = job_of_run(row)
        gpu = row.cluster.gpu
        done = run_job(job, Setting(cluster=row.cluster, engine=engine), factors.for_job(gpu, job.framework.name))
    except TraincastError as error:
        return Forecast(step_s=None, reason=str(error))
    slopes = sensitivities(done)
    return Forecast(
        step_s=done.step_s,
        deviation=deviation(done, factors, slopes),
        slopes=slopes,
        gpu=gpu.name,
        framework=job.framework.name,
    )


def forecast_runs(
    rows: Sequence[RunRow], factors: Sequence[FactorTable], progress: Callable[[int], None] | None = None
) -> list[Forecast]:
    """Forecast runs, each with its own factors.

    Parameters
    ----------
    rows : sequence of RunRow
        The runs.
    factors : sequence of FactorTable
        One for each run; equal ones may be one object.
    progress : callable, optional
        Told after every run how many are done.

    Returns
    -------
    list of Forecast
        In the order of the runs, whatever the number of cores.
    """
    found = []
    for forecast in _all(list(zip(rows, factors, strict=True))):
        found.append(forecast)
        if progress is not None:
            progress(len(found))
    return found


def _all(work: list[tuple[RunRow, FactorTable]]) -> Iterator[Forecast]:
    workers = min(os.cpu_count() or 1, len(work) // _CHUNK)
    if workers < 2:
        yield from (_one(each) for each in work)
        return
    # Forked workers share what is loaded already; every other way to start them would import it again.
    method = "fork" if hasattr(os, "fork") else None
    with ProcessPoolExecutor(workers, mp_context=get_context(method)) as pool:
        yield from pool.map(_one, work, chunksize=_CHUNK)


def _one(work: tuple[RunRow, FactorTable]) -> Forecast:
    # For many runs the compiled engine pays from the first on.
    return forecast_run(*work, engine="kernel" if find_spec("numba") else "auto")
