"""Models of Hugging Face that are not a stack of attention and feed-forward layers, told by their keys.

A key that describes a layer of another kind would otherwise go unread, and the model be taken as the transformer
that its other keys describe. Source: huggingface/transformers, ``src/transformers/models/*/configuration_*.py``, and
the ``config.json`` of the named models.
"""

import re

from traincast.errors import ConfigError
from traincast.model.hugging_face.config import Config
from traincast.units import quoted

_HYBRID = "hybrids of attention and state-space or linear attention layers are not described"
_SPARSE = "attention to keys that an indexer chooses is not described"
_UNEVEN = "layers of different shapes are not described"
_STREAMS = "several residual streams between layers are not described"

_KEYS: tuple[tuple[str, str], ...] = (
    # Mamba, Jamba, Zamba, Bamba, Falcon-H1, Nemotron-H, Granite 4, Hymba, Phi-4-mini-flash
    ("mamba_d_state mamba_d_ssm mamba_num_heads ssm_cfg state_size ssm_state_size", _HYBRID),
    ("hybrid_override_pattern layers_block_type hybrid_layer_ids attn_layer_indices attn_layer_period", _HYBRID),
    # Qwen3-Next, Kimi Linear, Ring-linear, MiniCPM-SALA, RecurrentGemma, LFM2, StripedHyena
    ("linear_num_key_heads linear_num_value_heads linear_attn_config full_attention_interval mixer_types", _HYBRID),
    ("lru_width block_types conv_L_cache hyena_layer_idxs rwkv_version", _HYBRID),
    # DeepSeek-V3.2, GLM-5, MiniCPM 4
    ("index_topk index_n_heads sparse_config", _SPARSE),
    # DeepSeek-V4, Gemma 3n
    ("hc_mult altup_num_inputs laurel_rank", _STREAMS),
    # Llama-Nemotron, MiMo-V2 and LongCat-Flash
    ("block_configs hybrid_layer_pattern zero_expert_num", _UNEVEN),
)
"""Keys of such models, and why they are refused."""

_TYPES = re.compile(
    r"mamba|rwkv|retnet|xlstm|hyena|delta_?net|linear|recurrent|jamba|zamba|bamba|hymba|hybrid|nemotron_h|falcon_h1"
    r"|qwen3_next|lfm2|^gla$|^hgrn"
)
"""Values of ``model_type`` of models with such layers, whatever keys their files leave out."""

_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention", "attention"))
"""Values of ``layer_types`` that are described."""


def refuse_undescribed(config: Config) -> None:
    """Refuse models that would be forecast as others.

    Parameters
    ----------
    config : Config
        The file, or the language model in it.

    Raises
    ------
    ConfigError
        With the key that says so.
    """
    for keys, why in _KEYS:
        found = next((key for key in keys.split() if _is_set(config, key)), None)
        if found is not None:
            raise _error(config, why, found)
    if _TYPES.search(config.word("model_type")):
        raise _error(config, _HYBRID, "model_type")
    strange = sorted(set(config.words("layer_types")) - _LAYERS)
    if strange:
        raise _error(config, f"has {quoted(strange[0])}: {_HYBRID}", "layer_types")
    kinds = config.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind == 0 for kind in kinds):
        # MiniMax-01: 1 is softmax attention, 0 lightning attention.
        raise _error(config, _HYBRID, "attn_type_list")
    if config.flag("attn_output_gate", default=False):
        raise _error(config, "attention with an output gate is not described", "attn_output_gate")
    if config.flag("is_encoder_decoder", default=False):
        raise config.error("is true; a model of encoder and decoder is not described", "is_encoder_decoder")


def _is_set(config: Config, key: str) -> bool:
    return config.values.get(key) not in (None, 0, False, [], {}, "")


def _error(config: Config, why: str, key: str) -> ConfigError:
    return config.error(f"{why}, and the model would be forecast as another one", key)
