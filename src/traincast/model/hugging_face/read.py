"""Read the ``config.json`` of a model on Hugging Face, without its library.

What a file leaves out is what the model's class in huggingface/transformers takes for it
(``src/transformers/models/*/configuration_*.py``); `traincast.model.hugging_face.families` has those of them
that published files lean on.
"""

from pathlib import Path
from typing import Any

from traincast.errors import ConfigError, FormatError
from traincast.files import read_json
from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.families import FAMILIES, PLAIN, unknown_family
from traincast.model.hugging_face.parts import Family, head
from traincast.model.hugging_face.refused import refuse_undescribed
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table

_NESTED = ("text_config", "llm_config", "language_config")
"""Keys under which a model of text and images has its language model."""


def read_config(path: Path) -> Model:
    """Return the model of a ``config.json``.

    Parameters
    ----------
    path : Path
        The file; of a model of text and images its language model is read.

    Returns
    -------
    Model
        Named after the repository where the file says it, else after its directory. Its notes say what was
        taken for granted.

    Raises
    ------
    FormatError
        If the file cannot be read or is no JSON object.
    ConfigError
        If a key is missing or has a wrong value, or the model is of a kind that is not described.
    """
    document = _parse(path)
    shown = str(path)
    config = Config(document, "", shown)
    for key in _NESTED:
        if isinstance(document.get(key), dict):
            inner = {"model_type": document.get("model_type"), **document[key]}
            config = Config(inner, f"{key}.", shown)
            config.note("language-model-only", f"only {key} is read: what is beside the language model is left out")
            break
    refuse_undescribed(config)
    family = _family(config)
    table: dict[str, Any] = merged(PLAIN, family.values)
    for part in (head, *family.parts):
        table = merged(table, part(config, family))
    table |= {"name": _name(document, path), "source": shown}
    try:
        return model_from_table(table, shown, tuple(config.notes))
    except ConfigError as error:
        raise _in_words_of_the_file(error, table, config) from None


def _in_words_of_the_file(error: ConfigError, table: dict[str, Any], config: Config) -> ConfigError:
    """Return the error of a model's field as one of the file's key, where one key that was read has its value."""
    value: Any = table
    for part in (error.field or "").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    keys = [key for key, number in config.taken.items() if number == value]
    if error.field is None or len(keys) != 1:
        return error
    return ConfigError(str(error).removeprefix(f"{error.field}: "), keys[0])


def _parse(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise FormatError("is no JSON object; give the config.json of a model", str(path))
    return document


def _family(config: Config) -> Family:
    kind = config.word("model_type")
    family = FAMILIES.get(kind.removesuffix("_text"))
    if family is not None:
        return family
    known = ", ".join(sorted(FAMILIES))
    if not config.has("num_hidden_layers"):
        what = f"is {kind!r}, which is not known, and the keys are not those of Llama" if kind else "is missing"
        raise config.error(f"{what}; known: {known}", "model_type")
    what = f"model_type {kind!r} is not known" if kind else "there is no model_type"
    config.note(
        "model-type-unknown",
        f"{what}: taken as a model like Llama by its keys (gated feed-forward, RMS norms); check the parameter count",
        "model_type",
    )
    return unknown_family(config)


def _name(document: dict[str, Any], path: Path) -> str:
    name = document.get("_name_or_path")
    if isinstance(name, str) and name.strip("/. "):
        return name.rstrip("/").rpartition("/")[2]
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem
