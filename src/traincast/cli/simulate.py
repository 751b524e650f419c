"""``traincast simulate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.options import (
    Name,
    check_reports,
    on_command_line,
    output_options,
    read_options,
    recorded_run,
    run_options,
    simai_overlap,
    step_options,
    token_count,
    try_options,
    wrong_usage,
)
from traincast.cli.sections import SectionedCommand
from traincast.cli.terminal import announced, console, is_read, print_json, progress, show_result
from traincast.job.options import SimaiOverlap, SimulateOptions, changed_options, make_options


@click.command(name="simulate", cls=SectionedCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Preset, GPU or TOML file (default: h100, with a warning).",
)
@read_options
@click.option(
    "--pricing",
    type=Name(("traincast", "simai")),
    default="traincast",
    show_default=True,
    help="simai: SimAI-Analytical's own sum of an AICB file, next to the simulated step.",
)
@click.option(
    "--simai-overlap",
    "overlap",
    type=simai_overlap,
    metavar="GROUP=SHARE,...",
    help="Shares of communication that SimAI takes as overlapped, such as tp=0.5,dp=1,pp=0.5.",
)
@step_options
@try_options
@run_options
@click.option(
    "--tokens-per-step",
    type=token_count,
    metavar="N",
    help="Tokens that a step trains on, such as 4M (decimal), which files do not say; for --tokens.",
)
@output_options
def command(
    files: tuple[Path, ...],
    out: Path | None,
    further: tuple[str, ...],
    as_json: bool,
    analysed: bool,
    verbose: bool,
    quiet: bool,
    pricing: str,
    overlap: SimaiOverlap | None,
    **changes: Any,  # noqa: ANN401
) -> None:
    """Simulate a workload or trace file (several rank files, or the folder they are in, are one run).

    The result.json of a simulation, or its folder, is run again: its files, which must be what they were, on its
    cluster with its options; options win over them.
    """
    check_reports(out, further)
    changes["suggest"] &= is_read(out, as_json=as_json, quiet=quiet)
    with wrong_usage():
        options = make_options(**changes)
    if pricing == "simai":
        if further:
            raise click.UsageError("--report is of the simulated step; --pricing simai --out DIR writes EndToEnd.csv")
        _simai(files, options, overlap, out, as_json=as_json, quiet=quiet)
        return
    if overlap is not None:
        raise click.UsageError("--simai-overlap needs --pricing simai; a simulation finds out what overlaps")
    record = recorded_run(files)
    with announced(quiet=quiet), progress("simulating", quiet=quiet or as_json):
        if record is None:
            result = api.simulate(files, options, engine="auto")
        else:
            said = {**on_command_line(changes), "suggest": changes["suggest"]}
            result = api.simulate_record(record, changed_options(record.options, **said), engine="auto")
        written = report.write_directory(result, out, further=further) if out else []
    show_result(result, written, as_json=as_json, quiet=quiet, analysed=analysed, verbose=verbose)


def _simai(
    files: Sequence[Path],
    options: SimulateOptions,
    overlap: SimaiOverlap | None,
    out: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print SimAI's own sum next to the simulated step, and write the file that SimAI writes of it."""
    with announced(quiet=quiet), progress("simulating", quiet=quiet or as_json):
        summed = api.simai(files, options, overlap)
        result = api.simulate(files, options, engine="auto")
        if out:
            content = report.simai_end_to_end(summed, api.expand(files)[0].name)
            report.write_files(out, [("EndToEnd.csv", [content])], force=True)
    if as_json:
        print_json(report.simai_to_dict(summed, result))
    elif not quiet:
        report.print_simai(console(), summed, result)
