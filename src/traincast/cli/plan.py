"""``traincast plan``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.cli.apply import Applied, apply_option
from traincast.cli.cases import runs_options
from traincast.cli.job_options import job_of, jobs_options, naming_unknown_flags, recipe_option
from traincast.cli.options import in_range, run_fields, with_options, wrong_usage
from traincast.cli.sections import SectionedCommand
from traincast.cli.terminal import announced, console, counted, print_document, print_json, print_line, progress
from traincast.crew import cores
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.fields import FIELDS, limited
from traincast.job.training_run import run_terms

MOST_WORKERS = 4
"""Processes that share a plan at most, if not asked for more: there is no work for many."""
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _limits(function: Any) -> Any:  # noqa: ANN401
    """Add an upper limit for each of some degrees."""
    text = "Try no larger one."
    flags = [(name, f"--max-{name.replace('_', '-')}") for name in limited()]
    return with_options(
        [
            click.option(flag, f"max_{name}", type=in_range(name, FIELDS[name].least), metavar="N", help=text)
            for name, flag in flags
        ],
        function,
    )


@click.command(name="plan", cls=SectionedCommand)
@jobs_options
@click.option(
    "--space", default="default", show_default=True, metavar="NAME", help="default, or full: all that can be run."
)
@click.option("--allow-offload", is_flag=True, help="Let the host keep optimizer states and activations, too.")
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
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Processes that share the work (default: one for each core, at most {MOST_WORKERS}); the plan is the same.",
)
@click.option("--from", "start", metavar="JOB", help="Plan this job's layout anew, and say what single changes save.")
@recipe_option
@runs_options
@apply_option
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write the plan and its layouts there.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON and nothing else.")
@click.option("--quiet", is_flag=True, help="Print the layout to run in a line, and else nothing but errors.")
def command(
    words: tuple[str, ...],
    like: str | None,
    cluster: tuple[str, ...],
    strict: bool,
    space: str,
    allow_offload: bool,
    fix: Sequence[str],
    headroom: float | None,
    top: int,
    explain: Sequence[str],
    workers: int | None,
    start: str | None,
    recipe: str | None,
    applied: Applied | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **values: Any,  # noqa: ANN401
) -> None:
    """Find the best layouts for a model on a cluster.

    Every layout that divides the GPUs, the batch and the model is worked out; the best are simulated in full. What the
    job says of its layout is fixed, what it leaves open is planned: --model llama3-70b --cluster h100 --gpus 1024
    --global-batch 1024. A job whose layout is given already, with --from, --recipe or as pasted flags (--like), is
    planned anew. Several models, clusters and numbers of GPUs are compared in one table.
    """
    if applied is not None:
        applied.check(out)
    most = {name: values.pop(f"max_{name}") for name in limited()}
    if start is not None and words:
        raise click.UsageError(f"--from {start} is the job; leave out {' '.join(words[:2])!r}")
    words = words if start is None else (start,)
    many: dict[str, Any] = {"models": values.pop("model"), "clusters": cluster, "gpus": values.pop("gpus") or ()}
    goals = {name: values.pop(name) for name in ("days", "budget", "rank_by")}
    asks = goals["days"] is not None or goals["budget"] is not None
    model, gpus = next(iter(many["models"]), None), many["gpus"]
    first = {"model": model, "gpus": None if isinstance(gpus, dict) else next(iter(gpus), None)}
    open_ = ("seq_length", "gpus") if asks or isinstance(gpus, dict) else ("seq_length",)
    said = {**values, **first}
    draft = job_of(words, like, next(iter(cluster), None), said, strict=strict, decided=open_, recipe=recipe)
    with wrong_usage():
        options: dict[str, Any] = {
            "space": space,
            **({"allow_offload": True} if allow_offload else {}),
            "fix": _fixed(fix),
            "most": {name: value for name, value in most.items() if value is not None},
            "headroom": headroom,
            "top": top,
            "explain": list(map(_asked, explain)),
            "workers": workers or min(MOST_WORKERS, cores()),
            **_terms(values, asks=asks),
        }
    had = any(each is not None for each in (start, like, recipe))
    with naming_unknown_flags(draft), announced(quiet=quiet):
        found = _planned(draft, {**many, **goals}, {**options, "start": had}, asks=asks, quiet=quiet or as_json)
        written = report.write_plan(found, out) if out else []
        if applied is not None:
            text = report.planned_job_file(found, numbers=applied.numbers)
            written += report.write_files(*applied.written(out, text), force=True)
    if as_json:
        print_json(report.plan_to_dict(found))
    elif quiet:
        for line in report.brief_lines(found):
            print_document(line)
    else:
        report.show_plan(console(), found)
        for path in written:
            print_line(f"wrote {path}")
    if asks and found.goal.chosen is None:
        raise click.exceptions.Exit(InfeasibleError.exit_code)


def _planned(
    draft: Draft,
    many: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    asks: bool,
    quiet: bool,
) -> Any:  # noqa: ANN401
    """Return the plan, or those of several cases, which an answer to what days or money buy is, too."""
    several = isinstance(many["gpus"], dict) or any(len(many[each]) > 1 for each in ("models", "clusters", "gpus"))
    patterns = any(set("*?[") & set(each) for each in many["models"])
    if several or asks or patterns:
        with counted("planning", quiet=quiet) as tell:
            return api.plans(draft, tell=tell, **{name: value for name, value in many.items() if value}, **options)
    if many["rank_by"] is not None:
        raise click.UsageError("--rank-by orders several cases; give more of --model, --cluster or --gpus")
    with progress("planning", quiet=quiet):
        return api.plan(draft, engine="auto", advise=True, **options)


def _fixed(said: Sequence[str]) -> Mapping[str, tuple[Any, ...]]:
    """Return the values of each field."""
    found: dict[str, tuple[Any, ...]] = {}
    for each in said:
        name, equals, values = each.partition("=")
        if not equals or not values:
            raise ConfigError(f"{each!r} is not FIELD=VALUE, such as tp=8 or micro_batch=1,2", "fix")
        found[name.strip().replace("-", "_")] = tuple(_value(value.strip()) for value in values.split(","))
    return found


def _asked(text: str) -> Mapping[str, Any]:
    """Return the fields of one layout."""
    found = {}
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if not equals or not value:
            raise ConfigError(f"{each!r} is not FIELD=VALUE, such as tp=4,pp=8", "explain")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _terms(values: Mapping[str, Any], *, asks: bool) -> dict[str, Any]:
    """Return what is said of the whole run, checked; its price by cluster where there are several.

    Its tokens need not be given where there are so many for each parameter, or days or money are.
    """
    said, each = values["gpu_hour_price"], values["tokens_per_parameter"]
    prices = dict(said)
    if len(said) > 1 and (len(prices) < len(said) or "" in prices):
        raise ConfigError("several prices need a cluster each; write them like h100=2.5", "gpu-hour-price")
    terms = run_fields({**values, "gpu_hour_price": None})
    implied = {"tokens": 1.0} if prices or "failures" in terms or asks or each is not None else {}
    for price in prices.values() or (None,):
        run_terms({**implied, **terms, **({} if price is None else {"gpu_hour_price": price})})
    if each is not None:
        terms["tokens_per_parameter"] = each
    return terms | ({"gpu_hour_price": prices.get("", prices)} if prices else {})


def _value(text: str) -> Any:  # noqa: ANN401
    return _WORDS[text.lower()] if text.lower() in _WORDS else int(text) if text.isdigit() else text
