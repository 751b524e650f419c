"""torchtitan's flags or configuration file as a job: ``--like torchtitan -- --job.config_file llama3_70b.toml ...``.

A file's tables and the dotted flags are the same settings; flags win. Source: torchtitan,
torchtitan/config/job_config.py (2024-12 to 2025-10).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted, flag_table, split_flags
from traincast.dialects.judge import judge, less_unused
from traincast.dialects.launch import Launch, launch_fields, launch_notes, read_launch
from traincast.dialects.torchtitan_pipeline import pipeline_fields, stages_of, unused
from traincast.errors import ConfigError, InfeasibleError
from traincast.files import InputFile, input_of, read_toml
from traincast.job.draft import Draft
from traincast.model.load import find_model, model_names
from traincast.names import nearest
from traincast.tables import flat
from traincast.units import count_of, counted, quoted

T = TypeVar("T")

_SHOWN = "torchtitan settings"

COMPILED = "torchtitan-2025"
"""Framework of jobs with torch.compile."""
REFUSE_COMPILED = ("interleaved_zb", "zb_v", "dualpipe_v")
"""Schedules that split the backward pass, which PyTorch does not run with it."""
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_CONTEXT = 2048
"""Tokens of a sequence where none are given: torchtitan/config/configs.py (TrainingConfig)."""


def draft_of_torchtitan(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read torchtitan's command line, and the configuration file that it names; see `traincast.dialects.draft_like`.

    Raises
    ------
    ConfigError
        If a setting has a wrong value.
    FormatError
        If the configuration file cannot be read.
    InfeasibleError
        If the degrees do not fit each other.
    """
    table, launch = flag_table("torchtitan"), read_launch(words, _SHOWN)
    settings, inputs = _settings(split_flags(launch.words, _SHOWN, table), launch)
    given = {name.replace("_", "-"): text for name, text in settings.given().items()}
    judged = judge(given, table, strict=strict)
    framework = _framework(settings)
    why = "with torch.compile" if framework == COMPILED else "without torch.compile"
    assumed = Note("assumed-framework", f"framework is not given: {framework}, for torchtitan {why}; give --framework")
    fields = {"framework": framework, **settings.fields(table)}
    if fields.get("ep", 1) > 1:
        fields.setdefault("etp", 1)
    else:
        # Source: torchtitan, models/llama4/infra/parallelize.py (apply_moe_ep_tp): tp then splits the experts, too.
        fields = {name: value for name, value in fields.items() if name not in ("ep", "etp")}
    fields |= launch_fields(launch)
    _data_parallel(settings, fields)
    islands = _islands(settings, fields)
    gpus, says = _world(launch)
    if gpus is not None:
        fields["gpus"] = gpus
    _batch(settings, fields)
    if "global_batch" in fields and islands > 1:
        fields["global_batch"] = _of_island(fields["global_batch"], islands)
    fields |= pipeline_fields(settings, fields["pp"])
    more = _computing(settings, fields)
    model, why_none = _model(settings), _why_no_model(settings)
    nothing, why = unused(settings, fields), "no effect given the other settings of the pipeline"
    if nothing:
        more = (*more, Note("flags-without-effect", f"{why}: {', '.join(nothing)}"))
    return Draft(
        model=model,
        fields=fields,
        notes=(*judged.notes, *launch_notes(launch), assumed, *more),
        settings=less_unused(judged.settings, dict.fromkeys(nothing, why)),
        warnings=(*judged.warnings, *_python_config(settings), *_groups(settings), *_not_compiled(settings, fields)),
        finish=lambda given, model: _finish(settings, given) | stages_of(settings, given, model),
        launched=gpus,
        whys={"gpus": says, "model": why_none},
        inputs=inputs,
    )


def _settings(pasted: Pasted, launch: Launch) -> tuple[Pasted, tuple[InputFile, ...]]:
    """Return the settings of the file, and of the flags over them, by their dotted names; and the file."""
    flags = {name.replace("-", "_"): values for name, values in pasted.flags.items()}
    # Source: torchtitan, run_train.sh: its variables stand for the file, or for the module and its function.
    from_script = {"CONFIG_FILE": "job.config_file", "MODULE": "module", "CONFIG": "config"}
    if (launch.script or "").endswith(".sh"):
        said = {name: (launch.variables[key],) for key, name in from_script.items() if key in launch.variables}
        flags = said | flags
    file = " ".join(flags.pop("job.config_file", ()))
    spellings = flag_table("torchtitan").spellings
    read = {name.replace("_", "-"): value for name, value in (flat(read_toml(Path(file))) if file else {}).items()}
    usual = {spellings.get(name, (name,))[0].replace("-", "_"): _words(value) for name, value in read.items()}
    return Pasted({**usual, **flags}, _SHOWN, ""), (input_of(file, "torchtitan"),) if file else ()


