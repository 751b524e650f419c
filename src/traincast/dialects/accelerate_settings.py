"""Accelerate's configuration as a job: ``--like accelerate -- accelerate launch --config_file fsdp.yaml train.py ...``.

The file, or flags of the launcher over it, say the ranks, their types and what is sharded; batch, sequence and model
are flags of the script. A DeepSpeed configuration that it names is read as one. Source: huggingface/accelerate,
src/accelerate/commands/launch.py, utils/dataclasses.py and parallelism_config.py (2026-07).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.dialects.deepspeed_settings import ScriptBatch, adapters_of, deepspeed_draft, named_model
from traincast.dialects.flags import READ, FlagTable, Pasted, flag_table
from traincast.dialects.launch import Launch, launch_fields, launch_notes, read_launch
from traincast.dialects.settings import (
    Values,
    input_files,
    judged,
    settings_of_file,
    settings_of_words,
    spelled,
    split_files,
)
from traincast.errors import InfeasibleError
from traincast.job.draft import Draft, Setting

_SHOWN = "Accelerate settings"
_SECTIONS = ("fsdp_config.", "deepspeed_config.", "parallelism_config.", "megatron_lm_config.", "dynamo_config.")
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_FRAMEWORKS = {"ddp": "transformers-2024", "fsdp": "transformers-2024", "megatron": "megatron-core-2024"}
_REPLICATE, _SHARD = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"


def draft_of_accelerate(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a launch line of Accelerate, or its configuration file; see `traincast.dialects.draft_like`.

    Raises
    ------
    ConfigError
        If a setting has a wrong value.
    FormatError
        If a file cannot be read.
    InfeasibleError
        If the degrees or the batch do not multiply.
    """
    table, launch = flag_table("accelerate"), read_launch(words, _SHOWN)
    files, rest = split_files(launch.words, (".yaml", ".yml", ".json"))
    flags = dict(settings_of_words(rest, _SHOWN, table))
    launcher = dict(settings_of_words(_launcher_words(launch), _SHOWN, table))
    for where in (flags, launcher):
        files += where.pop("config_file", ())
    said: dict[str, tuple[str, ...]] = {}
    for file in files:
        said |= {_without_section(name): values for name, values in settings_of_file(file).items()}
    usual = spelled({**said, **launcher}, table)
    settings = Pasted({**usual, **flags}, _SHOWN, "")
    kind = _kind(settings, table)
    if kind == "deepspeed":
        found = _deepspeed(usual, flags, launch, files, table, strict=strict)
    else:
        found = _others(kind, settings, launch, files, table, strict=strict)
    gpus = launch.gpus or settings.count("num_processes", 1, -1)
    if gpus < 1:
        return found
    whys = {**found.whys, "gpus": launch.says or f"num_processes {gpus}"}
    return replace(found, fields={**found.fields, "gpus": gpus}, launched=gpus, whys=whys)


def _launcher_words(launch: Launch) -> list[str]:
    """Return the flags of ``accelerate launch`` before the script."""
    place = next((place for place, word in enumerate(launch.before) if word.rpartition("/")[2] == "accelerate"), None)
    if place is None or launch.script is None:
        return []
    return [word for word in launch.before[place + 1 : -1] if word not in ("launch", "-m", "--module")]


def _without_section(name: str) -> str:
    return next((name.removeprefix(section) for section in _SECTIONS if name.startswith(section)), name)


def _kind(settings: Pasted, table: FlagTable) -> str:
    """Return the way to distribute: what the file says, or the launcher's switches."""
    for name, kind in (("use_deepspeed", "deepspeed"), ("use_fsdp", "fsdp"), ("use_megatron_lm", "megatron")):
        if settings.is_on(name):
            return kind
    if "deepspeed" in settings and "distributed_type" not in settings:
        return "deepspeed"
    if "distributed_type" not in settings:
        return "fsdp" if any(name.startswith("fsdp_") for name in settings.flags) else "ddp"
    kinds: dict[str, str] = table.further["kinds"]
    return settings.choice("distributed_type", kinds)


