"""Flags that say a job, written from the tables that read them (`traincast.dialects.flags`)."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from traincast.dialects.flags import FlagTable
from traincast.dialects.settings import words_of
from traincast.job.job import Job

Said = Mapping[str, Any]
"""Flag to its value: True or False for a switch, a list for several values, None where nothing is to be said."""


def flags_of_fields(table: FlagTable, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that set fields of a job as they stand; a field whose value has no name there is left out."""
    found: dict[str, Any] = {}
    left = dict(values)
    for flag, (field, means) in table.fields.items():
        if field not in left:
            continue
        names = [left[field]] if means is None else [name for name, meant in means.items() if meant == left[field]]
        if names:
            found[flag] = names[0]
            del left[field]
    return found


def in_order(names: Iterable[str], said: Said) -> Iterator[tuple[str, Any]]:
    """Yield the flags of some names that say something, with their values."""
    return ((name, said[name]) for name in names if said.get(name) not in (None, False))


def flag_line(prefix: str, name: str, value: object) -> str:
    """Return a flag with its values as it is typed."""
    return " ".join((f"{prefix}{name}", *words_of(value)))


def toml_of(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as a TOML file; what is None is left out."""
    written = []
    for name, table in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]
        written.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(written) + "\n"


def toml_value(value: object) -> str:
    """Return a plain value as TOML writes it, a table of a table in braces; numbers, texts and lists as JSON does."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(each)}" for key, each in value.items() if each is not None) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON lets one control character through that TOML does not.
    return json.dumps(value).replace("\x7f", "\\u007f")


def lost_schedule(job: Job, says: str, known: Collection[str]) -> Iterator[str]:
    """Yield a comment where a framework, whose schedules are `known`, has none of a job's kind."""
    if job.parallel.pp > 1 and job.pipeline.schedule not in known:
        yield f"# schedule {job.pipeline.schedule}: {says} has none of that kind"
