"""``traincast calibrate``."""

from pathlib import Path

import click

from traincast.cli.terminal import console, print_json, progress


@click.command(name="calibrate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--cluster", required=True, metavar="NAME|FILE", help="Preset or TOML file to start from.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.toml", help="Write the fitted cluster there.")
@click.option("--json", "as_json", is_flag=True, help="Print residuals and constants as JSON and nothing else.")
def command(files: tuple[Path, ...], cluster: str, out: Path | None, as_json: bool) -> None:
    """Fit constants to measurements, print residuals, write a profile.

    FILES are logs of nccl-tests, or CSV files of measured collectives, of one cluster.
    """
    from traincast import api
    from traincast.report.accuracy import calibration_to_dict
    from traincast.report.whole import write_whole

    with progress("fitting", quiet=as_json):
        calibration = api.calibrate(files, cluster)
    if out is not None:
        write_whole(out, calibration.profile().encode())
    if as_json:
        print_json(calibration_to_dict(calibration))
        return
    from traincast.report.terminal import print_calibration

    print_calibration(calibration, console())
    if out is not None:
        click.echo(f"wrote {out}; use it with --cluster {out}")
