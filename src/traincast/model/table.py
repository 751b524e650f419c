"""Build a model from a table of plain values, as a TOML file has them, under the names of `Model`'s fields."""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from msgspec.structs import fields, replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.model.blocks.part import BLOCKS
from traincast.model.model import NORMS, Attention, Experts, Latent, Model
from traincast.model.structure import check_blocks
from traincast.names import known_names
from traincast.registry import known_name
from traincast.tables import decoded
from traincast.units import checked_field, quoted

T = TypeVar("T", bound=Model | Attention | Experts | Latent)

_NESTED: dict[type, dict[str, type[Attention] | type[Experts] | type[Latent]]] = {
    Model: {"attention": Attention, "experts": Experts},
    Attention: {"latent": Latent},
}
_ZERO_IS_ALLOWED = {
    *("ffn_hidden", "window", "window_layers", "shared_ffn_hidden", "latent_hidden", "first_dense_layers"),
    *("learned_positions", "mtp_layers", "last_wide_layers", "norms_per_layer", "other_params"),
}

_OF_THE_WHOLE = ("blocks", "mtp_blocks", "mtp_layers", "variants", "notes")
"""Fields of a model that no variant of some blocks has."""

LAYER_LETTERS = {
    **{"M": "mamba2", "*": "attention", "-": "mlp", "E": "experts"},
    **{"G": "gated_delta", "+": "latent_attention", "D": "sparse_latent_attention"},
}
"""Letters of a hybrid's pattern, one for each layer, which is one block: Megatron-LM,
megatron/core/models/hybrid/hybrid_layer_allocation.py (Symbols)."""


def model_from_table(table: Mapping[str, Any], shown: str, notes: tuple[Note, ...] = ()) -> Model:
    """Return the model that a table describes, under the names of the fields and nested as the records are.

    A missing ``kv_heads`` is `heads`; a missing ``head_dim`` is the hidden size over `heads`, with latent
    attention the width of a query head; ``experts = false`` takes away those of a base. A ``pattern`` of letters stands
    for the blocks of a hybrid's layers, a ``mtp_pattern`` for those of an MTP layer; each of ``variants`` has what is
    different in blocks of that variant. `shown` is where it comes from.

    Raises
    ------
    ConfigError
        If a key is unknown or missing, or a value is of the wrong type or out of range.
    """
    model = _model(table, shown)
    check_blocks(model)
    return replace(model, notes=notes)


def _model(table: Mapping[str, Any], shown: str) -> Model:
    """Return the model that a table describes, whatever its blocks need."""
    if not isinstance(table.get("attention", {}), dict):
        raise ConfigError(f"is {quoted(table['attention'])}; it must be a table (in {shown})", "attention")
    full = {**with_blocks(table, shown), "attention": dict(table.get("attention", {}))}
    if "variants" in full:
        full["variants"] = _variants(full["variants"], full, shown)
    _complete(full)
    for name, read in (("blocks", _blocks), ("mtp_blocks", _mtp_blocks), ("settings", _settings)):
        if name in full:
            full[name] = read(full[name], shown)
    model = _build(Model, full, "", shown)
    if model.norm not in NORMS:
        raise ConfigError(f"is {model.norm!r}; {known_names(model.norm, NORMS)} (in {shown})", "norm")
    return model


