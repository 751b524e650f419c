"""Megatron-LM's training flags as a job: ``--like megatron -- <pasted flags>``.

A flag that is absent has Megatron-LM's default, so that little stays open. What becomes of flags that are not read
here says `traincast.dialects.flags`.
Source: Megatron-LM, megatron/training/arguments.py (core 0.12 to 0.15).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted, flag_table, split_flags
from traincast.dialects.judge import judge, less_unused
from traincast.dialects.launch import launch_fields, launch_notes, read_launch
from traincast.dialects.megatron_checks import (
    DISPATCHER,
    UNUSED,
    check_combinations,
    dispatcher,
    gradient_bytes,
    precision_of,
    recompute_fields,
)
from traincast.dialects.megatron_hybrid import Hybrid, hybrid_of
from traincast.dialects.megatron_layers import decoder_of, is_encoder
from traincast.dialects.megatron_model import described_model
from traincast.errors import InfeasibleError
from traincast.job.communication import SHARP_GROUPS
from traincast.job.draft import Draft
from traincast.job.frameworks import FULL_ITERATION, GRAPH_SCOPES
from traincast.job.pipeline_layout import layout_of, parse_layout
from traincast.model.model import Model

_SHOWN = "megatron flags"
_LAYOUT = "pipeline-model-parallel-layout"
_ALONE = "standalone-embedding-stage"
_BACKEND, _DETERMINISTIC = "attention-backend", "fa2"
"""What Transformer Engine chooses where kernels must be deterministic: cuDNN's backward pass is not with dropout, or on
Blackwell (transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend)."""
_LOCAL = "megatron-core-local"
_LAYERS_EACH = "num-layers-per-virtual-pipeline-stage"
LOSS_KERNELS = {"native": "compiled", "te": "fused"}
"""Ways to fuse the loss (--cross-entropy-fusion-impl) to the kernel of a job."""


def draft_of_megatron(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a pasted command line of Megatron-LM; `traincast.dialects.draft_like` says how.

    Raises
    ------
    ConfigError
        If a flag lacks what it needs, has a wrong value, or makes a job that cannot be described.
    InfeasibleError
        If layers do not divide into the virtual stages asked for.
    """
    table, launch = flag_table("megatron"), read_launch(words, _SHOWN)
    table.check_script(launch.script)
    pasted = split_flags(launch.words, _SHOWN, table)
    judged = judge(pasted.given(), table, strict=strict)
    text = f"framework is not given: {_framework(pasted)}, for pasted Megatron-LM flags; give --framework"
    notes = [*judged.notes, *launch_notes(launch), Note("assumed-framework", text)]
    hybrid = hybrid_of(pasted, launch.script, notes)
    if hybrid is not None:
        # Source: arguments.py, validate_args: the letters turn on what they need.
        means = ("is-hybrid-model", *(["multi-latent-attention"] if hybrid.has_latent_attention else []))
        pasted = replace(pasted, flags={**pasted.flags, **dict.fromkeys(means, ())})
    decoder = decoder_of(pasted, launch.script)
    model = described_model(pasted, hybrid, notes, decoder, causal=not is_encoder(launch.script))
    fields = _fields(pasted, model, hybrid) | launch_fields(launch)
    if decoder is not None:
        # The sequence of the job is the decoder's, of which the loss is.
        fields["seq_length"] = decoder.length
    if launch.gpus is not None:
        fields.setdefault("gpus", launch.gpus)
    notes += check_combinations(pasted, fields, model is not None)
    return Draft(
        model=model,
        fields=fields,
        notes=tuple(notes),
        settings=less_unused(judged.settings, {str(note.place): _why(note) for note in notes if note.code == UNUSED}),
        warnings=judged.warnings,
        finish=lambda given, _: _finish(pasted, given),
        launched=launch.gpus,
        whys={"gpus": launch.says},
    )


def _why(note: Note) -> str:
    """Return why a flag has no effect, as its note says it."""
    return note.text.partition(": ")[2]


def _framework(pasted: Pasted) -> str:
    """Return the framework that runs the layers: Megatron Core with Transformer Engine, or with its own."""
    local = "transformer-impl" in pasted and pasted.text("transformer-impl") == "local"
    return _LOCAL if local else str(flag_table("megatron").usual["framework"])


