"""The options that describe a job, for every command that takes one: a file, pasted flags, or options."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traincast import api
from traincast.cli.cases import gpu_counts, names_between_commas
from traincast.cli.completion import known
from traincast.cli.options import Name, RecomputeName, in_range, schedule_option, tokens, with_options
from traincast.cli.sections import in_section
from traincast.dialects import LIKES, likely_framework
from traincast.errors import ConfigError, TraincastError
from traincast.job.choices import choices_of
from traincast.job.draft import Draft
from traincast.job.fields import Field
from traincast.job.flags import JOB_FLAGS
from traincast.job.recipes import find_recipe
from traincast.schedules.schedule import SCHEDULES

if TYPE_CHECKING:
    from traincast.job.record import RunRecord

F = TypeVar("F", bound=Callable[..., Any])

_SEVERAL = ("model", "gpus")
_MORE = "Several, with commas or repeated, are planned and compared."
_STRICT = "Refuse pasted flags that are unknown, and another world size than the launcher's."


def job_options(function: F) -> F:
    """Add ``[JOB]``, ``--like``, and a flag for every field of a job, under its own name and Megatron-LM's.

    The command gets ``words``, ``like``, ``cluster``, ``strict`` and one keyword per field of
    `traincast.job.flags.JOB_FLAGS`; `job_of` turns them into a job.
    """
    return with_options(_job_options(several=False), function)


def job_field_options(function: F) -> F:
    """Add all of them but ``[JOB]``, for commands whose arguments are something else."""
    return with_options(_job_options(several=False)[1:], function)


def jobs_options(function: F) -> F:
    """Add the same for many jobs: ``--cluster`` and ``--model`` repeatable, and ``--gpus`` of several numbers.

    The command gets tuples for these three.
    """
    return with_options(_job_options(several=True), function)


def _job_options(*, several: bool) -> list[Callable[[F], F]]:
    more = f" {_MORE}" if several else ""
    return [
        click.argument(
            "words",
            nargs=-1,
            type=click.UNPROCESSED,
            metavar="[JOB] [-- FLAGS...]",
            shell_complete=known(),
        ),
        click.option("--like", type=Name(LIKES), help="Take what follows -- as the flags of this framework."),
        click.option(
            "--cluster",
            multiple=several,
            callback=names_between_commas if several else None,
            metavar="NAME|FILE",
            shell_complete=known("cluster", "gpu"),
            help=f"Preset, GPU or TOML file.{more}",
        ),
        click.option("--strict", is_flag=True, help=_STRICT),
        *(
            each
            for flag in JOB_FLAGS
            for each in in_section(flag.section, [(_several if several and flag.name in _SEVERAL else _option)(flag)])
        ),
    ]


def recipe_option(function: F) -> F:
    """Add ``--recipe``."""
    return click.option(
        "--recipe",
        metavar="NAME",
        shell_complete=known("recipe", files=False),
        help="Start from the settings of a published recipe (traincast recipes lists them); all that is given wins.",
    )(function)


def job_of(
    words: Sequence[str],
    like: str | None,
    cluster: str | None,
    values: Mapping[str, Any],
    *,
    strict: bool = False,
    recorded: Draft | None = None,
    decided: Collection[str] = (),
    recipe: str | None = None,
) -> Draft:
    """Return the job that file, pasted flags and options describe; options win over the others.

    `words` are the path of a job file, or with `like` the pasted flags of that framework; where they name a result, its
    job is `recorded`. `values` are those of all flags by field, None where not given. With `strict` pasted flags that
    are unknown, and GPUs that are not what the launcher starts, are refused. Fields that the command decides may be
    missing. A `recipe` says what none of them does.

    Raises
    ------
    click.UsageError
        If several files are given, or what every job needs is neither in the file, the pasted flags nor the options.
    TraincastError
        If the file or a flag cannot be read.
    """
    said = _said(cluster, values)
    draft = (_found(words, like, strict=strict) if recorded is None else recorded).under(said)
    wrong = [note.text for note in draft.warnings if note.code == "gpus-of-launcher"] if strict else []
    if wrong:
        raise click.UsageError(f"{wrong[0]}; give one of them, or leave out --strict")
    draft = draft if recipe is None else find_recipe(recipe).draft(draft)
    with naming_unknown_flags(draft):
        missing = draft.missing()
        if missing is not None and missing not in decided:
            # A name that is misspelt is told before what is not there yet.
            draft.loaded_model()
            raise click.UsageError(draft.lacks(missing).in_shell)
    return draft


@contextmanager
def naming_unknown_flags(draft: Draft) -> Iterator[None]:
    """Add the pasted flags that are unknown to an error: a misspelt one may be why the job is refused."""
    try:
        yield
    except (TraincastError, click.UsageError) as error:
        for note in draft.warnings:
            if note.code == "flag-unknown":
                error.add_note(note.text)
        raise


def recorded_job(record: "RunRecord") -> Draft:
    """Return the job of a recorded forecast, for options to win over.

    Raises
    ------
    ConfigError
        If the result is not a forecast, or its job was decided in Python, where no option can win.
    """
    draft = record.draft()
    if isinstance(draft, Draft):
        return draft
    raise ConfigError("was built in Python as a Job; run it again there: traincast.run_again(...)", "run.job")


def _said(cluster: str | None, values: Mapping[str, Any]) -> Draft:
    """Return what the options say."""
    given = {flag.name: values[flag.name] for flag in JOB_FLAGS if values.get(flag.name) is not None}
    model = given.pop("model", None)
    return Draft(model=model, cluster=cluster, fields=given)


def _found(words: Sequence[str], like: str | None, *, strict: bool) -> Draft:
    """Return what a job file or pasted flags say."""
    if like is not None:
        from traincast.dialects.recognise import draft_of_words

        return draft_of_words(like, list(words), strict=strict)
    if len(words) > 1 or any(word.startswith("-") for word in words):
        like = likely_framework(words)
        raise click.UsageError(f"{' '.join(words[:3])!r} is not one job file; for pasted flags give --like {like}")
    if not words:
        return Draft()
    return api.described(words[0])


def _names(context: click.Context, option: click.Parameter, value: str | None, known: Name) -> tuple[str, ...] | None:
    """Split names at commas and blanks; refuse one that is not one of the known ones."""
    words = None if value is None else value.replace(",", " ").split()
    return None if words is None else tuple(known.convert(word, option, context) for word in words)


def _several(flag: Field) -> Callable[[F], F]:
    """Return the flag of a field of which several values are planned at once."""
    if flag.name == "model":
        return click.option(
            *flag.flags,
            flag.name,
            multiple=True,
            callback=names_between_commas,
            metavar="NAME|FILE",
            shell_complete=known("model"),
            help=f"{flag.help} {_MORE} A pattern such as llama3* is all that have such a name.",
        )
    text = f"{flag.help} Several as 256,512; 256:2048 doubles, 256:2048:256 goes in steps; h100=8,b200=4 by cluster."
    return click.option(*flag.flags, flag.name, type=gpu_counts, metavar="N,N|N:N", help=text)


def _option(flag: Field) -> Callable[[F], F]:
    names = choices_of(flag)
    if flag.name == "schedule":
        return schedule_option(Name(SCHEDULES.names()))
    if flag.takes == "switch":
        first, *others = flag.flags
        return click.option(f"{first}/--no-{first[2:]}", *others, flag.name, default=None, help=flag.help)
    if flag.takes == "names":
        split, text = partial(_names, known=Name(names)), f"{flag.help[:-1]}; known: {', '.join(names)}."
        return click.option(*flag.flags, flag.name, metavar="A,B", callback=split, help=text)
    number = in_range(flag.name, flag.least, flag.most)
    choice = RecomputeName(names) if flag.name == "recompute" else Name(names)
    types: dict[str, Any] = {"tokens": tokens, "choice": choice, "count": number, "number": number}
    metavar = {"text": "NAME|FILE", "count": "N", "tokens": "N", "number": "X"}.get(flag.takes)
    completed = known(flag.name) if flag.name in ("model", "framework") else None
    return click.option(
        *flag.flags,
        flag.name,
        type=types.get(flag.takes, str),
        metavar=metavar,
        shell_complete=completed,
        help=flag.help,
    )
