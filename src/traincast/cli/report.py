"""``traincast report``."""

from pathlib import Path

import click

from traincast import api, report
from traincast.cli.options import check_reports, output_options
from traincast.cli.serve import serve_page
from traincast.cli.terminal import announced, print_line, progress, show_result


@click.command(name="report")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write the step as a page to explore.")
@click.option("--serve", "served", is_flag=True, help="Open the step in the planner (traincast serve).")
@output_options
def command(
    file: Path,
    html: Path | None,
    served: bool,
    out: Path | None,
    further: tuple[str, ...],
    as_json: bool,
    analysed: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Show a result.json again; FILE may be the folder that it was written to.

    --out writes the files of the result again. For those of single operations (timeline, table of operations) it is
    run again from what it holds; where that is not possible they are left out, which is said.
    """
    check_reports(out, further)
    if served:
        serve_page((file,))
        return
    written: list[Path] = []
    if html is not None:
        api.explorer.explore(file, html)
        if not (quiet or as_json):
            print_line(f"wrote {html}")
        if not (out or as_json or analysed):
            return
    result = api.load_result(file)
    if out:
        with announced(quiet=quiet), progress("simulating", quiet=quiet or as_json):
            result, why = api.with_operations(result, engine="auto")
        if why is not None and not (quiet or as_json):
            print_line(f"files of single operations are left out: {why}")
        written += report.write_directory(result, out, further=further)
    show_result(result, written, as_json=as_json, quiet=quiet, analysed=analysed, verbose=verbose)
