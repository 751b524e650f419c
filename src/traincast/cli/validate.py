"""``traincast validate``."""

from pathlib import Path

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.options import group_name
from traincast.cli.terminal import announced, console, counted, print_json, print_line


@click.command(name="validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Preset, GPU or TOML file that all rows ran on (default: each its own).",
)
@click.option("--by", metavar="A,B", help="Groups to show, such as gpu,op+size (default: each that there is).")
@click.option(
    "--cv",
    type=group_name,
    metavar="GROUP",
    help="Also predict each group of collectives, such as ranks, by a fit to the others.",
)
@click.option("--kind", metavar="KIND", help="What to predict where a file holds several things: memory-of-runs.")
@click.option("--job", type=click.Path(path_type=Path), metavar="JOB", help="The job of a training log.")
@click.option(
    "--recipes",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Settings of training runs' recipes, by the column id; what a row says itself wins.",
)
@click.option("--ranking", is_flag=True, help="The regret of choosing layouts of training runs by forecast, by group.")
@click.option(
    "--leave-out",
    "spoilt",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --ranking: ids of rows that say nothing about layouts, one a line.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.csv", help="Write every prediction there.")
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as JSON and nothing else.")
def command(
    files: tuple[Path, ...],
    cluster: str | None,
    by: str | None,
    cv: str | None,
    kind: str | None,
    job: Path | None,
    recipes: Path | None,
    ranking: bool,
    spoilt: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Error statistics against measured runs, kernels or collectives.

    FILE is a CSV file, whose columns say what was measured, a log of nccl-tests, or with --job a
    training log of Megatron-LM, torchtitan or NeMo. Several files are of one kind.
    """
    if ranking:
        given = {"--by": by, "--cv": cv, "--kind": kind, "--job": job, "--out": out}
        _rank(files, cluster, recipes, spoilt, as_json, [name for name, value in given.items() if value is not None])
        return
    if spoilt is not None:
        raise click.UsageError("--leave-out goes with --ranking")
    chosen = [name.strip() for name in by.split(",")] if by is not None else []
    with announced(quiet=False), counted("predicting", quiet=as_json) as tell:
        validation = api.validate(files, cluster, chosen, cv, kind=kind, job=job, recipes=recipes, progress=tell)
    if out is not None:
        report.write_whole(out, report.predictions_csv(validation))
    if as_json:
        print_json(report.validation_to_dict(validation))
        return
    report.print_validation(console(), validation)
    if out is not None:
        print_line(f"wrote {out}")


def _rank(
    files: tuple[Path, ...],
    cluster: str | None,
    recipes: Path | None,
    spoilt: Path | None,
    as_json: bool,
    unused: list[str],
) -> None:
    """Print how well forecasts choose among the layouts of a table."""
    if unused:
        raise click.UsageError(f"--ranking takes no {unused[0]}")
    if len(files) > 1:
        raise click.UsageError(f"--ranking takes one file, and {len(files)} are given")
    with announced(quiet=False), counted("forecasting", quiet=as_json) as tell:
        found = api.ranking.rank(files[0], cluster, leave_out=spoilt, recipes=recipes, progress=tell)
    if as_json:
        print_json(report.ranking_to_dict(found))
        return
    report.print_ranking(console(), found)