def _words(value: object) -> tuple[str, ...]:
    """Return a value of a TOML file as the words of a flag."""
    if isinstance(value, bool):
        return () if value else ("false",)
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _world(launch: Launch) -> tuple[int | None, str | None]:
    """Return the ranks of the launcher; those of ``NGPU`` where torchtitan's own script starts them."""
    gpus = count_of(launch.variables.get("NGPU", ""))
    if launch.gpus is None and (launch.script or "").endswith(".sh") and gpus is not None:
        return gpus, f"NGPU {gpus}"
    return launch.gpus, launch.says


def _python_config(settings: Pasted) -> tuple[Note, ...]:
    """Warn of a configuration that is a function of Python, which only torchtitan can run."""
    name = _name(settings, "config")
    if name is None:
        return ()
    text = f"config {name} is a function of torchtitan, which is not run: only the settings that are given count"
    return (Note("flag-not-modelled", text, "config"),)


def _name(settings: Pasted, name: str) -> str | None:
    return settings.words(name) if name in settings else None


def _model(settings: Pasted) -> str | None:
    """Return the built-in model that name and flavor mean."""
    name, flavor = _name(settings, "model.name"), _name(settings, "model.flavor")
    if name is None:
        # A function of Python is named after its model; where it is not, the model stays open.
        return find_model(_name(settings, "config") or "")
    # A flavor may also say which kernel or positions it has.
    size = re.sub(r"_(?:flex|varlen|irope)(?:_attn)?$", "", str(flavor))
    own: dict[str, str] = flag_table("torchtitan").further["flavors"].get(name, {})
    if size in own:
        return own[size]
    tried = [f"{name}-{size}", f"{name}.1-{size}", f"{name} {size}", size] if flavor else [str(name)]
    return next((found for each in tried if (found := find_model(each))), None)


def _why_no_model(settings: Pasted) -> str | None:
    """Return what to say where no model is given otherwise; None where the settings name none."""
    if "model.name" not in settings:
        return None
    name = "-".join(settings.words(each) for each in ("model.name", "model.flavor") if each in settings)
    near = ", ".join(nearest(name, model_names()))
    return f"{quoted(name)} is not a known model{near and '; near it: '}{near}"


def _framework(settings: Pasted) -> str:
    compiled = settings.is_on("compile.enable") or settings.is_on("training.compile")
    return COMPILED if compiled else "torchtitan-eager-2024"


