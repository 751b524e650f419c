"""A job as a page says it: fields with their values as they are typed on the command line.

Names stand for what is known; a file of this machine is never opened because a request names it. What a user has in a
file is said by its text instead.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from traincast import api
from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.clusters import cluster_names
from traincast.hardware.gpu import find_datasheet, gpu_names
from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS
from traincast.job.flags import flag_of
from traincast.job.frameworks import framework_names
from traincast.job.options import StepOptions
from traincast.job.request import JOB_FIELDS
from traincast.model.load import find_model, model_names
from traincast.names import find_name
from traincast.units import is_number, plain_number

if TYPE_CHECKING:
    from traincast.serve.bench import Bench
    from traincast.simulation.result import Result

Value = str | int | float | bool | list[str | int] | None
Words = Mapping[str, Value]
"""Field to its value as typed; what is absent, null or empty is left open."""

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OTHERS = ("cluster", "recipe", "allow_oom")
"""What is said besides fields of the job and of how its step is simulated."""
_SWITCHES = ("allow_oom", "unfold")
_UNOPENED = ("constants",)
"""Options that are files alone."""


def words_of(job: Words) -> dict[str, Any]:
    """Return what a job says as `traincast.predict` takes it.

    Raises
    ------
    ConfigError
        If a field is not known, or names a file of this machine.
    """
    given = {name: value.strip() if isinstance(value, str) else value for name, value in job.items()}
    known = (*JOB_FIELDS, *StepOptions.__struct_fields__, *OTHERS)
    found = {}
    for name, value in given.items():
        if value is None or value == "" or value == []:
            continue
        if name not in known:
            raise UnknownNameError("field", name, known)
        found[name] = _NAMED[name](value) if name in _NAMED else _typed(name, value)
    return found


def _typed(name: str, value: Value) -> Any:  # noqa: ANN401
    """Return the value of a field, of a text where it is one."""
    if name in _UNOPENED:
        raise ConfigError("is a file, which a page cannot name; use the command line", name)
    if not isinstance(value, str):
        return value
    field = FIELDS.get(name)
    if name in _SWITCHES or (field is not None and field.takes == "switch"):
        return _SWITCH.get(value.lower(), value)
    if field is not None and field.takes == "choice":
        return find_name(value, choices_of(field)) or value
    if field is not None and field.takes == "text":
        return value
    return number_or_text(value)


def number_or_text(value: Value) -> Value:
    """Return the number that a text is; anything else as it is."""
    return plain_number(value) if isinstance(value, str) and is_number(value) else value


def _model(value: Value) -> str:
    if find_model(str(value)) is None:
        raise UnknownNameError("model", str(value), model_names())
    return str(value)


def _cluster(value: Value) -> str:
    name = str(value)
    found = find_name(name, cluster_names())
    if found is None and find_datasheet(name) is None:
        raise UnknownNameError("cluster", name, [*cluster_names(), *gpu_names()])
    return found or name


def _framework(value: Value) -> str:
    found = find_name(str(value), framework_names())
    if found is None:
        raise UnknownNameError("framework", str(value), framework_names())
    return found


def _lengths(value: Value) -> str:
    if set(str(value)) - set("0123456789kKmM:,. "):
        raise ConfigError("is not a list of lengths; write it like 512:1000,8k:3", "packed_lengths")
    return str(value)


def _pairs(value: Value) -> Any:  # noqa: ANN401
    """Return ``7=1.3,9=1.1`` as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [each.partition("=")[::2] for each in value.split(",")]
    return {key.strip(): plain_number(text) if is_number(text) else text.strip() for key, text in pairs}


def _ranks(value: Value) -> Any:  # noqa: ANN401
    pairs = _pairs(value)
    return {int(key) if str(key).isdigit() else key: each for key, each in pairs.items()}


def _changes(value: Value) -> tuple[str, ...]:
    return tuple(str(each) for each in ([value] if not isinstance(value, list) else value))


_NAMED: Mapping[str, Callable[[Value], Any]] = {
    "model": _model,
    "cluster": _cluster,
    "framework": _framework,
    "packed_lengths": _lengths,
    "busbw_bytes_per_s": _pairs,
    "compute_slowdown": _ranks,
    "what_if": _changes,
}
"""Fields that are names, or that have a form of their own."""


def predicted(job: Words, bench: "Bench") -> "Result":
    """Return the forecast of a job.

    Raises
    ------
    TraincastError
        As `traincast.predict`.
    """
    return api.predict(**words_of(job), engine=bench.engine, study=bench.study)


def command_of(job: Words, command: str = "predict") -> str:
    """Return the command line that says the same.

    Examples
    --------
    >>> command_of({"model": "llama3-8b", "gpus": "8", "overlap_p2p": False})
    'traincast predict --model llama3-8b --gpus 8 --no-overlap-p2p'
    """
    return " ".join(["traincast", command, *(shlex.quote(each) for each in _flags(job))])


def _flags(job: Words) -> Iterator[str]:
    for name, value in job.items():
        if value is None or value == "" or value == []:
            continue
        flag, typed = flag_of(name), _typed(name, value) if name not in _NAMED else value
        if isinstance(typed, bool):
            yield flag if typed else f"--no-{flag[2:]}"
        elif name == "what_if":
            yield from (each for change in _changes(value) for each in (flag, change))
        else:
            yield flag
            yield ",".join(map(str, value)) if isinstance(value, list) else str(value)
