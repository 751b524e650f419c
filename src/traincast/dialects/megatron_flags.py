"""Megatron-LM's training flags as a job: ``--like megatron -- <pasted flags>``.

A flag that is absent has Megatron-LM's default, so that little stays open. What becomes of flags that are not read
here says `traincast.dialects.dialect_flags`.
Source: Megatron-LM, megatron/training/arguments.py (core 0.12 to 0.15).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from traincast.diagnostics import Note
from traincast.dialects.dialect_flags import flag_table, judge
from traincast.dialects.launch import launch_notes, read_launch
from traincast.dialects.megatron_checks import DISPATCHER, check_combinations, gradient_bytes, sends_once_to_a_node
from traincast.dialects.megatron_layout import layers_of_layout, moe_layers
from traincast.dialects.megatron_recompute import recompute_fields
from traincast.dialects.pasted import Pasted, split_flags
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.dtypes import TYPE_CHOICES
from traincast.job.job import SHARP_GROUPS
from traincast.model.model import Model
from traincast.model.table import model_from_table
from traincast.units import count_of, quoted

SHOWN = "megatron flags"

_COUNTS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "num-virtual-stages-per-pipeline-rank": "vpp",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "world-size": "gpus",
    "decoder-first-pipeline-num-layers": "first_stage_layers",
    "decoder-last-pipeline-num-layers": "last_stage_layers",
    "make-vocab-size-divisible-by": "vocab_multiple",
}
_SWITCHES = {
    "sequence-parallel": "sequence_parallel",
    "overlap-grad-reduce": "overlap_grad_reduce",
    "overlap-param-gather": "overlap_param_gather",
    "tp-comm-overlap": "overlap_tp",
    "account-for-embedding-in-pipeline-split": "embedding_as_layer",
    "account-for-loss-in-pipeline-split": "head_as_layer",
}
_VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
}
"""Entries of the tokenizers that have one vocabulary. Source: the models' published tokenizers."""
_DEFAULT_VOCABULARY = 50257

