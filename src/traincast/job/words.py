"""The words of the command line as keywords of Python: ``--global-batch 512`` is ``global_batch=512``.

A field goes under its own name and under all names that its flag has, Megatron-LM's too; what a flag reads from a text
(``8k``, ``16MiB``, ``300GB/s``), a keyword reads from a text as well.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

from traincast.errors import ConfigError
from traincast.job.draft import Draft
from traincast.job.fields import Field
from traincast.job.flags import JOB_FLAGS, LAYOUT_FLAGS, flag_of
from traincast.job.options import LayoutOptions, StepOptions
from traincast.job.request import JOB_FIELDS
from traincast.job.training_run import RunTerms
from traincast.names import known_names, nearest
from traincast.tables import decoded

F = TypeVar("F", bound=Callable[..., Any])
Words = Mapping[str, str]
"""Keyword to the field that it sets."""


def _words(names: Iterable[str], flags: Iterable[Field]) -> Words:
    """Return the keywords of some fields."""
    own = {name: name for name in names}
    typed = {_word(flag): each.name for each in flags for flag in each.flags}
    return MappingProxyType({**typed, **{_word(flag_of(name)): name for name in own}, **own})


def _word(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


JOB_WORDS = _words(JOB_FIELDS, JOB_FLAGS)
"""What a job may say."""
LAYOUT_WORDS = _words([*LayoutOptions.__struct_fields__], LAYOUT_FLAGS)
"""What may be said otherwise than a file does."""
STEP_WORDS = _words([*StepOptions.__struct_fields__], ())
"""How a step is simulated, and of which run its length is told."""
RUN_WORDS = _words([*RunTerms.__struct_fields__], ())
"""What a whole run takes."""
SIMULATE_WORDS = MappingProxyType({**STEP_WORDS, **LAYOUT_WORDS, "cluster": "cluster"})
"""All that a simulation of files may be told."""


def sorted_out(words: Mapping[str, Any], *known: Words) -> tuple[dict[str, Any], ...]:
    """Return keywords as values by field, for each kind of field a mapping of its own.

    Raises
    ------
    ConfigError
        If a keyword is of no kind, with those near it, or two of them set one field.
    """
    found: tuple[dict[str, Any], ...] = tuple({} for _ in known)
    for word, value in words.items():
        kind = next((number for number, names in enumerate(known) if word in names), None)
        if kind is None:
            raise ConfigError(f"unknown option {word!r}; {_near(word, known)}")
        field = known[kind][word]
        if field in found[kind]:
            twice = next(other for other in words if known[kind].get(other) == field)
            raise ConfigError(f"is the same as {twice}; give one of them", word)
        found[kind][field] = value
    return found


def _near(word: str, known: Iterable[Words]) -> str:
    """Return what is known: all fields, and of all keywords those near a wrong one."""
    keywords = list(dict.fromkeys(each for names in known for each in names))
    if nearest(word, keywords):
        return known_names(word, keywords)
    return known_names(word, list(dict.fromkeys(field for names in known for field in names.values())))


def job_fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a job as they are checked of a job file; None is left open.

    Raises
    ------
    ConfigError
        If a value is of the wrong type or out of range.
    """
    types = {name: each.type for name, each in JOB_FIELDS.items()}
    return {name: _value(name, types.get(name, str | None), value) for name, value in said.items() if value is not None}


def _value(name: str, annotation: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value of a field; one that no file can hold, such as a framework made in Python, as it is."""
    plain = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(plain, str | int | float | list | tuple):
        return plain
    if isinstance(plain, str) and any(get_origin(kind) is tuple for kind in get_args(annotation)):
        plain = plain.replace(",", " ").split()
    try:
        return decoded(name, annotation, list(plain) if isinstance(plain, tuple) else plain)
    except ConfigError as error:
        raise ConfigError(str(error), name) from None


def said_of_job(said: Mapping[str, Any]) -> Draft:
    """Return what keywords say of a job, by field; a model is one, or the name or path of one."""
    model = said.get("model")
    found = job_fields({name: value for name, value in said.items() if name != "model"})
    return Draft(model=fspath(model) if isinstance(model, PathLike) else model, fields=found)


def takes(*known: Words) -> Callable[[F], F]:
    """Let the signature of a function list its further keywords, one a field, for completion and help."""

    def shown(function: F) -> F:
        plain = signature(function)
        own = [each for each in plain.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        listed = dict.fromkeys(_word(flag_of(field)) for words in known for field in words.values())
        names = [name for name in listed if name not in plain.parameters]
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]
        function.__signature__ = plain.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return shown
