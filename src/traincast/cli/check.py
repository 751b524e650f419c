"""``traincast check``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traincast import api, report
from traincast.cli.completion import known
from traincast.cli.job_options import job_field_options, recipe_option
from traincast.cli.options import Name, usage, with_options
from traincast.cli.sections import OUTPUT, SectionedCommand, in_section
from traincast.cli.terminal import announced, console, print_document, print_json
from traincast.dialects import likely_framework
from traincast.dialects.recognise import draft_of_words
from traincast.job.draft import Draft
from traincast.job.flags import JOB_FLAGS
from traincast.units import parse_share

if TYPE_CHECKING:
    from traincast.checking.check import Check

F = TypeVar("F", bound=Callable[..., Any])

_FORMS = ("github", "gitlab")
_PATH = click.Path(path_type=Path)


_OUTPUT = (
    click.option("--junit", type=_PATH, metavar="FILE", help="Write the verdict as a test, as JUnit does."),
    click.option("--format", "form", type=Name(_FORMS), help="Print the annotations of a pipeline, and nothing else."),
    click.option("--json", "as_json", is_flag=True, help="Print traincast.check/1 and nothing else."),
    click.option("--quiet", is_flag=True, help="Print one line."),
)


def _output_options(function: F) -> F:
    return with_options(in_section(OUTPUT, _OUTPUT), function)


@click.command(name="check", cls=SectionedCommand)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[LOG...] [-- FLAGS...]")
@click.option(
    "--job",
    metavar="JOB",
    shell_complete=known(),
    help="What should have run: a job file, a script or settings, a result.json (default: the log's own arguments).",
)
@click.option("--baseline", multiple=True, type=_PATH, metavar="LOG", help="Log of a run that was good; repeatable.")
@click.option("--baseline-job", metavar="JOB", help="What ran there (default: the same job).")
@click.option(
    "--between",
    nargs=2,
    metavar="A B",
    help="Two jobs instead of a log: what B should take over A.",
)
@click.option(
    "--fail-above",
    metavar="SHARE",
    type=usage(parse_share),
    help="How much longer than expected a step may be: 5% or 0.05.",
)
@job_field_options
@recipe_option
@click.option(
    "--causes/--no-causes",
    default=True,
    help="Look for what would explain a longer step (the default): some fifty forecasts of the job.",
)
@_output_options
def command(
    words: tuple[str, ...],
    job: str | None,
    baseline: tuple[Path, ...],
    baseline_job: str | None,
    between: tuple[str, str] | None,
    fail_above: float | None,
    like: str | None,
    cluster: str | None,
    strict: bool,
    recipe: str | None,
    causes: bool,
    junit: Path | None,
    form: str | None,
    as_json: bool,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> int:
    """Is this run as fast as it should be: verdict, causes, exit code.

    LOG is a training log; several are of several nodes of one run. What it should take is the forecast of its job, or
    with --baseline the step of a good run times the ratio of two forecasts, which is known much better.

    Exit codes: 0 as expected or faster, 4 slower, 5 nobody can tell; 1, 2 and 3 as everywhere.
    """
    logs, flags = _logs_and_flags(words)
    if bool(logs) == bool(between):
        raise click.UsageError("--between takes no log" if logs else "give a log, or two jobs with --between")
    if as_json and form:
        raise click.UsageError("--json and --format are two documents; give one")
    said = {flag.name: values[flag.name] for flag in JOB_FLAGS if values.get(flag.name) is not None}
    with announced(quiet=quiet or as_json or form is not None):
        if between:
            if job or baseline or baseline_job or flags or like or recipe:
                raise click.UsageError("--between names both jobs; leave out --job, --baseline, --like and --recipe")
            found = api.check_change(*between, cluster, fail_above=fail_above, **said)
        else:
            found = api.check(
                logs,
                _job(job, flags, like, strict=strict),
                cluster,
                baseline=baseline or None,
                baseline_job=baseline_job,
                fail_above=fail_above,
                recipe=recipe,
                causes=causes,
                **said,
            )
    if junit is not None:
        report.write_whole(junit, report.check_to_junit(found))
    _show(found, form, as_json=as_json, quiet=quiet)
    return found.exit_code


def _logs_and_flags(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the logs, and the pasted flags that begin with the first word that is one."""
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return list(map(Path, words[:first])), list(words[first:])


def _job(job: str | None, flags: Sequence[str], like: str | None, *, strict: bool) -> str | Draft | None:
    """Return what should have run: a file or pasted flags; None: what options or the log say."""
    if job is not None and flags:
        raise click.UsageError("--job and pasted flags both say the job; give one")
    if flags and like is None:
        name = likely_framework(flags)
        raise click.UsageError(f"{' '.join(flags[:3])!r} are not logs; for pasted flags give --like {name}")
    if flags and like is not None:
        return draft_of_words(like, list(flags), strict=strict)
    if like is not None:
        raise click.UsageError("--like is of pasted flags, which stand after --; a file says by itself what it is")
    return job


def _show(found: "Check", form: str | None, *, as_json: bool, quiet: bool) -> None:
    """Print a check as it is asked for."""
    if as_json:
        print_json(report.check_to_dict(found))
    elif form:
        print_document(report.annotated(found, form))
    elif quiet:
        print_document(report.check_line(found))
    else:
        report.print_check(console(), found)