def _data_parallel(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the GPUs and the sharding group, where the degrees tell them."""
    shard, replicas = _replication(settings)
    model_parallel = fields["tp"] * fields["pp"] * fields["cp"]
    if shard > 0:
        fields["gpus"] = shard * replicas * model_parallel
        if replicas > 1:
            fields["shard"] = shard * fields["cp"]
            if fields["shard"] == 1:
                fields |= {"zero": 0}
                del fields["shard"]


def _islands(settings: Pasted, fields: dict[str, Any]) -> int:
    """Fill in how replica groups, each a launch of its own, exchange every few steps; return how many there are.

    Sources: torchtitan, experiments/torchft/config/job_config.py (FaultTolerance) and README.md (tokens of a step are
    those of all groups); PyTorch torchft, torchft/local_sgd.py (in the type of the parameters, FP32, or 8 bits).
    """
    if not settings.is_on("fault_tolerance.enable") or "fault_tolerance.semi_sync_method" not in settings:
        return 1
    fields["local_steps"] = settings.count("fault_tolerance.sync_steps", 1, 5)
    fields["outer_bits"] = 8 if settings.is_on("fault_tolerance.should_quantize") else 32
    fields["outer_fragments"] = settings.count("fault_tolerance.num_fragments", 1, 1)
    fields["overlap_outer"] = settings.count("fault_tolerance.fragment_sync_delay", 0, 0) > 0
    return settings.count("fault_tolerance.group_size", 0, 1)


def _groups(settings: Pasted) -> tuple[Note, ...]:
    """Warn of replica groups that exchange in every step."""
    if not settings.is_on("fault_tolerance.enable") or "fault_tolerance.semi_sync_method" in settings:
        return ()
    text = (
        "fault_tolerance.enable: this is one replica group alone; that all of them reduce gradients in every step is "
    )
    return (Note("flag-not-modelled", f"{text}not modelled: it may matter by as much as they take", "fault_tolerance"),)


def _of_island(global_batch: int, islands: int) -> int:
    """Return the part of a step's sequences that one replica group has."""
    if global_batch % islands:
        text = f"is {islands}, which does not divide a global batch of {counted(global_batch, 'sequence')}"
        raise ConfigError(text, "fault_tolerance.group_size")
    return global_batch // islands


def _batch(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the batch: torchtitan's local batch is that of one data parallel rank."""
    in_pipeline = settings.count("parallelism.pipeline_parallel_microbatch_size", 1, 1)
    if (pieces := settings.count("parallelism.pipeline_parallel_microbatches", 1, -1)) > 0:
        in_pipeline = max(1, _local_batch(settings) // pieces)
    fields["micro_batch"] = in_pipeline if fields["pp"] > 1 else _local_batch(settings)
    total = settings.count("training.global_batch_size", 1, -1)
    if total > 0:
        fields["global_batch"] = total
        if fields["pp"] > 1:
            fields["local_batch"] = _local_batch(settings)
    if (tokens := settings.count(_TOKENS, 1, -1)) > 0:
        fields["micro_batch"] = _sequences(settings, _TOKENS, tokens)
        step = "training.num_tokens_per_train_step"
        if (tokens := settings.count(step, 1, -1)) > 0:
            fields["global_batch"] = _sequences(settings, step, tokens)


def _finish(settings: Pasted, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the global batch and the sharding group that follow from the GPUs."""
    model_parallel = given["tp"] * given["pp"] * given["cp"]
    dp = max(1, given["gpus"] // model_parallel)
    found: dict[str, Any] = {"global_batch": _local_batch(settings) * dp}
    if settings.is_on("training.enable_cpu_offload") and given.get("zero", 3) == 3 and dp * given["cp"] > 1:
        # Source: torchtitan, distributed/fsdp.py: CPUOffloadPolicy of FSDP alone.
        found["offload_parameters"] = True
    shard, replicas = _replication(settings)
    if shard > 0 and shard * replicas * model_parallel != given["gpus"]:
        # Source: torchtitan, distributed/parallel_dims.py (ParallelDims._validate).
        raise InfeasibleError(
            f"parallelism.data_parallel_shard_degree {shard} x data_parallel_replicate_degree {replicas} x tp "
            f"{given['tp']} x pp {given['pp']} x cp {given['cp']} = {shard * replicas * model_parallel}, but there are "
            f"{counted(given['gpus'], 'GPU')}; give other degrees, or a shard degree of -1 for what is left"
        )
    if shard < 0 and replicas > 1:
        if dp % replicas:
            raise InfeasibleError(f"parallelism.data_parallel_replicate_degree {replicas} does not divide dp {dp}")
        found["shard"] = dp * given["cp"] // replicas
    return found


def _replication(settings: Pasted) -> tuple[int, int]:
    """Return the degrees of sharding, -1 for what is left of the GPUs, and of replication."""
    shard_name, replicate_name = (f"parallelism.data_parallel_{each}_degree" for each in ("shard", "replicate"))
    return settings.count(shard_name, 1, -1), settings.count(replicate_name, 1, 1)


def _sequences(settings: Pasted, name: str, tokens: int) -> int:
    """Return a number of tokens as sequences of the full length, in which newer versions count their batches."""
    length = settings.tokens("training.seq_len") if "training.seq_len" in settings else _CONTEXT
    if tokens % length:
        raise ConfigError(
            f"is {tokens}; it must be a multiple of the {length} tokens of a sequence (in {_SHOWN})", name
        )
    return tokens // length


def _local_batch(settings: Pasted) -> int:
    if (tokens := settings.count(_TOKENS, 1, -1)) > 0:
        pieces = settings.count("parallelism.num_pp_microbatches", 1, 1)
        in_pipeline = settings.count("parallelism.pipeline_parallel_degree", 1, 1) > 1
        return _sequences(settings, _TOKENS, tokens) * (pieces if in_pipeline else 1)
    return settings.count("training.local_batch_size", 1, 8)


def _not_compiled(settings: Pasted, fields: Mapping[str, Any]) -> tuple[Note, ...]:
    """Warn of schedules that split the backward pass, which PyTorch does not run with compiled layers.

    Source: PyTorch, torch/distributed/pipelining/schedules.py (_check_torch_compile_compatibility).
    """
    if fields["framework"] != COMPILED or fields.get("schedule") not in REFUSE_COMPILED:
        return ()
    name = settings.words("parallelism.pipeline_parallel_schedule")
    text = f"PyTorch refuses schedule {name} with torch.compile, as it splits the backward pass; forecast anyway"
    return (Note("pytorch-would-refuse", text),)


def _computing(settings: Pasted, fields: dict[str, Any]) -> tuple[Note, ...]:
    """Fill in what is recomputed, the types, and how ranks exchange sequences and parameters."""
    fields.setdefault("recompute", "selective")
    converters, in_16_bits = settings.words("model.converters"), "training.mixed_precision_param"
    known: Mapping[str, str] = flag_table("torchtitan").further["converters"]
    usual = "fp8" if settings.is_on("float8.enable_float8_linear") else "bf16"
    fields["precision"] = next((dtype for name, dtype in known.items() if name in converters), usual)
    if fields["precision"] == "bf16" and in_16_bits in settings:
        fields["precision"] = settings.choice(in_16_bits, {"bfloat16": "bf16", "float32": "fp32"})
    if fields["tp"] > 1:
        fields["sequence_parallel"] = settings.is_on("parallelism.enable_sequence_parallel", usual=True)
    if fields["cp"] > 1:
        fields.setdefault("cp_kind", "all_gather")
    eight = "float8.enable_fsdp_float8_all_gather"
    if not settings.is_on(eight):
        return ()
    if fields["precision"] != "fp8":
        text = f"{eight} has no effect without the converter float8: parameters are gathered in 16 bits"
        return (Note("flags-without-effect", text),)
    fields["param_gather_bytes"] = 1
    return ()