def _deepspeed(
    said: Values, flags: Values, launch: Launch, files: Sequence[str], table: FlagTable, *, strict: bool
) -> Draft:
    """Return the job of DeepSpeed under Accelerate: its file, or the few settings that stand for one."""
    own, rest = dict(said), dict(flags)
    named = [*own.pop("deepspeed_config_file", ()), *rest.pop("deepspeed", ())]
    found: dict[str, tuple[str, ...]] = {}
    for file in named:
        found |= spelled(settings_of_file(file), table)
    # Source: Accelerate, utils/dataclasses.py (DeepSpeedPlugin): without a file the stage is 2.
    names = {
        "zero_stage": "zero_optimization.stage",
        "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
        "offload_param_device": "zero_optimization.offload_param.device",
    }
    stage = own.pop("zero_stage", ("2",))
    for name, to in names.items():
        if name in own:
            found.setdefault(to, own.pop(name))
    if not named:
        found["zero_optimization.stage"] = stage
    precision = own.pop("mixed_precision", ("no",))
    if precision[-1] in ("bf16", "fp16") and found.get(f"{precision[-1]}.enabled", ("auto",)) == ("auto",):
        found[f"{precision[-1]}.enabled"] = ()
    if "gradient_accumulation_steps" in rest:
        own.pop("gradient_accumulation_steps", None)
    draft = deepspeed_draft({**own, **found}, rest, launch, [*named], table, strict=strict)
    read = {name: values for name, values in {**said, **flags}.items() if name not in own and name not in rest}
    settings = (Setting(name, " ".join(values), READ) for name, values in read.items())
    inputs = (*input_files(files, "accelerate"), *draft.inputs)
    return replace(draft, settings=(*settings, *draft.settings), inputs=inputs)


def _others(
    kind: str, settings: Pasted, launch: Launch, files: Sequence[str], table: FlagTable, *, strict: bool
) -> Draft:
    """Return the job of PyTorch's data parallelism, FSDP or Megatron-LM."""
    verdict = judged(settings, table, strict=strict)
    batch, framework = ScriptBatch.from_settings(settings), _FRAMEWORKS[kind]
    fields = {"framework": framework, **settings.fields(table), **launch_fields(launch)}
    name = "mixed_precision"
    halves = [each for each in ("bf16", "fp16") if settings.is_on(each)]
    fields["precision"] = settings.choice(name, _PRECISIONS) if name in settings else next(iter(halves), "fp32")
    checkpointing = ("gradient_checkpointing", "fsdp_activation_checkpointing")
    fields.setdefault("recompute", "full" if any(map(settings.is_on, checkpointing)) else "none")
    if kind == "megatron":
        _megatron(settings, fields)
    else:
        _parallel(settings, fields)
        fields |= _fsdp(settings, fields, table) if kind == "fsdp" else {"zero": 0, "overlap_grad_reduce": True}
    adapters_of(settings, fields)
    if batch.micro is not None:
        fields["micro_batch"] = batch.micro
    model, why, notes = named_model(settings, files)
    text = f"framework is not given: {framework}, for Accelerate with {kind.upper()}; give --framework"
    whys = {"model": why, "global_batch": batch.why([], of_script=True)}
    pieces = settings.count("megatron_lm_num_micro_batches", 1, 1) if kind == "megatron" else 1
    batch = batch if pieces == 1 else replace(batch, steps=pieces)
    return Draft(
        model=model,
        fields=fields,
        notes=(*verdict.notes, *launch_notes(launch), *notes, Note("assumed-framework", text)),
        settings=verdict.settings,
        warnings=verdict.warnings,
        finish=lambda given, _: batch.finish(given) | _shards(settings, given, table, kind),
        whys=whys,
        inputs=input_files(files, "accelerate"),
    )


