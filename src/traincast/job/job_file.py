"""A job in a TOML file: sections for model, layout, batch, cluster and software.

::

    [model]
    name = "llama3-70b"

    [parallel]
    tp = 4
    pp = 4

    [batch]
    seq_length = 8192
    global_batch = 256

    [cluster]
    name = "h100"
    gpus = 64

    [software]
    framework = "megatron-core-2026"

`TEMPLATE` lists every key. A section ``[convert.NAME]`` has options of a format's writer for ``traincast convert``.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.files import input_of, read_toml
from traincast.job.draft import Draft
from traincast.job.fields import Field, file_sections
from traincast.job.request import JOB_FIELDS
from traincast.model.load import find_model, model_over_base
from traincast.model.model import Model
from traincast.names import known_names
from traincast.shipped import shipped_text
from traincast.tables import decoded, flat
from traincast.units import quoted

_COMMENTS_AT = 31
"""Column of the comments of the template, where a value leaves room for it."""
_FRAME = shipped_text("job/template.toml")
"""The template with its sections, and without the fields of the table."""


def template() -> str:
    """Return a commented job file: its frame with a line for each field, at the end of its section."""
    fields = file_sections()
    paragraphs = _FRAME.removesuffix("\n").split("\n\n")
    return (
        "\n\n".join("\n".join((each, *map(_template_line, fields.get(_title(each), ())))) for each in paragraphs) + "\n"
    )


def _title(paragraph: str) -> str:
    named = re.match(r"\[(\w+)\]", paragraph)
    return named[1] if named else ""


def _template_line(field: Field) -> str:
    said = f"{'' if field.given else '# '}{field.name} = {field.example}"
    gap = " " if len(said) < _COMMENTS_AT else "  "
    return f"{said.ljust(_COMMENTS_AT - 1)}{gap}# {field.comment}" if field.comment else said


TEMPLATE = template()
"""A commented job file; its open keys are all there are."""


def _sections() -> dict[str, tuple[str, ...]]:
    fields = file_sections()
    own = {_title(each): tuple(re.findall(r"^(\w+) = ", each, re.MULTILINE)) for each in _FRAME.split("\n\n")}
    return {name: (*keys, *(each.name for each in fields[name])) for name, keys in own.items() if name in fields}


SECTIONS: Mapping[str, tuple[str, ...]] = _sections()
"""Keys of each section but ``model``; they are fields of `JobRequest`, save the cluster's name."""


def read_job_file(path: str) -> Draft:
    """Read a job file; what it leaves open is not in the draft.

    Raises
    ------
    FormatError
        If it cannot be read or is not TOML.
    ConfigError
        If a section or key is unknown, or a value of the wrong type.
    UnknownNameError
        If the model that it builds on is not known.
    """
    draft = draft_of_table(read_toml(Path(path)), path)
    return replace(draft, inputs=(input_of(path, "job"),))


def draft_of_table(document: Mapping[str, Any], shown: str) -> Draft:
    """Return the job that the tables of a job file describe, by section; paths are relative to the file.

    Raises
    ------
    ConfigError
        If a section or key is unknown, or a value of the wrong type.
    """
    types = {"name": str} | {name: each.type for name, each in JOB_FIELDS.items()}
    given: dict[str, Any] = {}
    for section, table in document.items():
        if section not in ("model", "convert", *SECTIONS):
            known = known_names(section, ["model", *SECTIONS, "convert"])
            raise ConfigError(f"is not a section; {known} (in {shown})", section)
        if not isinstance(table, Mapping):
            raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", section)
        if section in ("model", "convert"):
            continue
        for key, raw in table.items():
            place = f"{section}.{key}"
            if key not in SECTIONS[section]:
                raise ConfigError(f"is unknown; {known_names(key, SECTIONS[section])} (in {shown})", place)
            try:
                given[key] = decoded(key, types[key], raw)
            except ConfigError as error:
                raise ConfigError(f"{error} (in {shown})", place) from None
    cluster = given.pop("name", None)
    located = _next_to(cluster, shown)
    convert = {name: _choices(name, table, shown) for name, table in document.get("convert", {}).items()}
    return Draft(model=_model(document.get("model"), shown), cluster=located, fields=given, convert=convert)


def _choices(writer: str, table: Any, shown: str) -> dict[str, str]:  # noqa: ANN401
    """Return options of a writer as the command line would have them: a table as ``KEY=VALUE,...``."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", f"convert.{writer}")
    return {name: _as_text(value, shown, f"convert.{writer}.{name}") for name, value in table.items()}


def _as_text(value: Any, shown: str, place: str) -> str:  # noqa: ANN401
    if not isinstance(value, (Mapping, str, bool, int, float)):
        raise ConfigError(f"is {quoted(value)}; it must be text, a number or a table (in {shown})", place)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={each}" for key, each in flat(value).items())
    if isinstance(value, bool):
        return str(value).lower()
    found = Path(shown).parent / str(value)
    return str(found) if isinstance(value, str) and found.is_file() else str(value)


def _model(table: Any, shown: str) -> Model | str | None:  # noqa: ANN401
    """Return the name of a model, or the model that a table describes."""
    if table is None:
        return None
    if set(table) == {"name"}:
        try:
            return _next_to(decoded("name", str, table["name"]), shown)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {shown})", "model.name") from None
    named = find_model(table["name"]) if isinstance(table.get("name"), str) else None
    try:
        return model_over_base(table if named is None else {"base": named, **table}, shown)
    except UnknownNameError:
        raise
    except ConfigError as error:
        raise ConfigError(str(error), "model") from error


def _next_to(name: str | None, shown: str) -> str | None:
    """Return a path relative to the job file as one that can be opened; a name as it is."""
    if name is None or not name.endswith((".toml", ".json")):
        return name
    found = Path(shown).parent / name
    return str(found) if found.is_file() else name
