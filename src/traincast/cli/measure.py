"""``traincast measure``."""

from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.cli.job_options import job_of, job_options, naming_unknown_flags
from traincast.cli.options import in_range
from traincast.cli.sections import SectionedCommand
from traincast.cli.terminal import complain, print_line


@click.command(name="measure", cls=SectionedCommand)
@job_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE.csv", help="Write the times there, or go on there."
)
@click.option(
    "--minutes",
    type=in_range("minutes", 0.01, 1e6),
    default=10.0,
    show_default=True,
    help="Start nothing after that.",
)
@click.option(
    "--spread",
    type=in_range("spread", 1e-4, 1),
    default=0.01,
    show_default=True,
    help="Repeat until half the 95 % interval of the median is this share of it.",
)
@click.option(
    "--script", type=click.Path(path_type=Path), metavar="FILE.py", help="Write a script that does it instead."
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    words: tuple[str, ...],
    like: str | None,
    cluster: str | None,
    strict: bool,
    out: Path | None,
    minutes: float,
    spread: float,
    script: Path | None,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Time on this machine's GPU what a job runs, with the PyTorch that is installed.

    JOB is a job file, pasted flags or options, as of traincast predict. Its operators are timed, those that take most
    of its step first, and written to --out, which traincast calibrate --gpu reads. Under torchrun its collectives are
    timed, for traincast calibrate --cluster: torchrun --nproc-per-node 8 -m traincast.cli measure JOB --out FILE.csv

    --script writes a Python file that needs PyTorch alone, for a machine without traincast.
    """
    if (out is None) == (script is None):
        raise click.UsageError("say --out FILE.csv (time it here) or --script FILE.py (for another machine)")
    draft = job_of(words, like, cluster, values, strict=strict)
    with naming_unknown_flags(draft):
        if script is not None:
            report.write_whole(script, api.measuring_script(draft).encode())
            print_line(f"wrote {script}; run it where PyTorch sees the GPU: python {script} times.csv")
        elif out is not None:
            found = api.measure(draft, out, minutes=minutes, spread=spread, tell=_nothing if quiet else complain)
            for line in () if quiet else found.lines(out):
                print_line(line)


def _nothing(_: str) -> None:
    """Tell nothing."""
