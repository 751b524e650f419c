"""``traincast compare``."""

from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.options import run_fields, whole_run_options, wrong_usage
from traincast.cli.terminal import console, print_json
from traincast.dialects.recognise import told_as
from traincast.job.training_run import run_terms


@click.command(name="compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Where a job that is given runs (default: what it says).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON and nothing else.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write both steps as a page to explore.")
@click.option("--ranks", is_flag=True, help="Show every rank, and the parts of each.")
@whole_run_options
def command(
    a: Path,
    b: Path | None,
    cluster: str | None,
    as_json: bool,
    html: Path | None,
    ranks: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Two steps side by side: forecasts, simulations, measured traces, training logs; or two logs of nccl-tests.

    A and B are a result.json (or the folder it was written to), a job file, which is forecast, a
    measured trace, a folder of the rank traces of one run, or a training log of Megatron-LM,
    torchtitan or NeMo. Differences are those of B to A. Logs of nccl-tests, or tables of measured
    collectives, are compared size by size. Without B the training log A, of Megatron-LM, is compared
    with the forecast of the job that its arguments describe.

    With --html both are simulated, results and measured traces again, and shown side by side in a browser.
    """
    terms = run_fields(values)
    with wrong_usage():
        run_terms(terms)
    if b is None and api.kind_of_measurements(a) != "training-logs":
        raise click.UsageError(f"with what is {a} to be compared? Only a training log may stand alone")
    collectives = [
        each for each in (a, b) if each and each.is_file() and api.kind_of_measurements(each) == "collectives"
    ]
    if len(collectives) == 1:
        raise click.UsageError(f"{collectives[0]} holds collectives, and the other side does not; validate it instead")
    if collectives and b is not None:
        if terms:
            raise click.UsageError("--tokens applies to a training run, and these are collectives")
        _collectives(a, b, as_json=as_json)
        return
    if cluster is not None and b is not None and not any(each.suffix == ".toml" or told_as(each) for each in (a, b)):
        raise click.UsageError("--cluster is where a job runs, and neither A nor B is a job file")
    if html is not None:
        _page(a, b, cluster, html)
    comparison = api.compare(api.described(a) if b is None else a, b or a, cluster, **terms)
    if as_json:
        print_json(report.comparison_to_dict(comparison))
    else:
        report.print_comparison(console(), comparison, ranks=ranks)


def _page(a: Path, b: Path | None, cluster: str | None, out: Path) -> None:
    """Write both steps as a page."""
    if b is None:
        raise click.UsageError("--html shows two steps; a training log has no operations to show")
    api.explorer.explore(a, out, against=b, cluster=cluster)


def _collectives(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare measured collectives."""
    found = api.compare_collectives(a, b)
    if as_json:
        print_json(report.collective_comparison_to_dict(found))
    else:
        report.print_collective_comparison(console(), found)
