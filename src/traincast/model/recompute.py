"""Recomputation by module: what of a layer runs again in the backward pass, under the names of Megatron Core.

=================  ============================================  ==========================================
module             runs again                                    is dropped (and kept instead)
=================  ============================================  ==========================================
``core_attn``      scores, softmax and the sum of values         scores, softmax sums
``mla_up_proj``    up-projections of latent attention with the   queries, keys, values, normed latent vectors
                   norms and gathers of what they read, rotary   (the latent vectors)
``layernorm``      layernorms that are kernels of their own      their outputs (their inputs)
``mlp``            MLP of dense layers, with its layernorm and   its inputs and activations (the layernorm's
                   its TP exchanges                              input)
``moe``            router, both all-to-alls, experts, shared     all that they save (the layer's tokens)
                   experts
``moe_act``        activation function of the experts            its output (its input)
``shared_experts`` shared experts with their TP exchanges        their activations (their input)
=================  ============================================  ==========================================

``mla_up_proj``, ``layernorm`` and ``moe_act`` discard their output once it was used: what follows them keeps no copy of
it. The others are plain checkpoints, which keep their input. A checkpoint within another runs once more: ``moe`` with
``moe_act`` runs the activation function twice again. Layernorms are kernels of their own before experts and latent
attention; the others are fused with the GEMM that they precede.

Of layers that are recomputed whole, some outputs may be kept all the same (`RECOMPUTE_KEEPS`): what makes them does not
run again. So do policies of JAX that name what they save (AI-Hypercomputer/maxtext, layers/decoders.py,
get_remat_policy).

Source: Megatron-LM, megatron/core/transformer: transformer_config.py (recompute_modules and its checks),
transformer_layer.py, attention.py, multi_latent_attention.py, moe/moe_layer.py, moe/experts.py;
megatron/core/models/gpt/gpt_layer_specs.py (which layernorms are fused).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from traincast.errors import ConfigError
from traincast.model.blocks.part import BLOCKS
from traincast.model.blocks.share import Sequences, Share
from traincast.model.model import Model
from traincast.model.structure import layer_kinds, parts_of
from traincast.registry import known_name

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass recomputes: nothing, parts of each layer (the attention core unless others are named),
or whole layers."""

RECOMPUTE_MODULES = ("core_attn", "mla_up_proj", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of a layer that can be recomputed by themselves."""

DISCARDING_MODULES = ("mla_up_proj", "layernorm", "moe_act")
"""Those that discard their output: cheap to recompute, and without any exchange but gathers of latent vectors."""

RECOMPUTE_KEEPS: Mapping[str, str] = MappingProxyType(
    {
        "linear_qkv": "queries, keys, values",
        "core_attn": "attention outputs",
        "linear_proj": "",
        "linear_fc1": "MLP activations",
        "linear_fc2": "",
        "expert_fc1": "expert FC1 outputs",
        "expert_fc2": "expert inputs",
    }
)
"""Outputs that a layer may keep though it is recomputed whole, under the modules that make them: queries, keys and
values as attention reads them, its output, that of its projection, of both GEMMs of a dense MLP (and of shared
experts), and of experts; and the saved tensor that is as large as each, where it is not the hidden state."""

DEFAULT_MODULES = ("core_attn",)
"""What ``selective`` recomputes where no module is named."""


def known_modules() -> tuple[str, ...]:
    """Return all modules that can be recomputed by themselves: those of Megatron Core, and blocks' own."""
    own = [name for kind in BLOCKS.entries() for name in kind.modules]
    return tuple(dict.fromkeys((*RECOMPUTE_MODULES, *own)))


def spelled_modules(modules: Sequence[str]) -> tuple[str, ...]:
    """Return names of modules in their one spelling; an unknown one raises `UnknownNameError` with the known ones."""
    return tuple(known_name("module to recompute", name, known_modules()) for name in modules)


def split_recompute(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return what is recomputed and the modules that are named with it: ``selective:mlp,moe_act``; None: none are.

    Raises
    ------
    ConfigError, UnknownNameError
        If anything but ``selective`` has modules, or one of them is not known.
    """
    kind, colon, modules = text.partition(":")
    if not colon:
        return text, None
    found = known_name("recomputation", kind.strip(), RECOMPUTE)
    named = modules.replace(",", " ").replace("+", " ").split()
    if found != "selective" or not named:
        raise ConfigError(f"is {text!r}; only selective has modules, as in selective:mlp", "recompute")
    return found, spelled_modules(named)


def modules_of(model: Model, modules: Sequence[str]) -> tuple[str, ...]:
    """Return those of the named modules that a model has, in the order of `known_modules`.

    Raises
    ------
    ConfigError
        If ``mla_up_proj`` is named for a model whose queries are made of no latent vectors.
    """
    available = available_modules(model)
    if "mla_up_proj" in modules and "mla_up_proj" not in available:
        raise ConfigError(f"mla_up_proj needs latent attention, which {model.name} does not have", "recompute_modules")
    return tuple(name for name in available if name in modules)


def available_modules(model: Model) -> tuple[str, ...]:
    """Return the modules that the layers of a model have, in the order of `known_modules`."""
    share = Share(model=model, sequences=Sequences(length=1))
    kinds = layer_kinds(model, range(model.layers))
    had = {module for blocks in kinds for part in parts_of(blocks, share) for module in part.modules}
    return tuple(name for name in known_modules() if name in had)
