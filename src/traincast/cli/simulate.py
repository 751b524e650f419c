"""``traincast simulate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from traincast.cli.options import (
    Name,
    expert_loads,
    in_range,
    layout_options,
    on_command_line,
    output_options,
    recorded_run,
    schedule_option,
    simai_overlap,
    size,
    step_options,
    wrong_usage,
)
from traincast.cli.terminal import announced, console, print_json, progress, show_result
from traincast.job.dtypes import DTYPE_BYTES
from traincast.job.options import COMM_SOURCES, SimaiOverlap, SimulateOptions, StageRoles, changed_options, make_options


@click.command(name="simulate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--cluster", metavar="NAME|FILE", help="Preset, GPU or TOML file (default: h100, with a warning).")
@layout_options
@schedule_option()
@click.option(
    "--stage-roles",
    type=Name(role.value for role in StageRoles),
    default=StageRoles.AUTO.value,
    show_default=True,
    help="Embedding and final rows on the first and last virtual stage, or on every stage.",
)
@click.option("--overlap-grad-reduce", is_flag=True, help="Overlap the gradient reduction with the last backward pass.")
@click.option("--pp-comm", "pp_message_bytes", type=size, metavar="SIZE", help="Size of one pipeline send/recv.")
@click.option(
    "--comm",
    type=Name(COMM_SOURCES),
    help="Times of a trace's communication: as measured, or from the model (default: by kind of trace).",
)
@click.option(
    "--expert-imbalance",
    type=in_range("expert_imbalance", 1),
    metavar="X",
    help="Tokens of the busiest expert rank over the mean (default 1).",
)
@click.option(
    "--expert-loads",
    type=expert_loads,
    metavar="X,X,...|TRACES",
    help="Relative tokens of each expert rank of an ep group, such as 1.0,0.8,1.2; or traces that show them.",
)
@click.option("--layer-block", metavar="FIRST:LAST", help="Names of the first and last row of a layer, for --layers.")
@click.option("--dtype", type=Name(DTYPE_BYTES), help="Type of the elements that sizes are counted in.")
@click.option("--forward-only", is_flag=True, help="Leave out the backward pass and the gradient reductions.")
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
@output_options
def command(
    files: tuple[Path, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    pricing: str,
    overlap: SimaiOverlap | None,
    **changes: Any,  # noqa: ANN401
) -> None:
    """Simulate a workload or trace file (several rank files, or the folder they are in, are one run).

    The result.json of a simulation, or its folder, is run again: its files, which must be what they were, on its
    cluster with its options; options win over them.
    """
    with wrong_usage():
        options = make_options(**changes)
    if pricing == "simai":
        if out:
            raise click.UsageError("--out has no meaning for SimAI's sum; run without --pricing simai")
        _simai(files, options, overlap, as_json=as_json, quiet=quiet)
        return
    if overlap is not None:
        raise click.UsageError("--simai-overlap needs --pricing simai; a simulation finds out what overlaps")
    from traincast import api
    from traincast.report.files import write_directory

    record = recorded_run(files)
    with announced(quiet=quiet), progress("simulating", quiet=quiet or as_json):
        if record is None:
            result = api.simulate(files, options)
        else:
            result = api.simulate_record(record, changed_options(record.options, **on_command_line(changes)))
        written = write_directory(result, out) if out else []
    show_result(result, written, as_json=as_json, quiet=quiet)


def _simai(
    files: Sequence[Path], options: SimulateOptions, overlap: SimaiOverlap | None, *, as_json: bool, quiet: bool
) -> None:
    """Print SimAI's own sum beside the simulated step."""
    from traincast import api

    with announced(quiet=quiet), progress("simulating", quiet=quiet or as_json):
        report = api.simai(files, options, overlap)
        result = api.simulate(files, options)
    if as_json:
        from traincast.report.json import simai_to_dict

        print_json(simai_to_dict(report, result))
    elif not quiet:
        from traincast.report.terminal.estimates import print_simai

        print_simai(console(), report, result)
