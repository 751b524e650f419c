"""``traincast predict``."""

from pathlib import Path
from typing import Any

import click

from traincast.cli.announced import announced
from traincast.cli.job_options import job_of, job_options, naming_unknown_flags, recorded_job
from traincast.cli.run_options import given_fields, output_options, recorded_run, run_fields, run_options
from traincast.cli.terminal import console, print_json, print_line, progress
from traincast.errors import ConfigError
from traincast.job.options import changed_options, make_options


@click.command(name="predict", context_settings={"ignore_unknown_options": False})
@job_options
@run_options
@click.option("--allow-oom", is_flag=True, help="Simulate a job that is refused because it does not fit into memory.")
@output_options
def command(
    words: tuple[str, ...],
    like: str | None,
    cluster: str | None,
    strict: bool,
    allow_oom: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Forecast a step from a model, a parallel layout and a cluster.

    JOB is a job file (traincast init writes one); options win over it. Flags of Megatron-LM or torchtitan are taken
    as they are: traincast predict --like megatron --cluster h100 --gpus 64 -- --num-layers 32 ...

    JOB may also be the result.json of a forecast, or its folder: its job, cluster and options are run again, and
    options win over them.
    """
    try:
        options = make_options(**run_fields(values))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    from traincast import api
    from traincast.report.files import write_directory

    record = recorded_run(words) if like is None else None
    if record is None:
        draft = job_of(words, like, cluster, values, strict=strict)
    else:
        draft = job_of(words, like, cluster, values, recorded=recorded_job(record))
        options, allow_oom = (
            changed_options(record.options, **given_fields(run_fields(values))),
            allow_oom or record.allow_oom,
        )
    with naming_unknown_flags(draft), announced(quiet=quiet), progress("predicting", quiet=quiet or as_json):
        result = api.predict(draft, options=options, allow_oom=allow_oom)
        written = write_directory(result, out) if out else []
    if as_json:
        from traincast.report.json import result_to_dict

        print_json(result_to_dict(result))
    elif not quiet:
        from traincast.report.terminal.step import print_result

        print_result(console(), result)
        for path in written:
            print_line(f"wrote {path}")