_FP8 = {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
_CP = {
    "p2p": "ring",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "a2a": "all_to_all",
    "a2a+p2p": "all_to_all",
}
_BACKENDS = {"flash": "fa2", "fused": "cudnn", "unfused": "unfused", "local": "unfused"}
_FLASH = {"2": "fa2", "3": "fa3"}
_FRAMEWORK = "megatron-core-2025"
_STRATEGIES = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


def draft_of_megatron(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a pasted command line of Megatron-LM.

    Parameters
    ----------
    words : sequence of str
        Its words; launcher and script may stand before the flags.
    strict : bool, default False
        Refuse unknown flags instead of warning of them.

    Returns
    -------
    Draft
        Model and fields; its notes list the flags that have no effect, its warnings those that are not modelled.

    Raises
    ------
    ConfigError
        If a flag lacks what it needs, has a wrong value, or makes a job that cannot be described.
    InfeasibleError
        If layers do not divide into the virtual stages asked for.
    """
    table, launch = flag_table("megatron"), read_launch(words, SHOWN)
    table.check_script(launch.script)
    pasted = split_flags(launch.words, SHOWN, table)
    judged = judge(pasted.given(), table, strict=strict)
    notes = [*judged.notes, *launch_notes(launch)]
    notes.append(
        Note(
            "assumed-framework", f"framework is not given: {_FRAMEWORK}, for pasted Megatron-LM flags; give --framework"
        )
    )
    fields: dict[str, Any] = {"framework": _FRAMEWORK, "cuda_graphs": False}
    fields |= dict.fromkeys(_SWITCHES.values(), False)
    fields |= {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    fields |= {field: pasted.count(flag, 1) for flag, field in _COUNTS.items() if flag in pasted}
    fields |= {field: pasted.is_on(flag) for flag, field in _SWITCHES.items() if flag in pasted}
    if "seq-length" in pasted:
        fields["seq_length"] = pasted.tokens("seq-length")
    if launch.gpus is not None:
        fields.setdefault("gpus", launch.gpus)
    if "num-experts" in pasted:
        # Source: arguments.py, validate_args: experts are split as the rest unless the flag says otherwise.
        fields.setdefault("etp", fields["tp"])
    if "num-experts" in pasted or ("num-layers" not in pasted and DISPATCHER in pasted):
        # The flags may leave the model to --model, and still say how its tokens travel.
        fields["deduplicated_dispatch"] = sends_once_to_a_node(pasted)
    model = _model(pasted, notes)
    _pipeline(pasted, fields, model)
    fields["precision"] = _precision(pasted)
    fields |= recompute_fields(pasted)
    _sharding(pasted, fields)
    _kernels(pasted, fields)
    notes += check_combinations(pasted, fields, model is not None)
    return Draft(
        model=model,
        fields=fields,
        notes=tuple(notes),
        warnings=judged.warnings,
        finish=lambda given: _finish(pasted, given),
        launched=launch.gpus,
        whys={} if launch.says is None else {"gpus": launch.says},
    )


def _model(pasted: Pasted, notes: list[Note]) -> Model | None:
    """Return the model of the flags; None where they do not describe one."""
    if "num-layers" not in pasted:
        return None
    for flag in ("hidden-size", "num-attention-heads"):
        if flag not in pasted:
            raise ConfigError(f"is missing beside --num-layers (in {SHOWN})", f"--{flag}")
    hidden, heads = pasted.count("hidden-size", 1), pasted.count("num-attention-heads", 1)
    gated = pasted.is_on("swiglu") or pasted.is_on("quick-geglu")
    # Source: arguments.py, validate_args: 4 h, or for a gated layer 8 h / 3 rounded to 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = pasted.count("ffn-hidden-size", 1) if "ffn-hidden-size" in pasted else usual
    positions = _position_type(pasted)
    table: dict[str, Any] = {
        "name": "megatron model",
        "layers": pasted.count("num-layers", 1),
        "hidden": hidden,
        "ffn_hidden": ffn,
        "gated": gated,
        "vocab": _vocabulary(pasted, notes),
        "tied_embeddings": not pasted.is_on("untie-embeddings-and-output-weights"),
        "norm": "rms" if _normalization(pasted) == "RMSNorm" else "layer",
        "linear_bias": not pasted.is_on("disable-bias-linear"),
        "learned_positions": _positions(pasted) if positions == "learned_absolute" else 0,
        "mtp_layers": pasted.count("mtp-num-layers") if "mtp-num-layers" in pasted else 0,
        "attention": _attention(pasted, hidden, heads),
        "source": "pasted Megatron-LM flags",
    }
    if "num-experts" in pasted:
        table["experts"] = _experts(pasted, table["layers"], ffn)
    return model_from_table(table, SHOWN)


def _normalization(pasted: Pasted) -> str:
    known = {"RMSNorm": "RMSNorm", "LayerNorm": "LayerNorm"}
    return pasted.choice("normalization", known) if "normalization" in pasted else "LayerNorm"


def _position_type(pasted: Pasted) -> str:
    if pasted.is_on("use-rotary-position-embeddings"):
        return "rope"
    if pasted.is_on("no-position-embedding"):
        return "none"
    return pasted.text("position-embedding-type") if "position-embedding-type" in pasted else "learned_absolute"


def _positions(pasted: Pasted) -> int:
    """Return the learned positions: the longest position, or the sequence."""
    for flag in ("max-position-embeddings", "seq-length"):
        if flag in pasted:
            return pasted.tokens(flag)
    return 0


def _vocabulary(pasted: Pasted, notes: list[Note]) -> int:
    """Return the vocabulary: given, of a tokenizer that has one, or GPT-2's as an assumption."""
    if "vocab-size" in pasted:
        return pasted.count("vocab-size", 1)
    words = " ".join(pasted.flags.get("tokenizer-type", ()) + pasted.flags.get("tokenizer-model", ()))
    found = next((size for name, size in _VOCABULARIES.items() if name in words), None)
    if found is None and re.search(r"llama-?_?3", words, re.IGNORECASE):
        found = _VOCABULARIES["Llama3Tokenizer"]
    if found is not None:
        return found
    notes.append(
        Note("assumed-vocabulary", f"the tokenizer does not tell its size: {_DEFAULT_VOCABULARY}; give --vocab-size")
    )
    return _DEFAULT_VOCABULARY


def _attention(pasted: Pasted, hidden: int, heads: int) -> dict[str, Any]:
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_heads": heads,
        "qkv_bias": pasted.is_on("add-qkv-bias") or not pasted.is_on("disable-bias-linear"),
        "qk_norm": pasted.is_on("qk-layernorm"),
    }
    if pasted.is_on("group-query-attention"):
        attention["kv_heads"] = pasted.count("num-query-groups", 1) if "num-query-groups" in pasted else 1
    if pasted.is_on("multi-latent-attention"):
        sizes = {"kv-lora-rank": 512, "qk-head-dim": 128, "qk-pos-emb-head-dim": 64, "v-head-dim": 128}
        found = {flag: pasted.count(flag, 1) if flag in pasted else usual for flag, usual in sizes.items()}
        attention["latent"] = {
            "kv_rank": found["kv-lora-rank"],
            "nope_head_dim": found["qk-head-dim"],
            "rope_head_dim": found["qk-pos-emb-head-dim"],
            "v_head_dim": found["v-head-dim"],
        }
        if "q-lora-rank" in pasted:
            attention["latent"]["q_rank"] = pasted.count("q-lora-rank", 1)
        return attention
    attention["head_dim"] = pasted.count("kv-channels", 1) if "kv-channels" in pasted else hidden // heads
    if "window-size" in pasted:
        attention |= {"window": _window(" ".join(pasted.flags["window-size"])), **_window_layers(pasted)}
    return attention


def _window(text: str) -> int:
    """Read ``(4095, 0)`` or ``4095,0`` as the tokens a query sees back."""
    try:
        value = ast.literal_eval(text)
        return int(value[0]) + 1
    except (ValueError, SyntaxError, TypeError, IndexError):
        raise ConfigError(f"is {quoted(text)}; write it like (4095,0) (in {SHOWN})", "--window-size") from None


def _window_layers(pasted: Pasted) -> dict[str, int]:
    """Return which layers have the window: all, or all but the last of every so many.

    Source: Megatron-LM, megatron/core/transformer/utils.py (is_layer_window_attention).
    """
    flag = "window-attn-skip-freq"
    if flag not in pasted:
        return {"window_layers": 1}
    text = "".join(pasted.flags[flag])
    period = count_of(text)
    if period is None or period < 2:
        raise ConfigError(f"is {quoted(text)}; only a period of 2 or more can be described (in {SHOWN})", f"--{flag}")
    return {"window_layers": period - 1, "window_period": period}


def _experts(pasted: Pasted, layers: int, ffn: int) -> dict[str, Any]:
    experts: dict[str, Any] = {
        "experts": pasted.count("num-experts", 1),
        "topk": pasted.count("moe-router-topk", 1) if "moe-router-topk" in pasted else 2,
        "ffn_hidden": pasted.count("moe-ffn-hidden-size", 1) if "moe-ffn-hidden-size" in pasted else ffn,
    }
    experts |= _expert_groups(pasted)
    if "moe-shared-expert-intermediate-size" in pasted:
        experts["shared_ffn_hidden"] = pasted.count("moe-shared-expert-intermediate-size", 1)
    if "moe-expert-capacity-factor" in pasted:
        experts["capacity_factor"] = pasted.number("moe-expert-capacity-factor")
    if "moe-layer-freq" in pasted:
        experts["first_dense_layers"], experts["period"] = moe_layers(" ".join(pasted.flags["moe-layer-freq"]), layers)
    return experts


def _expert_groups(pasted: Pasted) -> dict[str, int]:
    """Return the groups of node-limited routing, and those of a token.

    Source: Megatron-LM, arguments.py: --moe-router-topk-limited-devices stands for a group for each EP rank.
    """
    devices = "moe-router-topk-limited-devices"
    if devices in pasted:
        ranks = "expert-model-parallel-size"
        return {"groups": pasted.count(ranks, 1) if ranks in pasted else 1, "group_topk": pasted.count(devices, 1)}
    names = ("moe-router-num-groups", "moe-router-group-topk")
    given = [name for name in names if name in pasted]
    if len(given) == 1:
        missing = next(name for name in names if name not in given)
        raise ConfigError(f"needs --{missing} (in {SHOWN})", f"--{given[0]}")
    return {"groups": pasted.count(names[0], 1), "group_topk": pasted.count(names[1], 1)} if given else {}


def _pipeline(pasted: Pasted, fields: dict[str, Any], model: Model | None) -> None:
    """Fill in virtual stages and where the layers go."""
    pp = fields["pp"]
    if "pipeline-model-parallel-layout" in pasted:
        if model is None:
            raise ConfigError(f"needs --num-layers (in {SHOWN})", "--pipeline-model-parallel-layout")
        layers = layers_of_layout(pasted.text("pipeline-model-parallel-layout"))
        fields |= {"stage_layers": layers, "vpp": max(1, len(layers) // pp)}
    elif "num-layers-per-virtual-pipeline-stage" in pasted:
        if model is None:
            raise ConfigError(f"needs --num-layers (in {SHOWN})", "--num-layers-per-virtual-pipeline-stage")
        each = pasted.count("num-layers-per-virtual-pipeline-stage", 1)
        total = model.layers + bool(fields["embedding_as_layer"]) + bool(fields["head_as_layer"])
        if total % (pp * each):
            raise InfeasibleError(
                f"{total} layers do not divide into pp {pp} x {each} layers per virtual stage "
                "(--num-layers-per-virtual-pipeline-stage)"
            )
        fields["vpp"] = total // (pp * each)
    fields.setdefault("vpp", 1)


def _finish(pasted: Pasted, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from the GPUs: one microbatch on every replica, and the sharding group."""
    dp = max(1, given["gpus"] // (given["tp"] * given["pp"] * given["cp"]))
    found: dict[str, Any] = {"global_batch": given.get("micro_batch", 1) * dp}
    if given["pp"] > 1:
        found["overlap_p2p"] = True
    if given.get("zero") and "num-distributed-optimizer-instances" in pasted:
        instances = pasted.count("num-distributed-optimizer-instances", 1)
        if dp * given["cp"] % instances:
            raise InfeasibleError(f"--num-distributed-optimizer-instances {instances} does not divide dp x cp {dp}")
        found["shard"] = dp * given["cp"] // instances
    return found


def _precision(pasted: Pasted) -> str:
    if "fp4-format" in pasted or "fp4" in pasted:
        return "nvfp4"
    if "fp8-format" in pasted or "fp8" in pasted:
        return pasted.choice("fp8-recipe", _FP8) if "fp8-recipe" in pasted else "fp8"
    return "bf16" if pasted.is_on("bf16") else "fp16" if pasted.is_on("fp16") else "fp32"


def _sharding(pasted: Pasted, fields: dict[str, Any]) -> None:
    zero = 1 if pasted.is_on("use-distributed-optimizer") else 0
    if any(pasted.is_on(flag) for flag in ("use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp")):
        zero = 3
    if "data-parallel-sharding-strategy" in pasted:
        zero = int(pasted.choice("data-parallel-sharding-strategy", _STRATEGIES))
    fields["zero"] = zero
    group = "sharp-enabled-group"
    if pasted.is_on("use-sharp"):
        fields["sharp"] = pasted.choice(group, {each: each for each in SHARP_GROUPS}) if group in pasted else "dp"
    elif group in pasted:
        raise ConfigError(f"needs --use-sharp (in {SHOWN})", f"--{group}")
    if pasted.is_on("torch-fsdp2-no-reshard-after-forward"):
        fields["reshard_after_forward"] = False
    if pasted.is_on("fp8-param-gather") or pasted.is_on("fp8-param"):
        fields["param_gather_bytes"] = 1


def _kernels(pasted: Pasted, fields: dict[str, Any]) -> None:
    if pasted.is_on("no-overlap-p2p-communication"):
        fields["overlap_p2p"] = False
    fields["grad_reduce_bytes"] = gradient_bytes(pasted)
    fields["precision_aware_optimizer"] = pasted.is_on("use-precision-aware-optimizer")
    for flag in ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"):
        if flag in pasted:
            field = flag.replace("-", "_")
            fields[field] = pasted.choice(flag, {name: name for name in TYPE_CHOICES[field]})
    if "cp-comm-type" in pasted:
        fields["cp_kind"] = pasted.choice("cp-comm-type", _CP)
    if pasted.is_on("enable-cuda-graph") or pasted.is_on("external-cuda-graph"):
        fields["cuda_graphs"] = True
    if "cuda-graph-impl" in pasted and pasted.text("cuda-graph-impl") != "none":
        fields["cuda_graphs"] = True
    if "flash-attention-version" in pasted:
        fields["attention_kernel"] = pasted.choice("flash-attention-version", _FLASH)
    if "attention-backend" in pasted and pasted.text("attention-backend") != "auto":
        fields["attention_kernel"] = pasted.choice("attention-backend", _BACKENDS)
