"""Read the ``config.json`` of a model on Hugging Face, without its library.

What a file leaves out is what the model's class in huggingface/transformers takes for it
(``src/transformers/models/*/configuration_*.py``); ``data/hugging_face/families.toml`` has those of
them that published files lean on.
"""

import re
from pathlib import Path
from typing import Any

from traincast.errors import ConfigError, FormatError
from traincast.files import read_json
from traincast.model.hugging_face.config import Config
from traincast.model.hugging_face.readers import ConfigFamily, known, unknown_family
from traincast.model.model import Model
from traincast.model.table import model_from_table
from traincast.units import quoted

_NESTED = ("text_config", "llm_config", "language_config")
"""Keys under which a model of text and images has its language model."""


_HYBRID = "hybrids of attention and state-space or linear attention layers are not described"

_TYPES = re.compile(
    r"mamba|rwkv|retnet|xlstm|hyena|delta_?net|linear|recurrent|jamba|zamba|bamba|hymba|hybrid|nemotron_h|falcon_h1"
    r"|qwen3_next|lfm2|^gla$|^hgrn"
)
"""Values of ``model_type`` of models with such layers, whatever keys their files leave out."""

_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention", "attention"))
"""Values of ``layer_types`` that are described."""


def read_config(path: Path) -> Model:
    """Return the model of a ``config.json``; of a model of text and images its language model.

    It is named after the repository where the file says it, else after its directory; its notes say what was taken for
    granted.

    Raises
    ------
    FormatError
        If the file cannot be read or is not a JSON object.
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
            config.note("language-model-only", f"only {key} is read: all but the language model is left out")
            break
    _refuse_undescribed(config)
    table = _family(config).table(config) | {"name": _name(document, path), "source": shown}
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
        raise FormatError("is not a JSON object; give the config.json of a model", str(path))
    return document


def _family(config: Config) -> ConfigFamily:
    kind, families, family = config.word("model_type"), known().types(), _known_family(config)
    if family is not None:
        return family
    if not config.has("num_hidden_layers"):
        what = f"is {kind!r}, which is not known, and the keys are not those of Llama" if kind else "is missing"
        raise config.error(f"{what}; known: {', '.join(sorted(families))}", "model_type")
    what = f"model_type {kind!r} is not known" if kind else "there is no model_type"
    config.note(
        "model-type-unknown",
        f"{what}: taken as a model like Llama by its keys (SwiGLU, RMSNorm); check the parameter count",
        "model_type",
    )
    return unknown_family(config)


def _known_family(config: Config) -> ConfigFamily | None:
    """Return the family of a ``model_type``, which has ``_text`` after it inside a model of text and images."""
    return known().types().get(config.word("model_type").removesuffix("_text"))


def _name(document: dict[str, Any], path: Path) -> str:
    name = document.get("_name_or_path")
    if isinstance(name, str) and name.strip("/. "):
        return name.rstrip("/").rpartition("/")[2]
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem


def _refuse_undescribed(config: Config) -> None:
    """Refuse models that would be forecast as others, with the key that says so."""
    family = _known_family(config)
    read = family.takes if family is not None else ()
    for refused in known().refused:
        keys = (key for key in refused.keys if key not in read)
        found = next((key for key in keys if config.values.get(key) not in (None, 0, False, [], {}, "")), None)
        if found is not None:
            raise _error(config, refused.why, found)
    if family is None and _TYPES.search(config.word("model_type")):
        raise _error(config, _HYBRID, "model_type")
    strange = [] if "layer_types" in read else sorted(set(config.words("layer_types")) - _LAYERS)
    if strange:
        raise _error(config, f"has {quoted(strange[0])}: {_HYBRID}", "layer_types")
    kinds = None if "attn_type_list" in read else config.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind == 0 for kind in kinds):
        # MiniMax-01: 1 is softmax attention, 0 lightning attention.
        raise _error(config, _HYBRID, "attn_type_list")
    if "attn_output_gate" not in read and config.flag("attn_output_gate", default=False):
        raise _error(config, "attention with an output gate is not described", "attn_output_gate")
    if config.flag("is_encoder_decoder", default=False):
        raise config.error("is true; a model of encoder and decoder is not described", "is_encoder_decoder")


def _error(config: Config, why: str, key: str) -> ConfigError:
    return config.error(f"{why}, and the model would be forecast as another one", key)
