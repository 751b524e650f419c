"""``traincast watch``."""

import os
import subprocess
from pathlib import Path

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.terminal import complain, flush, print_document, print_line

SLOWER = 4
"""Exit code after an alarm of speed."""
FORGIVEN = 30
"""Seconds that a command of --on-alarm may take."""


@click.command(name="watch")
@click.argument("log", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--job",
    metavar="JOB",
    shell_complete=known(),
    help="What runs: a job file, a script or settings, a result.json. Alarms are then explained by its forecasts.",
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Where it runs (default: what the job says, else h100, an assumption).",
)
@click.option("--once", is_flag=True, help="Read to the end and stop: exit 4 after an alarm of speed, else 0.")
@click.option("--json", "as_json", is_flag=True, help="Print each alarm as a line of JSON and nothing else.")
@click.option("--on-alarm", metavar="COMMAND", help="Run this in a shell for each alarm, which it gets as JSON.")
@click.option(
    "--openmetrics",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep a file for Prometheus: last step, expected band, verdict, alarms.",
)
@click.option("--gpus", type=click.IntRange(1), help="GPUs of the job, for logs that say tokens per second alone.")
@click.option("--global-batch", type=click.IntRange(1), help="Sequences of a step, likewise.")
@click.option("--seq-length", type=click.IntRange(1), help="Tokens of a sequence, likewise.")
def command(
    log: Path,
    job: str | None,
    cluster: str | None,
    once: bool,
    as_json: bool,
    on_alarm: str | None,
    openmetrics: Path | None,
    gpus: int | None,
    global_batch: int | None,
    seq_length: int | None,
) -> None:
    """Follow the log of a running job, and say when it becomes slower.

    LOG is what Megatron-LM, torchtitan, NeMo, MaxText, DeepSpeed or Hugging Face's Trainer prints, CSV or JSON lines
    with a step and its time, or - for standard input. Nothing is printed while all is well. An alarm is a level shift,
    a drift, periodic spikes, a growing spread, a stall, or memory that creeps: when it began, how large it is, how
    sure that is, and what would explain it. The log is only read, over rotation and restarts of the job.

    The command of --on-alarm gets the alarm on its standard input and as TRAINCAST_ALARM_KIND, _STEP, _SIZE and _TEXT.
    """
    said = {"gpus": gpus, "global_batch": global_batch, "seq_length": seq_length}
    slower = False
    for alarm in api.watch(log, job=job, cluster=cluster, once=once, openmetrics=openmetrics, **said):
        slower = slower or alarm.of_speed
        document = report.encode_line(report.alarm_to_dict(alarm))
        if as_json:
            print_document(document)
        else:
            print_line(report.alarm_text(alarm))
        # Whoever follows a pipe is to know it now.
        flush()
        if on_alarm is not None:
            _run(on_alarm, document, KIND=alarm.kind, STEP=alarm.began_step, SIZE=alarm.size, TEXT=alarm.text)
    if slower:
        click.get_current_context().exit(SLOWER)


def _run(shell: str, document: str, **said: str | float) -> None:
    """Run a command for an alarm; what becomes of it does not end the watch."""
    environment = {**os.environ, **{f"TRAINCAST_ALARM_{name}": str(value) for name, value in said.items()}}
    try:
        done = subprocess.run(  # noqa: S602 (the user's own command)
            shell, shell=True, input=document + "\n", text=True, env=environment, timeout=FORGIVEN, check=False
        )
    except subprocess.TimeoutExpired:
        complain(f"--on-alarm: {shell} was stopped after {FORGIVEN} s")
        return
    if done.returncode:
        complain(f"--on-alarm: {shell} ended with exit code {done.returncode}")
