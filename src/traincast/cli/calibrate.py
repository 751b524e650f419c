"""``traincast calibrate``."""

from functools import partial
from pathlib import Path

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.terminal import announced, console, print_json, print_line, progress


@click.command(name="calibrate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=known("cluster", "gpu"),
    help="Preset, GPU or TOML file to start from (collectives, runs).",
)
@click.option(
    "--gpu",
    metavar="NAME|FILE",
    shell_complete=known("gpu", "cluster"),
    help="The accelerator that operators were measured on.",
)
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    metavar="JOB",
    help="The job of training logs and traces.",
)
@click.option(
    "--constants",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Profile of calibrate --gpu that forecasts of runs and traces are made with.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the fitted profile there.")
@click.option("--table", is_flag=True, help="Keep the measured times, which exactly these groups then take.")
@click.option("--json", "as_json", is_flag=True, help="Print residuals and constants as JSON and nothing else.")
def command(
    files: tuple[Path, ...],
    cluster: str | None,
    gpu: str | None,
    job: Path | None,
    constants: Path | None,
    out: Path | None,
    table: bool,
    as_json: bool,
) -> None:
    """Fit constants to measurements, print residuals, write a profile.

    With --cluster, FILES are logs of nccl-tests, or CSV files of measured collectives, of one
    cluster, or CSV files of training runs on it. With --job they are training logs of that job,
    or the traces of one run of it, on its cluster. With --gpu they are CSV files of measured
    operators, about 20 timings per family.
    """
    if gpu is not None and (cluster is not None or job is not None):
        raise click.UsageError("--gpu applies to measured operators and cannot be combined with --cluster or --job")
    if cluster is None and gpu is None and job is None:
        raise click.UsageError(
            "say --cluster (measured collectives, training runs), --job (training logs) or --gpu (measured operators)"
        )
    of_runs = ("training-runs", "training-logs", "traces")
    runs = gpu is None and (job is not None or api.kind_of_measurements(files[0]) in of_runs)
    if table and (gpu is not None or runs):
        raise click.UsageError(f"--table is for collectives and cannot be combined with {'runs' if runs else '--gpu'}")
    if constants is not None and not runs:
        raise click.UsageError("--constants is for training runs, logs and traces: what else is fitted does not use it")
    with announced(quiet=False), progress("fitting", quiet=as_json):
        if runs:
            fitted = api.calibrate_runs(files, cluster, job, constants=constants)
            profile, document = fitted.profile(), report.run_calibration_to_dict(fitted)
            also = f"--constants {constants} and " if constants else ""
            show, use = partial(report.print_run_calibration, console(), fitted), f"{also}--cluster"
        elif cluster is not None:
            collectives = api.calibrate(files, cluster, table=table)
            profile, document = collectives.profile(), report.calibration_to_dict(collectives)
            show, use = partial(report.print_calibration, console(), collectives), "--cluster"
        elif gpu is not None:
            operators = api.calibrate_operators(files, gpu)
            profile, document = operators.profile(), report.operator_calibration_to_dict(operators)
            show, use = (
                partial(report.print_operator_calibration, console(), operators),
                "--constants (predict, operator)",
            )
    if out is not None:
        report.write_whole(out, profile.encode())
    if as_json:
        print_json(document)
        return
    show()
    if out is not None:
        print_line(f"wrote {out}; use it with {use} {out}")
