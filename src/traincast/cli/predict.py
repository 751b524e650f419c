"""``traincast predict``."""

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from traincast import api, report
from traincast.cli.job_options import job_of, job_options, naming_unknown_flags, recipe_option, recorded_job
from traincast.cli.options import (
    Applied,
    apply_option,
    check_reports,
    on_command_line,
    output_options,
    recorded_run,
    run_options,
    step_fields,
    step_options,
    try_options,
    wrong_usage,
)
from traincast.cli.sections import SectionedCommand
from traincast.cli.terminal import announced, is_read, progress, show_result
from traincast.job.options import StepOptions, changed_options


@click.command(name="predict", cls=SectionedCommand, context_settings={"ignore_unknown_options": False})
@job_options
@recipe_option
@step_options
@try_options
@run_options
@click.option("--allow-oom", is_flag=True, help="Simulate a job that is refused because it does not fit into memory.")
@click.option(
    "--fail-on-oom-risk",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Refuse (exit code 3) a job whose chance of running out of memory is above this share, such as 0.1.",
)
@apply_option
@output_options
def command(
    words: tuple[str, ...],
    like: str | None,
    cluster: str | None,
    strict: bool,
    recipe: str | None,
    allow_oom: bool,
    fail_on_oom_risk: float | None,
    applied: Applied | None,
    out: Path | None,
    further: tuple[str, ...],
    as_json: bool,
    analysed: bool,
    verbose: bool,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Forecast a step from a model, a parallel layout and a cluster.

    JOB is a job file (traincast init writes one); options win over it. Flags of Megatron-LM or torchtitan are taken
    as they are: traincast predict --like megatron --cluster h100 --gpus 64 -- --num-layers 32 ...

    JOB may also be the result.json of a forecast, or its folder: its job, cluster and options are run again, and
    options win over them.
    """
    check_reports(out, further)
    if applied is not None:
        applied.check(out)
    values["suggest"] &= is_read(out, as_json=as_json, quiet=quiet)
    with wrong_usage():
        options = StepOptions(**step_fields(values))
    record = recorded_run(words) if like is None else None
    if record is None:
        draft = job_of(words, like, cluster, values, strict=strict, recipe=recipe)
    else:
        draft = job_of(words, like, cluster, values, recorded=recorded_job(record), recipe=recipe)
        said = {**on_command_line(step_fields(values)), "suggest": values["suggest"]}
        options = changed_options(record.options, **said)
        allow_oom = allow_oom or record.allow_oom
    with naming_unknown_flags(draft), announced(quiet=quiet), progress("predicting", quiet=quiet or as_json):
        result = api.predict(
            draft, options=options, engine="auto", allow_oom=allow_oom, fail_on_oom_risk=fail_on_oom_risk
        )
        if not values["suggest"] and applied is None:
            result = replace(result, advice=())
        written = report.write_directory(result, out, further=further) if out else []
        if applied is not None:
            text = report.advised_job_file(result, numbers=applied.numbers)
            written += report.write_files(*applied.written(out, text), force=True)
    show_result(result, written, as_json=as_json, quiet=quiet, analysed=analysed, verbose=verbose)
