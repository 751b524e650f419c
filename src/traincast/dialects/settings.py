"""Settings of a configuration file, and of the command line over it, by their dotted names.

A file is JSON, TOML or YAML by its ending. Its tables and lists are the same settings as dotted names: ``{"bf16":
{"enabled": true}}`` is ``bf16.enabled``.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from traincast.dialects.flags import FlagTable, Pasted, split_flags
from traincast.dialects.judge import Judgement, judge
from traincast.dialects.launch import Launch
from traincast.errors import FormatError
from traincast.files import InputFile, input_of, read_json, read_toml
from traincast.model.load import find_model, model_names
from traincast.names import nearest
from traincast.tables import flat
from traincast.units import quoted

ENDINGS = (".json", ".yaml", ".yml", ".toml")
"""How the names of such files end."""

_ASSIGNED = re.compile(r"^\+{0,2}[A-Za-z_][\w.]*=")
_MOST_SETTINGS = 20_000

Values = Mapping[str, tuple[str, ...]]
"""Dotted name to its values, as the command line would have them."""


def settings_of_file(path: str) -> Values:
    """Return the settings of a file.

    Raises
    ------
    FormatError
        If it cannot be read, is not a document of its kind, or holds anything but named settings.
    """
    found = _read(Path(path))
    if not isinstance(found, Mapping):
        raise FormatError("holds no settings; it must be names with values", path)
    return settings_of_table(found, path)


def _read(path: Path) -> object:
    suffix = path.suffix.lower()
    if suffix in (".json", ".toml"):
        return read_json(path) if suffix == ".json" else read_toml(path)
    # PyYAML is loaded where a YAML file is read only.
    from traincast.dialects.yaml import read_yaml

    return read_yaml(path)


def settings_of_table(table: Mapping[str, object], shown: str) -> Values:
    """Return the settings of nested tables; one that is null is as if it were not there (errors as above)."""
    try:
        found = flat(table)
    except RecursionError:
        raise FormatError("is nested too deeply", shown) from None
    if len(found) > _MOST_SETTINGS:
        raise FormatError(f"has {len(found):,} settings; {_MOST_SETTINGS:,} is the limit", shown)
    return {str(name): words_of(value) for name, value in found.items() if value is not None}


def words_of(value: object) -> tuple[str, ...]:
    """Return a value of a file as the words of a flag: none for true, ``false`` for false."""
    if isinstance(value, bool):
        return () if value else ("false",)
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def words_of_launch(launch: Launch) -> list[str]:
    """Return the words that are settings; without a script ``name=value`` at the front are settings, too."""
    front = [] if launch.script else [f"{name}={value}" for name, value in launch.variables.items() if name.islower()]
    return [*front, *launch.words]


def split_files(words: Sequence[str], endings: Sequence[str] = ENDINGS) -> tuple[list[str], list[str]]:
    """Return the files among words that belong to no flag, and the other words; ``name=value`` becomes a flag."""
    files, rest = [], []
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        alone = not before.startswith("-") or "=" in before
        if alone and not word.startswith("-") and "=" not in word and word.lower().endswith(tuple(endings)):
            files.append(word)
        else:
            rest.append(f"--{word.lstrip('+')}" if _ASSIGNED.match(word) and alone else word)
    return files, rest


def settings_of_words(words: Sequence[str], shown: str, table: FlagTable) -> Values:
    """Return the settings of a command line by their dotted names (errors as `split_flags`)."""
    return {name.replace("-", "_"): values for name, values in split_flags(words, shown, table).flags.items()}


def spelled(settings: Values, table: FlagTable) -> Values:
    """Return settings under their usual names; where two names mean the same, that of the later one counts."""
    found = {}
    for name, values in settings.items():
        to, *preset = table.spellings.get(name.replace("_", "-"), (name,))
        found[to.replace("-", "_")] = tuple(preset) or values
    return found


def judged(settings: Pasted, table: FlagTable, *, strict: bool) -> Judgement:
    """Say what becomes of the settings that are not read (errors as `traincast.dialects.judge.judge`)."""
    return judge({name.replace("_", "-"): text for name, text in settings.given().items()}, table, strict=strict)


def model_of(name: str) -> tuple[str | None, str | None]:
    """Return the model that a name or path means; else None, and why."""
    path = Path(name)
    if (path / "config.json").is_file() or (path.is_file() and path.suffix in (".json", ".toml")):
        return name, None
    found = find_model(name)
    near = ", ".join(nearest(name, model_names()))
    return found, None if found else f"{quoted(name)} is not a known model{near and '; near it: '}{near}"


def input_files(paths: Sequence[str], form: str) -> tuple[InputFile, ...]:
    """Return the files with their digests (errors as `traincast.files.input_of`)."""
    return tuple(input_of(path, form) for path in paths)


def enabled(settings: Values) -> Values:
    """Return settings without those of sections that are switched off (``"fp16": {"enabled": false, ...}``)."""
    off = {name.removesuffix("enabled") for name, values in settings.items() if _is_off(name, values)}
    return {
        name: values for name, values in settings.items() if not name.startswith(tuple(off)) or _is_off(name, values)
    }


def _is_off(name: str, values: tuple[str, ...]) -> bool:
    return name.endswith(".enabled") and [each.lower() for each in values] == ["false"]
