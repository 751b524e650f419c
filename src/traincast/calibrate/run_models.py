"""Models of measured runs, by the columns of their table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincast.errors import ConfigError
from traincast.model.counts import parameters
from traincast.model.load import builtin_table, family_table, find_model
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table

_NOT_DESCRIBED: tuple[tuple[str, str], ...] = (
    (
        r"nemotron[-_ ]?h\b|nemotron[-_ ]?(?:v3|3(?:[-_.]\d+)?)[-_ ](?:nano|super|ultra|lightning)"
        r"|qwen3[-_ ]?next|qwen3\.5|mamba|jamba|zamba|falcon-?h1|granite-?4",
        "hybrid of attention and state-space or linear layers",
    ),
    (r"deepseek-?v4", "model with compressed sparse attention"),
    (r"flux|diffusion|\bwan\b|hunyuan|\bdit\b|sdxl", "diffusion model"),
    (r"\bvit\b|\bvlm?\b|llava|clip\b|resnet|[-_]vl\b", "vision model"),
    (r"\bt5\b|ul2\b|whisper", "encoder-decoder"),
)
"""Models that are not a stack of attention and feed-forward layers, by their names."""

_BILLION = 1e9

_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("layers", ("layers",)),
    ("hidden", ("hidden",)),
    ("ffn_hidden", ("ffn_hidden",)),
    ("vocab", ("vocab",)),
    ("heads", ("attention", "heads")),
    ("kv_heads", ("attention", "kv_heads")),
    ("head_dim", ("attention", "head_dim")),
    ("experts", ("experts", "experts")),
    ("topk", ("experts", "topk")),
    ("moe_ffn", ("experts", "ffn_hidden")),
)
"""Column, and where its value belongs in the model's table."""


def model_from_columns(row: Mapping[str, str]) -> Model:
    """Return the model of a row's columns, any of which may be missing, under the row's own name.

    What the columns leave open is taken from the built-in model of the row's name, or from the family that
    the name begins with; what they say wins, so that a model cut down to fewer layers is described as it ran.
    `_as_trained` has what else follows from the row.

    Raises
    ------
    ConfigError
        If the model is of a kind that is not described, the shape is incomplete (the message names the
        columns), or a column is no number.
    """
    name = (row.get("model") or "").strip()
    for pattern, kind in _NOT_DESCRIBED:
        if re.search(pattern, name, re.IGNORECASE):
            raise ConfigError(f"{name} is a {kind}, which is not described", "model")
    builtin = builtin_table(name) if find_model(name) is not None else None
    known = builtin if builtin is not None else family_table(name)
    given = _given(row)
    table = _with_head_dim(merged(known or {}, given), given)
    needed = {"layers", "hidden", "ffn_hidden", "vocab", "heads"}
    # A missing kv_heads or head_dim follows from heads.
    needed |= {"experts", "topk", "moe_ffn"} if "experts" in table else set()
    known_of = {column: _section(table, section).get(name) for column, (*section, name) in _COLUMNS}
    lacking = [column for column, value in known_of.items() if column in needed and value is None]
    shown = row.get("id") or name
    if lacking or known is None:
        what = f"the columns {', '.join(lacking)} are empty" if lacking else "nothing tells its kind of layers"
        whose = "no built-in model has that name" + ("" if known is not None else ", and no family either")
        raise ConfigError(
            f"the shape of {name or 'a model without a name'} is incomplete: {what}, and {whose}", "model"
        )
    table |= {"name": name, "source": f"columns of {shown}; {table.get('source', name)}"}
    model = model_from_table(_as_trained(table, builtin, row), f"the columns of {shown}")
    return model if builtin is not None else _head_by_count(model, row)


def _given(row: Mapping[str, str]) -> dict[str, Any]:
    """Return what the columns say, nested as the model's table is."""
    given: dict[str, Any] = {}
    for column, path in _COLUMNS:
        value = _whole(row, column)
        if value is not None:
            given = merged(given, {path[0]: value} if len(path) == 1 else {path[0]: {path[1]: value}})
    return given


def _section(table: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a part of a model's table, empty where it has none."""
    return table.get(path[0], {}) if path else table


def _with_head_dim(table: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table without a family's head size where columns make other heads and do not say their size."""
    heads = given.get("attention", {})
    if "heads" not in heads or "head_dim" in heads:
        return table
    attention = {key: value for key, value in table["attention"].items() if key != "head_dim"}
    return {**table, "attention": attention}


def _as_trained(table: dict[str, Any], builtin: Mapping[str, Any] | None, row: Mapping[str, str]) -> dict[str, Any]:
    """Return the table with what a run does beside its shape.

    * Learned positions: one per token of a sequence.
    * A model cut to fewer layers keeps one dense layer before those with experts, and none that predicts further
      tokens: the memory that SimuMax prints for DeepSeek-V3 with 4 layers (104 GiB with EP 8, 114 GiB with EP 4
      and PP 2) fits no other number.
    * It trains as many MTP layers as a column says.
    """
    seq_length, mtp_layers = _whole(row, "seq_len"), _whole(row, "mtp_layers")
    result = dict(table)
    if result.get("learned_positions") and seq_length:
        result["learned_positions"] = seq_length
    cut = builtin is not None and result["layers"] < builtin["layers"]
    if mtp_layers:
        result["mtp_layers"] = mtp_layers
    elif cut or mtp_layers == 0:
        result.pop("mtp_layers", None)
    experts = result.get("experts")
    if cut and experts and experts.get("first_dense_layers"):
        experts = result["experts"] = {**experts, "first_dense_layers": 1}
    if experts and builtin is not None and experts["experts"] != builtin.get("experts", {}).get("experts"):
        # The groups of a routing are those of its number of experts.
        result["experts"] = {key: value for key, value in experts.items() if key not in ("groups", "group_topk")}
    return result


def _head_by_count(model: Model, row: Mapping[str, str]) -> Model:
    """Return the model with or without a head of its own, whichever has the parameters that are printed.

    Megatron ties a GPT's head by default, and its later scaling tables do not: only their printed sizes say so.
    """
    try:
        printed = float(row.get("params_b") or "nan") * _BILLION
    except ValueError:
        raise ConfigError(f"is {row['params_b']!r}; it must be a number", "params_b") from None
    untied = replace(model, tied_embeddings=False)
    closer = abs(parameters(untied).total - printed) < abs(parameters(model).total - printed)
    return untied if closer else model


def _whole(row: Mapping[str, str], column: str) -> int | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"is {text!r}; it must be a whole number", column) from None
