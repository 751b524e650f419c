"""Which blocks each layer has, as Megatron-LM's flags say it: hybrids, experts, linear and sparse attention, windows.

Sources: Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py (moe_layer_freq) and
experimental_attention_variant_module_specs.py (linear_attention_freq); megatron/core/transformer/utils.py
(is_layer_window_attention); megatron/core/transformer/transformer_config.py (the numbers where no flag says them);
megatron/training/arguments.py (moe_freq_type, la_freq_type).
"""

import ast
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from traincast.dialects.flags import Pasted
from traincast.dialects.megatron_hybrid import Hybrid
from traincast.errors import ConfigError
from traincast.model.table import LAYER_LETTERS
from traincast.units import count_of, quoted

_EXPERTS, _LINEAR, _WINDOWS = "moe-layer-freq", "linear-attention-freq", "window-attn-skip-freq"
_VARIANT = "experimental-attention-variant"
_FULL = "full"
"""Variant of attention that has no window where others have one."""

_LONGEST = 1 << 16
_OF_ONE_STACK = (
    "num-experts",
    "multi-latent-attention",
    "hybrid-layer-pattern",
    "mtp-num-layers",
    _LINEAR,
    "window-size",
)
"""Flags of models that have no encoder."""

_SIZES: dict[str, tuple[str, int | None]] = {
    "mamba_head_dim": ("mamba-head-dim", 64),
    "mamba_state": ("mamba-state-dim", 128),
    "mamba_groups": ("mamba-num-groups", 8),
    "linear_key_heads": ("linear-num-key-heads", 16),
    "linear_value_heads": ("linear-num-value-heads", 32),
    "linear_key_dim": ("linear-key-head-dim", 128),
    "linear_value_dim": ("linear-value-head-dim", 128),
    "linear_kernel": ("linear-conv-kernel-dim", 4),
    "index_heads": ("dsa-indexer-n-heads", None),
    "index_head_dim": ("dsa-indexer-head-dim", None),
    "index_topk": ("dsa-indexer-topk", None),
}
"""Number that a block reads to the flag that says it, and what it is where no flag does; None: it must be given."""

_PREFIXES = {"mamba2": "mamba_", "gated_delta": "linear_", "sparse_latent_attention": "index_"}
_MAMBA_EXPAND, _MAMBA_KERNEL = 2, 4
"""Inner over hidden size, and tokens that the convolution sees: megatron/core/ssm/mamba_mixer.py."""


class Decoder(NamedTuple):
    """The decoder of a model that has an encoder, too."""

    layers: int
    length: int
    """Tokens of a sequence."""


def layer_fields(pasted: Pasted, hybrid: Hybrid | None, decoder: Decoder | None) -> dict[str, Any]:
    """Return the fields of a model that say what its layers are.

    They are ``layers``, ``mtp_layers``, ``experts`` and ``attention`` (which layers have experts and windows), and
    where these do not say it all ``blocks``, ``mtp_blocks``, ``variants`` and ``settings``.

    Raises
    ------
    ConfigError
        If a pattern does not cover the layers, or a block lacks a flag that it needs.
    """
    if decoder is not None:
        return _with_encoder(pasted, decoder)
    if hybrid is None:
        layers = pasted.count("num-layers", 1)
        mixers, sparse = _mixers(pasted, layers), _sparse(pasted, layers)
        blocks = [[mixer, "experts" if each else "mlp"] for mixer, each in zip(mixers, sparse, strict=True)]
        table: dict[str, Any] = {"mtp_layers": pasted.count("mtp-num-layers", usual=0), "experts": _period(sparse)}
        plain = table["experts"] is not None and set(mixers) <= {"attention", "latent_attention"}
    else:
        blocks, plain = [[LAYER_LETTERS[letter]] for letter in hybrid.letters], False
        table = {"mtp_layers": hybrid.mtp_layers, "mtp_blocks": [LAYER_LETTERS[each] for each in hybrid.mtp_letters]}
    names = {name for layer in (*blocks, table.get("mtp_blocks", ())) for name in layer}
    if "experts" in names and "num-experts" not in pasted:
        raise pasted.wrong("hybrid-layer-pattern", "has layers of experts (E), which need --num-experts")
    window, some = _windows(pasted, len(blocks))
    if some is not None:
        plain, table["variants"] = False, {_FULL: {"attention": {"window": 0}}}
        for layer, each in zip(blocks, some, strict=True):
            layer[0] += "" if each or layer[0] != "attention" else f":{_FULL}"
    table |= {"layers": len(blocks), "attention": window, "settings": _settings(pasted, names)}
    table |= {"blocks": [] if plain else blocks, "experts": table["experts"] if plain else {}}
    return {key: value for key, value in table.items() if value or key not in ("blocks", "mtp_blocks", "settings")}