def _parallel(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the degrees of context parallelism: of PyTorch over sequences, of DeepSpeed over heads."""
    for name, way in (("parallelism_config_cp_size", "all_gather"), ("parallelism_config_sp_size", "all_to_all")):
        degree = settings.count(name, 1, 1)
        if degree > 1:
            fields["cp"] = degree
            fields.setdefault("cp_kind", way)
    if fields["tp"] > 1:
        # Source: Transformers, integrations/tensor_parallel.py: plans split weights, not what is between layers.
        fields["sequence_parallel"] = False


def _fsdp(settings: Pasted, fields: Mapping[str, Any], table: FlagTable) -> dict[str, Any]:
    """Return what FSDP shards and gathers again; gradients are reduced in the type of mixed precision.

    Source: Accelerate, utils/dataclasses.py (FullyShardedDataParallelPlugin.set_mixed_precision); stage 2 of FSDP keeps
    parameters whole from the forward to the backward pass, and shards them otherwise.
    """
    how = _strategy(settings, table)
    found = {"zero": how["zero"], "overlap_grad_reduce": True, "overlap_param_gather": how["zero"] == 3}
    if how["zero"] == 3:
        found["reshard_after_forward"] = how["reshards"]
        if settings.is_on("fsdp_offload_params"):
            found["offload_parameters"] = True
    return {**found, "grad_reduce_bytes": 4 if fields["precision"] == "fp32" else 2}


def _strategy(settings: Pasted, table: FlagTable) -> Mapping[str, Any]:
    known: dict[str, dict[str, Any]] = table.further["strategies"]
    after = "fsdp_reshard_after_forward"
    name = settings.words("fsdp_sharding_strategy") or "FULL_SHARD"
    said = settings.choice("fsdp_sharding_strategy", known) if "fsdp_sharding_strategy" in settings else known[name]
    if after in settings and settings.words(after).upper() not in known:
        said = {**said, "reshards": settings.is_on(after)}
    elif after in settings:
        said = settings.choice(after, known)
    return said


def _shards(settings: Pasted, given: Mapping[str, Any], table: FlagTable, kind: str) -> dict[str, Any]:
    """Return the ranks that share a copy: of a mesh its shards, of a hybrid strategy a node.

    Raises
    ------
    InfeasibleError
        If the sizes of a mesh do not multiply to the GPUs.
    """
    replicas, shards = settings.count(_REPLICATE, 1, 1), settings.count(_SHARD, 1, 1)
    if kind != "fsdp" or given.get("zero", 0) == 0:
        return {}
    if _REPLICATE in settings or _SHARD in settings:
        product = replicas * shards * given["tp"] * given["cp"]
        if product != given["gpus"]:
            raise InfeasibleError(
                f"dp_replicate_size {replicas} x dp_shard_size {shards} x tp {given['tp']} x cp {given['cp']} = "
                f"{product}, but there are {given['gpus']} GPUs; give other sizes (in {_SHOWN})"
            )
        return {"shard": shards * given["cp"]}
    if _strategy(settings, table).get("hybrid"):
        return {"shard": max(1, given["gpus"] // settings.count("num_machines", 1, 1))}
    return {}


def _megatron(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in what Accelerate's Megatron-LM plugin turns on."""
    if settings.is_on("megatron_lm_recompute_activations") and "megatron_lm_recompute_granularity" not in settings:
        fields["recompute"] = "selective"
    if settings.is_on("megatron_lm_optimizer_cpu_offload"):
        overlap = settings.is_on("megatron_lm_overlap_cpu_optimizer_d2h_h2d")
        fields |= {"offload_optimizer": 1.0, "overlap_offload": overlap}
    fsdp = settings.is_on("megatron_lm_use_custom_fsdp")
    fields["zero"] = 3 if fsdp else int(settings.is_on("megatron_lm_use_distributed_optimizer"))
