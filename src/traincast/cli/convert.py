"""``traincast convert``."""

from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.cli.completion import WRITTEN_FORMATS, known, one_of
from traincast.cli.options import read_options, step_options, wrong_usage
from traincast.cli.terminal import announced, console, print_json, progress
from traincast.job.options import make_options


@click.command(name="convert")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="IN... OUT")
@click.option(
    "--to",
    required=True,
    metavar="FORMAT",
    shell_complete=one_of(*WRITTEN_FORMATS),
    help="Format to write; an unknown one lists those that are known.",
)
@click.option("--option", "choices", multiple=True, metavar="NAME=VALUE", help="Option of the format's writer; repeat.")
@click.option(
    "--model",
    metavar="NAME|JOB",
    shell_complete=known("model"),
    help="Fill the compute times of an AICB file that has none with a model's or a job file's.",
)
@click.option("--force", is_flag=True, help="Write over files that are there.")
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Preset, GPU or TOML file (default: what the job says, else h100).",
)
@read_options
@step_options
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    files: tuple[Path, ...],
    to: str,
    choices: tuple[str, ...],
    model: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **changes: Any,  # noqa: ANN401
) -> None:
    """Write a job, a workload, a trace or a result in another format.

    IN is a job file, the files of a workload or trace (or the folder they are in), or a result.json, whose run it is.
    OUT is a file, or a folder for formats of one file per rank.
    """
    if len(files) < 2:
        raise click.UsageError(
            "what to read and where to write it are both needed: traincast convert IN OUT --to FORMAT"
        )
    with wrong_usage():
        options = make_options(**changes)
    *given, out = files
    with announced(quiet=quiet), progress("converting", quiet=quiet or as_json):
        source = given[0] if len(given) == 1 else given
        said = _said(choices) | ({} if model is None else {"model": model})
        done = api.convert(source, out, to, options=options, force=force, engine="auto", **said)
    if as_json:
        print_json(report.conversion_to_dict(done))
    elif not quiet:
        report.print_conversion(console(), done)


def _said(choices: tuple[str, ...]) -> dict[str, str]:
    """Read ``NAME=VALUE`` of each."""
    said: dict[str, str] = {}
    for choice in choices:
        name, equals, value = choice.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--option {choice!r} is not of the form NAME=VALUE")
        said[name] = value
    return said