def is_encoder(script: str | None) -> bool:
    """Return whether a training script is that of models whose tokens see all others: BERT."""
    return _is(script, "pretrain_bert.py")


def _is(script: str | None, name: str) -> bool:
    return (script or "").rpartition("/")[2] == name


def decoder_of(pasted: Pasted, script: str | None) -> Decoder | None:
    """Return the decoder of a model that has an encoder, too; None for a model of one kind of layers.

    Source: Megatron-LM, megatron/training/arguments.py (validate_args; flags of the encoder are those of other models).

    Raises
    ------
    ConfigError
        If it lacks a flag, or has one that such models do not have.
    """
    flags = ("decoder-num-layers", "decoder-seq-length")
    given = [flag for flag in flags if flag in pasted]
    if not given:
        if _is(script, "pretrain_t5.py"):
            text = f"needs --{flags[0]} and --{flags[1]}; without them its decoder is not described"
            raise ConfigError(text, "pretrain_t5.py")
        return None
    for flag in ("num-layers", "seq-length", flags[1]):
        if flag not in pasted:
            raise pasted.wrong(flag, f"is missing; --{given[0]} needs it")
    for flag in _OF_ONE_STACK:
        if flag in pasted:
            raise pasted.wrong(
                flag, f"cannot be combined with --{given[0]}: such layers of a decoder are not described"
            )
    if pasted.count("pipeline-model-parallel-size", 1, usual=1) > 1:
        text = f"cannot be combined with --{given[0]}: stages of a model with an encoder are not described"
        raise pasted.wrong("pipeline-model-parallel-size", text)
    layers = pasted.count(flags[0], 1, usual=pasted.count("num-layers", 1))
    return Decoder(layers, pasted.tokens(flags[1]))


def _with_encoder(pasted: Pasted, decoder: Decoder) -> dict[str, Any]:
    """Return the fields of a model whose decoder looks at what its encoder made in every layer."""
    encoder = pasted.count("num-layers", 1)
    blocks = [["encoder_attention", "encoder_mlp"]] * encoder
    blocks += [["attention", "cross_attention", "mlp"]] * decoder.layers
    settings = {"encoder_length": pasted.tokens("seq-length")}
    return {"layers": len(blocks), "blocks": blocks, "settings": settings, "experts": {}}


def _mixers(pasted: Pasted, layers: int) -> list[str]:
    """Return the kind of attention of each layer."""
    usual, variant = "latent_attention" if pasted.is_on("multi-latent-attention") else "attention", _variant(pasted)
    if variant == "gated_delta":
        linear = _layers_with(pasted, _LINEAR, layers, lambda index, every: (index + 1) % every != 0)
        return [variant if each else usual for each in linear]
    if variant is not None and usual == "attention":
        raise pasted.wrong(_VARIANT, "is dsa, which needs --multi-latent-attention")
    return [variant or usual] * layers


def _sparse(pasted: Pasted, layers: int) -> list[bool]:
    """Return which layers have experts."""
    if "num-experts" not in pasted or _EXPERTS not in pasted:
        return ["num-experts" in pasted] * layers
    found = _layers_with(pasted, _EXPERTS, layers, lambda index, every: index % every == 0)
    if True not in found:
        raise pasted.wrong(_EXPERTS, f"gives none of {layers} layers experts; leave out --num-experts instead")
    return found


def _variant(pasted: Pasted) -> str | None:
    """Return the block of the attention variant; older versions have a flag for linear attention alone."""
    known = {"gdn": "gated_delta", "gated_delta_net": "gated_delta", "dsa": "sparse_latent_attention", "none": None}
    for flag in (_VARIANT, "linear-attention-type"):
        if flag in pasted:
            found = pasted.choice(flag, known)
            if found == "gated_delta" and _LINEAR not in pasted:
                raise pasted.wrong(flag, f"is {pasted.text(flag)}, which needs --{_LINEAR}")
            return found
    return None


