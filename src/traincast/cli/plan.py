"""``traincast plan``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from traincast.cli.job_options import job_of, job_options, naming_unknown_flags
from traincast.cli.options import in_range, run_fields, run_options, with_options, wrong_usage
from traincast.cli.terminal import announced, console, print_json, print_line, progress
from traincast.errors import ConfigError
from traincast.job.training_run import run_terms

_LIMITED = ("tp", "pp", "cp", "ep", "micro_batch")
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _limits(function: Any) -> Any:  # noqa: ANN401
    """Add an upper limit for each of some degrees."""
    text = "Try no larger one."
    flags = [(name, f"--max-{name.replace('_', '-')}") for name in _LIMITED]
    return with_options(
        [click.option(flag, f"max_{name}", type=in_range(name, 1), metavar="N", help=text) for name, flag in flags],
        function,
    )


@click.command(name="plan")
@job_options
@click.option(
    "--space", default="default", show_default=True, metavar="NAME", help="default, or full: all that can be run."
)
@click.option(
    "--fix", multiple=True, metavar="FIELD=A,B", help="Try these values of a field of the layout alone; repeatable."
)
@_limits
@click.option(
    "--headroom",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Memory that stays free (default: so much that running out of it is very unlikely).",
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="Layouts to show."
)
@click.option(
    "--explain", multiple=True, metavar="FIELD=A,FIELD=B", help="Say why such a layout is not the best; repeatable."
)
@click.option("--from", "start", metavar="JOB", help="Plan this job's layout anew, and say what single changes save.")
@run_options
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write the plan and its layouts there.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON and nothing else.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def command(
    words: tuple[str, ...],
    like: str | None,
    cluster: str | None,
    strict: bool,
    space: str,
    fix: Sequence[str],
    headroom: float | None,
    top: int,
    explain: Sequence[str],
    start: str | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Find the best layouts for a model on a cluster.

    Every layout that divides the GPUs, the batch and the model is worked out; the best are simulated in full. What the
    job says of its layout is fixed, what it leaves open is planned: --model llama3-70b --cluster h100 --gpus 1024
    --global-batch 1024. A job whose layout is given already, with --from or as pasted flags (--like), is planned anew.
    """
    from traincast import api
    from traincast.report.json import plan_to_dict
    from traincast.report.plan_files import write_plan
    from traincast.report.terminal.plan import print_plan

    most = {name: values.pop(f"max_{name}") for name in _LIMITED}
    if start is not None and words:
        raise click.UsageError(f"--from {start} is the job; leave out {' '.join(words[:2])!r}")
    words = words if start is None else (start,)
    draft = job_of(words, like, cluster, values, strict=strict, decided=("seq_length",))
    with wrong_usage():
        fixed, asked = _fixed(fix), [_asked(each) for each in explain]
        terms = run_fields(values)
        run_terms(terms)
    with naming_unknown_flags(draft), announced(quiet=quiet), progress("planning", quiet=quiet or as_json):
        found = api.plan(
            draft,
            space=space,
            fix=fixed,
            most={name: value for name, value in most.items() if value is not None},
            headroom=headroom,
            top=top,
            explain=asked,
            start=start is not None or like is not None,
            **terms,
        )
        written = write_plan(found, out) if out else []
    if as_json:
        print_json(plan_to_dict(found))
    elif not quiet:
        print_plan(console(), found)
        for path in written:
            print_line(f"wrote {path}")


def _fixed(said: Sequence[str]) -> Mapping[str, tuple[Any, ...]]:
    """Return the values of each field."""
    found: dict[str, tuple[Any, ...]] = {}
    for each in said:
        name, equals, values = each.partition("=")
        if not equals or not values:
            raise ConfigError(f"{each!r} is no FIELD=VALUE, such as tp=8 or micro_batch=1,2", "fix")
        found[name.strip().replace("-", "_")] = tuple(_value(value.strip()) for value in values.split(","))
    return found


def _asked(text: str) -> Mapping[str, Any]:
    """Return the fields of one layout."""
    found = {}
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if not equals or not value:
            raise ConfigError(f"{each!r} is no FIELD=VALUE, such as tp=4,pp=8", "explain")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:  # noqa: ANN401
    return _WORDS[text.lower()] if text.lower() in _WORDS else int(text) if text.isdigit() else text