def _fields(pasted: Pasted, model: Model | None, hybrid: Hybrid | None) -> dict[str, Any]:
    """Return the fields of the job that the flags say."""
    fields = pasted.fields(flag_table("megatron")) | {"framework": _framework(pasted)}
    if "num-experts" in pasted:
        # Source: arguments.py, validate_args: experts are split as the rest unless the flag says otherwise.
        fields.setdefault("etp", fields["tp"])
    elif model is not None and fields.get("etp") is not None:
        # Without experts it splits nothing; `check_combinations` says so.
        del fields["etp"]
    if "num-experts" in pasted or ("num-layers" not in pasted and DISPATCHER in pasted):
        # The flags may leave the model to --model, and still say how its tokens travel.
        fields["moe_dispatcher"] = dispatcher(pasted)
    if "num-experts" in pasted and pasted.is_on("moe-router-force-load-balancing"):
        # Source: megatron/core/transformer/moe/router.py: random choices, as many of each expert.
        fields["moe_routing"] = "balanced"
    if model is None and "mtp-num-layers" in pasted:
        fields["mtp_layers"] = pasted.count("mtp-num-layers")
    if hybrid is not None and hybrid.stages is not None:
        fields |= {"stage_layers": hybrid.stages, "vpp": max(1, len(hybrid.stages) // fields["pp"])}
    _pipeline(pasted, fields, model)
    fields |= {"precision": precision_of(pasted, fields.get("precision", "fp8")), **recompute_fields(pasted)}
    _sharding(pasted, fields)
    _offloading(pasted, fields)
    fields["grad_reduce_bytes"] = gradient_bytes(pasted)
    fields["precision_aware_optimizer"] = pasted.is_on("use-precision-aware-optimizer")
    fields |= _graphs(pasted)
    fields |= _kernels(pasted) | _kept(pasted, described=model is not None)
    return fields


def _kept(pasted: Pasted, *, described: bool) -> dict[str, Any]:
    """Return whether layers have dropout, and what computes the loss; where the model is open, what is said of them.

    Source: Megatron-LM, megatron/core/transformer/transformer_config.py (hidden_dropout and attention_dropout, 0.1;
    cross_entropy_fusion_impl, native).
    """
    fields: dict[str, Any] = {}
    loss, rates = "cross-entropy-loss-fusion", ("hidden-dropout", "attention-dropout")
    if described or any(each in pasted for each in rates):
        fields["dropout"] = any(pasted.number(each, "share") > 0 if each in pasted else described for each in rates)
    if pasted.is_on(loss):
        impl = "cross-entropy-fusion-impl"
        fields["loss_kernel"] = pasted.choice(impl, LOSS_KERNELS) if impl in pasted else "compiled"
    elif described or loss in pasted:
        fields["loss_kernel"] = "unfused"
    return fields


def _kernels(pasted: Pasted) -> dict[str, Any]:
    """Return what runs as kernels of its own, and what is computed in every step to be logged."""
    experts = "num-experts" in pasted and not pasted.is_on("moe-grouped-gemm")
    unfused = {
        "rope": pasted.is_on("no-rope-fusion"),
        "gradient_sums": pasted.is_on("no-gradient-accumulation-fusion"),
        "experts": experts and not pasted.is_on("use-transformer-engine-op-fuser"),
    }
    checks = {"params_norm": pasted.is_on("log-params-norm"), "zeros_in_grad": pasted.is_on("log-num-zeros-in-grad")}
    said = {"unfused": unfused, "step_checks": checks}
    found: dict[str, Any] = {name: tuple(each for each, on in given.items() if on) for name, given in said.items()}
    chosen = pasted.flags.get(_BACKEND, ("auto",)) != ("auto",) or _framework(pasted) == _LOCAL
    if pasted.is_on("deterministic-mode") and not chosen:
        found["attention_kernel"] = _DETERMINISTIC
    return found


def _graphs(pasted: Pasted) -> dict[str, Any]:
    """Return whether CUDA graphs are captured, and of which modules; those of a whole layer have no name of their own.

    Source: Megatron-LM, megatron/core/transformer/transformer_config.py (cuda_graph_impl, cuda_graph_scope).
    """
    impl = pasted.text("cuda-graph-impl") if "cuda-graph-impl" in pasted else "none"
    if impl == "none" and not (pasted.is_on("enable-cuda-graph") or pasted.is_on("external-cuda-graph")):
        return {}
    if impl == FULL_ITERATION:
        return {"cuda_graphs": True, "cuda_graph_impl": impl}
    said = (word for flag in ("cuda-graph-scope", "cuda-graph-modules") for word in pasted.flags.get(flag, ()))
    scope = tuple(name for word in said for name in re.split(r"[\[\],\s]+", word) if name in GRAPH_SCOPES)
    return {"cuda_graphs": True, **({"cuda_graph_scope": scope} if scope else {})}


def _pipeline(pasted: Pasted, fields: dict[str, Any], model: Model | None) -> None:
    """Fill in virtual stages and where the layers go."""
    pp = fields["pp"]
    if _LAYOUT in pasted:
        # Its virtual stages are those that it lists.
        layout = parse_layout(pasted.text(_LAYOUT))
        fields |= {"pipeline_layout": str(layout), "vpp": max(1, len(layout.stages) // pp)}
    elif _LAYERS_EACH in pasted:
        if model is None:
            raise pasted.wrong(_LAYERS_EACH, "needs --num-layers")
        each = pasted.count(_LAYERS_EACH, 1)
        total = model.layers + bool(fields["embedding_as_layer"]) + bool(fields["head_as_layer"])
        if total % (pp * each):
            raise InfeasibleError(
                f"{total} layers do not divide into pp {pp} x {each} layers per virtual stage (--{_LAYERS_EACH})"
            )
        fields["vpp"] = total // (pp * each)
    fields.setdefault("vpp", 1)
    if pasted.is_on(_ALONE) and pp > 1:
        fields["pipeline_layout"] = _embedding_alone(pasted, fields, model)


def _embedding_alone(pasted: Pasted, fields: Mapping[str, Any], model: Model | None) -> str:
    """Return the layout of older versions with the embedding alone on the first stage, the layers evenly on the others.

    Source: Megatron-LM of 2022 to 2024, megatron/training/arguments.py (transformer_pipeline_model_parallel_size).
    """
    if model is None:
        raise pasted.wrong(_ALONE, "needs --num-layers")
    said = [
        name
        for name in ("pipeline_layout", "stage_layers", "first_stage_layers", "last_stage_layers")
        if name in fields
    ]
    if said or fields["vpp"] > 1:
        raise pasted.wrong(_ALONE, "cannot be combined with virtual stages or another layout; give the layout alone")
    others = fields["pp"] - 1
    if model.layers % others:
        raise InfeasibleError(f"{model.layers} layers do not divide into the {others} stages that --{_ALONE} leaves")
    return str(layout_of((0, *[model.layers // others] * others), model.mtp_layers))


def _finish(pasted: Pasted, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from the GPUs: one microbatch on every replica, and the sharding group."""
    dp = max(1, given["gpus"] // (given["tp"] * given["pp"] * given["cp"]))
    found: dict[str, Any] = {"global_batch": given.get("micro_batch", 1) * dp}
    if given["pp"] > 1:
        found["overlap_p2p"] = True
    instances = pasted.count("num-distributed-optimizer-instances", 1, usual=0)
    if given.get("zero") and instances:
        if dp * given["cp"] % instances:
            raise InfeasibleError(f"--num-distributed-optimizer-instances {instances} does not divide dp x cp {dp}")
        found["shard"] = dp * given["cp"] // instances
    return found


def _offloading(pasted: Pasted, fields: dict[str, Any]) -> None:
    """Fill in what the host keeps; without their switch a share and an overlap say nothing."""
    if pasted.is_on("optimizer-cpu-offload"):
        share, overlap = "optimizer-offload-fraction", "overlap-cpu-optimizer-d2h-h2d"
        fields["offload_optimizer"] = pasted.number(share, "share") if share in pasted else 1.0
        if fields["offload_optimizer"]:
            fields["overlap_offload"] = pasted.is_on(overlap)
    # Source: arguments.py, validate_args: a number of layers turns the switch on; activations are on unless disabled.
    layers = pasted.count("cpu-offloading-num-layers", usual=0)
    off = ("no-cpu-offloading-activations", "disable-cpu-offloading-activations")
    if layers and pasted.is_on("cpu-offloading", usual=True) and not any(map(pasted.is_on, off)):
        fields["offload_activations"] = layers
    if pasted.is_on("fine-grained-activation-offloading") and "offload-modules" in pasted:
        fields["offload_modules"] = tuple(pasted.words("offload-modules").replace(",", " ").split())


def _sharding(pasted: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the stage of ZeRO, when parameters are gathered and in which type, and who reduces."""
    fsdp = any(map(pasted.is_on, ("use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp")))
    fields.setdefault("zero", 3 if fsdp else 1 if pasted.is_on("use-distributed-optimizer") else 0)
    group = "sharp-enabled-group"
    if pasted.is_on("use-sharp"):
        fields["sharp"] = pasted.choice(group, {each: each for each in SHARP_GROUPS}) if group in pasted else "dp"
    elif group in pasted:
        raise pasted.wrong(group, "needs --use-sharp")
    if pasted.is_on("torch-fsdp2-no-reshard-after-forward"):
        fields["reshard_after_forward"] = False
    if pasted.is_on("fp8-param-gather") or pasted.is_on("fp8-param"):
        fields["param_gather_bytes"] = 1
    if pasted.is_on("no-overlap-p2p-communication"):
        fields["overlap_p2p"] = False
