"""Watch the log of a run: whole, or while it is written."""

import time
from collections.abc import Iterator
from pathlib import Path

from traincast.api.checking import forecast_of
from traincast.api.files import JobLike, StrPath
from traincast.checking.alarm import Alarm
from traincast.checking.explained import Explainer
from traincast.checking.watching import Watch
from traincast.formats.training_log.tailing import lines_as_written
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.report.openmetrics import open_metrics
from traincast.simulation.result import Result
from traincast.simulation.study import Study

POLL_S = 1.0
"""How long to wait where a log has no more lines yet."""
TOLD_S = 15.0
"""How often what is known now is told."""


def watch(
    log: StrPath,
    *,
    job: JobLike | Result | None = None,
    cluster: StrPath | Cluster | None = None,
    once: bool = True,
    openmetrics: StrPath | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
    seq_length: int | None = None,
) -> Iterator[Alarm]:
    """Yield the alarms of a training log: level shift, drift, periodic spikes, growing spread, stall, memory creep.

    The log is read and nothing else: no file is written next to it.

    Parameters
    ----------
    log : str or Path
        A log of text lines, or ``-`` for standard input.
    job : path, Draft, JobRequest, Job, or Result, optional
        What runs, as `predict` takes it: a level shift or drift is then explained by the single causes of `check`,
        each by its own forecast. They are made after the first alarm.
    cluster : str, path or Cluster, optional
        Where; by default what the job says, else ``h100``, an assumption.
    once : bool
        Whether to read to the end and stop; else it is followed, over rotation and restarts, for ever.
    openmetrics : str or Path, optional
        A file of OpenMetrics text for Prometheus that is kept up to date: every quarter of a minute, after each alarm
        and at the end.
    gpus, global_batch, seq_length : int, optional
        Of the job, for logs that say tokens per second alone.

    Raises
    ------
    FormatError
        If the log ends and no line of it told the time of a step.
    TraincastError
        If the job cannot be read or forecast.

    Examples
    --------
    >>> import traincast
    >>> [alarm.kind for alarm in traincast.watch("examples/watch/slower.log")]
    ['level shift']
    """
    said = {"gpus": gpus, "global_batch": global_batch, "seq_length": seq_length}
    explainer = None if job is None else Explainer(forecast_of(job, Draft(), cluster, Study()))
    watching = Watch(str(log), {name: value for name, value in said.items() if value is not None}, explainer)

    def tell() -> None:
        if openmetrics is not None:
            _replace(Path(openmetrics), open_metrics(watching.state(), str(log)))

    step_at_s = told_at_s = time.monotonic()
    for line in lines_as_written(Path(log), once=once):
        now_s, before = time.monotonic(), watching.points
        alarms = watching.waited(now_s - step_at_s) if line is None else watching.feed(line)
        step_at_s = now_s if watching.points > before else step_at_s
        if alarms or (not once and now_s - told_at_s > TOLD_S):
            told_at_s = now_s
            tell()
        yield from alarms
        if line is None:
            time.sleep(POLL_S)
    watching.check_read()
    tell()


def _replace(path: Path, text: str) -> None:
    """Write a file in one piece, so that nobody reads half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