def _windows(pasted: Pasted, layers: int) -> tuple[dict[str, int], list[bool] | None]:
    """Return attention's window with the layers that have it; where they are irregular, also which they are."""
    if "window-size" not in pasted:
        return {}, None
    window, some = _window(pasted), [True] * layers
    if _WINDOWS in pasted:
        some = _layers_with(pasted, _WINDOWS, layers, lambda index, every: (index + 1) % every != 0)
    if False not in some:
        return {"window": window, "window_layers": 1}, None
    count = some.index(False)
    period = some.index(True, count) if True in some[count:] else layers
    if all(each == (index % period < count) for index, each in enumerate(some)):
        return {"window": window, "window_layers": count, "window_period": period}, None
    return {"window": window, "window_layers": 1}, some


def _window(pasted: Pasted) -> int:
    """Read ``(4095, 0)`` or ``4095,0`` as the tokens a query sees back."""
    text = pasted.words("window-size")
    try:
        value = ast.literal_eval(text)
        return int(value[0]) + 1
    except (ValueError, SyntaxError, TypeError, IndexError):
        raise pasted.wrong("window-size", f"is {quoted(text)}; write it like (4095,0)") from None


def _settings(pasted: Pasted, names: set[str]) -> dict[str, int]:
    """Return the numbers that blocks read."""
    found = {}
    for name in sorted(names & set(_PREFIXES)):
        for setting, (flag, usual) in _SIZES.items():
            if setting.startswith(_PREFIXES[name]):
                if usual is None and flag not in pasted:
                    raise pasted.wrong(flag, "is missing; sparse attention needs it")
                found[setting] = pasted.count(flag, 1, usual=usual)
    if "mamba2" in names:
        inner = pasted.count("hidden-size", 1) * _MAMBA_EXPAND
        found["mamba_heads"] = pasted.count("mamba-num-heads", 1, usual=inner // found["mamba_head_dim"])
        found["mamba_kernel"] = _MAMBA_KERNEL
    return found


def _period(some: Sequence[bool]) -> dict[str, int] | None:
    """Return plain layers at the start, and one in how many of the others is one; None where that is not the rule.

    The last of each period is one, as `Model.has_experts` takes it.
    """
    if True not in some:
        return {}
    first = some.index(True)
    period = some.index(True, first + 1) - first if True in some[first + 1 :] else len(some) - first
    plain = max(first - (period - 1), 0)
    regular = all(
        each == (index >= plain and (index - plain) % period == period - 1) for index, each in enumerate(some)
    )
    return {"first_dense_layers": plain, "period": period} if regular else None


def _layers_with(pasted: Pasted, flag: str, layers: int, of_every: Callable[[int, int], bool]) -> list[bool]:
    """Read a number, or a list such as ``([0]*3+[1]*58)``, as which layers have something.

    `of_every` says it of the layer at an index where a number is given.
    """
    text = "".join(pasted.flags[flag]).strip("'\"")
    every = count_of(text)
    if every:
        return [of_every(index, every) for index in range(layers)]
    found = _list_of(text)
    if found is None or set(found) - {0, 1}:
        raise pasted.wrong(flag, f"is {quoted(text)}; write a number, or a list of 0 and 1 like ([0]*3+[1]*58)")
    if len(found) != layers:
        raise pasted.wrong(flag, f"covers {len(found)} layers, {sum(found)} of them with 1; the model has {layers}")
    return [each == 1 for each in found]


def _list_of(text: str) -> list[int] | None:
    """Return the value of sums and repetitions of lists of numbers; None where it is anything else, or too long."""
    try:
        return _value(ast.parse(text, mode="eval").body) if len(text) < _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> list[int]:
    match node:
        case ast.List(elts=elements):
            numbers = [
                each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, int)
            ]
            if len(numbers) == len(elements):
                return numbers
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=repeated, op=ast.Mult(), right=ast.Constant(value=int(times))):
            found = _value(repeated)
            if len(found) * times <= _LONGEST:
                return found * times
    raise ValueError(ast.dump(node)[:80])
