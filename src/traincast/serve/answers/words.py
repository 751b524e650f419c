"""A job as a page says it: fields with their values as they are typed on the command line.

Names stand for what is known; a file of this machine is never opened because a request names it. What a user has in a
file is said by its text instead.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from traincast import api
from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.clusters import cluster_from_table, cluster_names, load_cluster
from traincast.hardware.gpu import find_datasheet, gpu_names
from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS
from traincast.job.flags import flag_of
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.options import StepOptions
from traincast.job.request import JOB_FIELDS
from traincast.model.load import find_model, load_model, model_names
from traincast.model.table import model_from_table
from traincast.names import find_name
from traincast.serve.answers.bench import Workbench
from traincast.serve.records.values import Value, Words
from traincast.simulation.result import Result
from traincast.units import is_number, parse_rate, plain_number

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OTHERS = ("cluster", "recipe", "allow_oom")
"""What is said besides fields of the job and of how its step is simulated."""
_SWITCHES = ("allow_oom", "unfold", "suggest", "allow_offload")
_UNOPENED = ("constants",)
"""Options that are files alone."""


def words_of(job: Words, scratch: Path) -> dict[str, Any]:
    """Return what a job says as `traincast.predict` takes it.

    What is described by the text of a file is read from `scratch`, a folder of this process.

    Raises
    ------
    ConfigError
        If a field is not known, or names a file of this machine.
    """
    known = (*JOB_FIELDS, *StepOptions.__struct_fields__, *OTHERS)
    found = {}
    for name, value in said(job):
        if name not in known:
            raise UnknownNameError("field", name, known)
        found[name] = _described(name, str(value), scratch) if name in _DESCRIBED else typed(name, value)
    return found


def said(job: Words) -> Iterator[tuple[str, Value]]:
    """Yield the fields that a job says something of."""
    for name, value in job.items():
        plain = value.strip() if isinstance(value, str) else value
        if plain not in (None, "", []):
            yield name, plain


def typed(name: str, value: Value) -> Any:  # noqa: ANN401
    """Return the value of a field, of a text where it is one.

    Raises
    ------
    ConfigError
        If it would be a file.
    """
    if name in _FORMS:
        return _FORMS[name](value)
    if name in _UNOPENED:
        raise ConfigError("is a file, which a page cannot name; use the command line", name)
    if not isinstance(value, str):
        return value
    field = FIELDS.get(name)
    if name in _SWITCHES or (field is not None and field.takes == "switch"):
        return _SWITCH.get(value.lower(), value)
    if field is not None and field.takes == "choice":
        return find_name(value, choices_of(field)) or value
    return value if field is not None and field.takes == "text" else number_or_text(value)


def number_or_text(value: Value) -> Value:
    """Return the number that a text is; anything else as it is."""
    return plain_number(value) if isinstance(value, str) and is_number(value) else value


def is_text(value: str) -> bool:
    """Say whether a value is the text of a file rather than a name."""
    return value.startswith("{") or "\n" in value or " = " in value


def _described(name: str, value: str, scratch: Path) -> Any:  # noqa: ANN401
    """Return what a name or the text of a file describes."""
    load, find, known = _DESCRIBED[name]
    if is_text(value):
        return _of_text(name, value, load, scratch)
    found = find(value)
    if found is None:
        error = UnknownNameError(name, value, known())
        error.field = name
        raise error
    return found


def _of_text(name: str, text: str, load: Callable[[str], Any], scratch: Path) -> Any:  # noqa: ANN401
    """Return what a text describes: TOML, the ``config.json`` of a model, or the JSON of what a text was read as."""
    if text.startswith("{") and name in _TABLES:
        try:
            table = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"is not JSON ({error}); paste the whole file", name) from None
        if not {"model_type", "architectures"} & set(table):
            return _TABLES[name](table, name)
    path = scratch / ("config.json" if text.startswith("{") else f"{name}.toml")
    path.write_text(text, encoding="utf-8")
    return load(path.name)


_TABLES: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "model": model_from_table,
    "cluster": cluster_from_table,
}


def _cluster_named(name: str) -> str | None:
    return find_name(name, cluster_names()) or (name if find_datasheet(name) is not None else None)


_DESCRIBED: Mapping[str, tuple[Callable[[str], Any], Callable[[str], str | None], Callable[[], Sequence[str]]]] = {
    "model": (load_model, lambda name: name if find_model(name) else None, model_names),
    "cluster": (load_cluster, _cluster_named, lambda: [*cluster_names(), *gpu_names()]),
    "framework": (load_framework, lambda name: find_name(name, framework_names()), framework_names),
}
"""What has a name or a file: what reads it, which name is meant, and all names."""


def _lengths(value: Value) -> str:
    if set(str(value)) - set("0123456789kKmM:,. "):
        raise ConfigError("is not a list of lengths; write it like 512:1000,8k:3", "packed_lengths")
    return str(value)


def _pairs(value: Value) -> Any:  # noqa: ANN401
    """Return ``tp=300GB/s,dp=40GB/s`` as a mapping."""
    pairs = [each.partition("=")[::2] for each in str(value).split(",")]
    return {key.strip(): number_or_text(text.strip()) for key, text in pairs}


def _rates(value: Value) -> dict[str, float]:
    return {name: parse_rate(str(rate)) for name, rate in _pairs(value).items()}


def _ranks(value: Value) -> dict[Any, Any]:
    """Return ``7=1.3`` as a mapping of ranks."""
    return {int(key) if key.isdigit() else key: each for key, each in _pairs(value).items()}


def _slowdowns(value: Value) -> Any:  # noqa: ANN401
    return _pairs(value) if "=" in str(value) else number_or_text(value)


def _changes(value: Value) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


_FORMS: Mapping[str, Callable[[Value], Any]] = {
    "packed_lengths": _lengths,
    "busbw_bytes_per_s": _rates,
    "compute_slowdown": _ranks,
    "overlap_slowdown": _slowdowns,
    "what_if": _changes,
}
"""Fields that have a form of their own."""


def predicted(job: Words, bench: Workbench) -> Result:
    """Return the forecast of a job.

    Raises
    ------
    TraincastError
        As `traincast.predict`.
    """
    return api.predict(**words_of(job, bench.scratch), engine=bench.engine, study=bench.study)


def command_of(job: Words, command: str = "predict") -> str:
    """Return the command line that says the same.

    Examples
    --------
    >>> command_of({"model": "llama3-8b", "gpus": "8", "overlap_p2p": False})
    'traincast predict --model llama3-8b --gpus 8 --no-overlap-p2p'
    """
    return " ".join(["traincast", command, *(shlex.quote(each) for each in _flags(job))])


def python_of(job: Words) -> str:
    """Return the program that says the same."""
    words = [f"    {name}={_python(name, value)},\n" for name, value in said(job)]
    return f"import traincast\n\nresult = traincast.predict(\n{''.join(words)})\nprint(result)\n"


def _python(name: str, value: Value) -> str:
    if name in _DESCRIBED:
        return repr(_file_name(name, str(value)))
    return repr(typed(name, value))


def _flags(job: Words) -> Iterator[str]:
    for name, value in said(job):
        flag = flag_of(name)
        plain = value if name in _FORMS or name in _DESCRIBED else typed(name, value)
        if isinstance(plain, bool):
            yield flag if plain else f"--no-{flag[2:]}"
        elif name == "what_if":
            yield from (each for change in _changes(value) for each in (flag, change))
        else:
            yield flag
            yield ",".join(map(str, value)) if isinstance(value, list) else _file_name(name, str(value))


def _file_name(name: str, value: str) -> str:
    """Return the value of a flag; of the text of a file the name that it may be saved under."""
    if name not in _DESCRIBED or not is_text(value):
        return value
    return "config.json" if value.startswith("{") else f"{name}.toml"