def with_blocks(table: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return a table with the names of blocks in place of patterns, and as many layers as a pattern has letters.

    Raises
    ------
    ConfigError
        If a pattern has a letter that stands for nothing.
    """
    found = dict(table)
    if "pattern" in found:
        found["blocks"] = [[name] for name in _names_of(found.pop("pattern"), "pattern", shown)]
        found.setdefault("layers", len(found["blocks"]))
    if "mtp_pattern" in found:
        found["mtp_blocks"] = _names_of(found.pop("mtp_pattern"), "mtp_pattern", shown)
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of two tables, of both where they are tables, those of `over` first."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _variants(raw: Any, full: Mapping[str, Any], shown: str) -> tuple[tuple[str, Model], ...]:  # noqa: ANN401
    """Return the shapes of variants by name, from tables of what differs from the model, or of whole shapes.

    Whole ones are pairs of name and table, as a record of a run has them.
    """
    of_all = {key: value for key, value in full.items() if key not in _OF_THE_WHOLE}
    whole = isinstance(raw, list | tuple)
    try:
        pairs = dict(raw).items()
    except (TypeError, ValueError):
        raise ConfigError(f"is {quoted(raw)}; it must be a table of tables (in {shown})", "variants") from None
    found = []
    for name, values in pairs:
        if not isinstance(values, Mapping):
            raise ConfigError(f"is {quoted(values)}; it must be a table (in {shown})", f"variants.{name}")
        strange = [] if whole else [key for key in values if key in _OF_THE_WHOLE]
        if strange:
            key = f"variants.{name}.{strange[0]}"
            raise ConfigError(f"belongs to the whole model, not to some blocks (in {shown})", key)
        found.append((name, _model(values if whole else merged(of_all, values), shown)))
    return tuple(found)


def _blocks(raw: Any, shown: str) -> tuple[tuple[str, ...], ...]:  # noqa: ANN401
    """Return the names of the blocks of each layer; one list alone stands for all layers.

    A table with ``times`` and ``blocks`` stands for so many repetitions of some layers.
    """
    lists = raw if isinstance(raw, list | tuple) else [raw]
    lists = [lists] if lists and all(isinstance(each, str) for each in lists) else lists
    found: list[tuple[str, ...]] = []
    for each in lists:
        if isinstance(each, Mapping) and each.keys() == {"times", "blocks"}:
            found += _times(each["times"], shown) * _blocks(each["blocks"], shown)
        elif isinstance(each, list | tuple) and all(isinstance(name, str) for name in each):
            found.append(tuple(map(_known_block, each)))
        else:
            what = "a list of names, of such lists, or of tables of times and blocks"
            raise ConfigError(f"is {quoted(raw)}; it must be {what} (in {shown})", "blocks")
    return tuple(found)


def _times(raw: Any, shown: str) -> int:  # noqa: ANN401
    try:
        return int(decoded("times", int, raw, least=1))
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", "blocks.times") from None


def _known_block(name: str) -> str:
    """Return the name of a block as it is known, with the variant that it is of."""
    kind, colon, variant = name.partition(":")
    return known_name("block", kind, BLOCKS.names()) + colon + variant


def _names_of(pattern: Any, key: str, shown: str) -> list[str]:  # noqa: ANN401
    """Return the names of the blocks that a pattern's letters stand for."""
    unknown = sorted(set(pattern) - set(LAYER_LETTERS)) if isinstance(pattern, str) and pattern else [pattern]
    if unknown:
        known = ", ".join(f"{letter} ({name})" for letter, name in LAYER_LETTERS.items())
        raise ConfigError(f"has {quoted(unknown[0])}; a pattern is made of {known} (in {shown})", key)
    return [LAYER_LETTERS[letter] for letter in pattern]


def _mtp_blocks(raw: Any, shown: str) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(name for each in _blocks(raw, shown) for name in each)


def _settings(raw: Any, shown: str) -> tuple[tuple[str, float], ...]:  # noqa: ANN401
    """Return numbers by name, in the order of these, from a table or its pairs."""
    try:
        pairs = dict(raw).items()
    except (TypeError, ValueError):
        raise ConfigError(f"is {quoted(raw)}; it must be a table of numbers (in {shown})", "settings") from None
    return tuple(sorted((name, checked_field(name, number, f"settings.{name}")) for name, number in pairs))


def _complete(table: dict[str, Any]) -> None:
    """Fill in what follows from other values; what is wrong is left for the check that comes after."""
    attention = table["attention"]
    heads, hidden, latent = attention.get("heads"), table.get("hidden"), attention.get("latent")
    if isinstance(heads, int):
        attention.setdefault("kv_heads", heads)
    if isinstance(latent, dict) and "head_dim" not in attention:
        widths = [latent.get("nope_head_dim"), latent.get("rope_head_dim")]
        if all(isinstance(width, int) for width in widths):
            attention["head_dim"] = sum(width for width in widths if isinstance(width, int))
    elif isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden % heads == 0:
        attention.setdefault("head_dim", hidden // heads)


def _build(kind: type[T], table: Mapping[str, Any], prefix: str, shown: str) -> T:
    known = {field.name: field for field in fields(kind) if field.name != "notes"}
    for key in table:
        if key not in known:
            raise ConfigError(f"is unknown; {known_names(key, known)} (in {shown})", f"{prefix}{key}")
    for name, field in known.items():
        # A head_dim follows from other widths; where one of them is wrong, that is the message.
        if name not in table and field.required and name not in ("q_rank", "head_dim"):
            raise ConfigError(f"is missing; give it, or a base (in {shown})", f"{prefix}{name}")
    arguments: dict[str, Any] = {"q_rank": None} if kind is Latent else {}
    for key, raw in table.items():
        path = f"{prefix}{key}"
        nested = _NESTED.get(kind, {}).get(key)
        if isinstance(raw, tuple) or (raw is None and type(None) in get_args(known[key].type)):
            # What a model lacks is null in a record of it.
            arguments[key] = raw
        elif nested is None:
            types = get_args(known[key].type) or (known[key].type,)
            least = None if float in types else 0 if key in _ZERO_IS_ALLOWED else 1
            try:
                arguments[key] = decoded(key, known[key].type, raw, least=least)
            except ConfigError as error:
                raise ConfigError(f"{error} (in {shown})", path) from None
        elif isinstance(raw, dict):
            arguments[key] = _build(nested, raw, f"{path}.", shown)
        elif raw is not False or type(None) not in get_args(known[key].type):
            raise ConfigError(f"is {quoted(raw)}; it must be a table (in {shown})", path)
    if kind is Attention and "head_dim" not in table:
        raise ConfigError(f"is missing; give it, or a base (in {shown})", f"{prefix}head_dim")
    return kind(**arguments)
