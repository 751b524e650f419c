"""Load a model: a built-in one by its name, a Hugging Face ``config.json``, or a TOML file.

A TOML file has the fields of `traincast.model.model` under their own names, and may build on a built-in
model::

    base = "llama3-8b"             # everything else is as in this one
    layers = 40

    [attention]
    kv_heads = 16
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.files import read_toml
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table, with_blocks
from traincast.shipped import constant, shipped_names, shipped_text


def model_names() -> list[str]:
    """Return the names of the built-in models, family by family."""
    return [name for family in constant(_families) for name in family["models"]]


def find_model(name: str) -> str | None:
    """Return the built-in model that a name means, or None: ``llama3-70b``, ``Llama-3-70B``.

    Case, and ``-``, ``_``, ``/`` and spaces between the words do not matter, nor does the organisation that
    Hugging Face puts before a name.
    """
    return constant(_named, _plain(name)) or constant(_named, _plain(name.rpartition("/")[2]))


def builtin_table(name: str) -> dict[str, Any]:
    """Return the values of a built-in model as `traincast.model.table.model_from_table` takes them.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    """
    found = find_model(name)
    if found is None:
        raise UnknownNameError("model", name, model_names())
    return {"name": found, **constant(_values, found)}


def family_table(name: str) -> dict[str, Any] | None:
    """Return what the built-in models of a name's family have in common, without the values of a single model's size.

    The family is told by the word before the first dash, of a name that need not be that of a built-in model:
    ``gpt-39B``, ``llama-3b``. None where no family has such names.
    """
    word = re.split(r"[-_/\s]", name.lower())[0]
    for family in constant(_families):
        if word in family.get("prefixes", ()):
            return _without_names(family)
    return None


def load_model(name_or_path: str) -> Model:
    """Return a built-in model by a name that `find_model` knows, or the one that a file describes.

    A file is TOML, or a ``config.json`` of Hugging Face or the directory that has one.

    Raises
    ------
    FormatError
        If the file cannot be read or is not what its ending says.
    ConfigError
        If a key is unknown or missing, or a value is of the wrong type or out of range.
    UnknownNameError
        If it is neither a file nor the name of a built-in model.
    """
    path = Path(name_or_path)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.suffix == ".json":
        from traincast.model.hugging_face.read import read_config

        return read_config(path)
    if path.suffix == ".toml":
        return model_over_base(read_toml(path), str(path))
    if find_model(name_or_path) is None and path.is_file():
        raise FormatError("is not a model; give a config.json or a TOML file", str(path))
    return constant(_builtin, builtin_table(name_or_path)["name"])


def _builtin(name: str) -> Model:
    return model_from_table(builtin_table(name), f"the built-in model {name}")


def model_over_base(table: Mapping[str, Any], shown: str) -> Model:
    """Return the model that a table of a file describes, over the built-in one that it names as its ``base``.

    Raises
    ------
    ConfigError
        If a key is unknown or missing, or a value is of the wrong type or out of range.
    UnknownNameError
        If the base is not known.
    """
    given = {"name": Path(shown).stem, "source": f"set in {shown}", **table}
    base = given.pop("base", None)
    if base is not None and (not isinstance(base, str) or find_model(base) is None):
        raise UnknownNameError("base model", str(base), model_names())
    try:
        return model_from_table(merged(builtin_table(base) if base else {}, given), shown)
    except ConfigError as error:
        # What the records find says which field, but not whose.
        raise error if shown in str(error) else ConfigError(f"{error} (in {shown})") from error


def _families() -> tuple[Mapping[str, Any], ...]:
    """Return the families of all files."""
    return tuple(constant(_family, text) for text in constant(_texts))


def _families_with(spelling: str) -> Iterator[Mapping[str, Any]]:
    """Yield the families that may have a model of some spelling: to read all of them takes its time."""
    for text, plain in constant(_texts).items():
        if spelling in plain:
            yield constant(_family, text)


def _texts() -> Mapping[str, str]:
    """Return the text of every family in its files, with its plain spelling."""
    files = (shipped_text(f"models/{name}.toml") for name in shipped_names("models"))
    texts = (text for file in files for text in re.split(r"^(?=\[[^.\]\n]+\]$)", file, flags=re.MULTILINE)[1:])
    return MappingProxyType({text: _plain(text) for text in texts})


def _family(text: str) -> Mapping[str, Any]:
    (family,) = msgspec.toml.decode(text, type=dict[str, dict[str, Any]]).values()
    return family


def _without_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a family or a model that are its shape."""
    return {key: value for key, value in table.items() if key not in ("models", "prefixes", "aliases")}


def _values(name: str) -> Mapping[str, Any]:
    """Return the values of a built-in model over those of its family."""
    family = next(each for each in _families_with(_plain(name)) if name in each["models"])
    return with_blocks(merged(_without_names(family), _without_names(family["models"][name])), name)


def _named(plain: str) -> str | None:
    """Return the built-in model of which a name is one of its spellings, or of its aliases'."""
    for family in _families_with(plain):
        for name, values in family["models"].items():
            if plain in map(_plain, (name, *values.get("aliases", ()))):
                return str(name)
    return None


def _plain(name: str) -> str:
    """Return a spelling without what is between words; between two numbers a dash stays."""
    return re.sub(r"[-_/\s]+", "", re.sub(r"(?<=\d)[-_/\s]+(?=\d)", "~", name.lower()))
