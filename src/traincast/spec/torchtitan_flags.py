"""torchtitan's flags or configuration file as a job: ``--like torchtitan -- --job.config_file llama3_70b.toml ...``.

A file's tables and the dotted flags are the same settings; flags win. Source: torchtitan,
torchtitan/config/job_config.py (2024-12 to 2025-10).
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.spec.draft import Draft
from traincast.spec.models import find_model
from traincast.spec.notes import Note
from traincast.spec.pasted import split_flags
from traincast.spec.stacks import parse_toml
from traincast.units import counted

T = TypeVar("T")

SHOWN = "torchtitan settings"

_HARMLESS = (
    r"(?:job|profiling|metrics|optimizer|lr_scheduler|checkpoint|comm|fault_tolerance|experimental|memory_estimation|"
    r"validation|debug)\..*",
    r"training\.(?:dataset|dataset_path|steps|max_norm|seed|deterministic|warmup_steps|gc_freq|gc_debug|data_parallel.*|"
    r"enable_cpu_offload|debug_moe_force_load_balance)",
    r"model\.(?:hf_assets_path|tokenizer_path|norm_type|print_after_conversion|vocab_size_multiple_of)",
    r"parallelism\.(?:disable_loss_parallel|enable_compiled_autograd|fsdp_reshard_after_forward|"
    r"pipeline_parallel_schedule_csv|pipeline_parallel_split_points|context_parallel_load_balance|"
    r"pipeline_parallel_expert_parallel_overlap)",
    r"activation_checkpoint\.(?!mode$|selective_ac_option$).*",
    r"(?:float8|mx|quantize)\..*",
    r"compile\.(?:components|backend|model|loss)",
    r"(?:nnodes|nproc.per.node|rdzv.*|role|tee|local.ranks.filter)",
)
_SCHEDULES = {
    "1f1b": ("1f1b", False),
    "gpipe": ("gpipe", False),
    "interleaved1f1b": ("interleaved", True),
}
_COMPILED = "torchtitan-2025"
_CHECKPOINTING = {"none": "none", "selective": "selective", "full": "full"}
_DEGREES = {
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
    "expert_tensor_parallel_degree": "etp",
}
_USED = {f"parallelism.{name}" for name in _DEGREES} | {
    "parallelism.data_parallel_shard_degree",
    "parallelism.data_parallel_replicate_degree",
    "parallelism.pipeline_parallel_schedule",
    "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_microbatch_size",
    "parallelism.enable_async_tensor_parallel",
    "parallelism.context_parallel_rotate_method",
    "training.local_batch_size",
    "training.batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "training.compile",
    "training.mixed_precision_param",
    "training.mixed_precision_reduce",
    "model.name",
    "model.flavor",
    "model.converters",
    "activation_checkpoint.mode",
    "activation_checkpoint.selective_ac_option",
    "compile.enable",
}


class _Settings:
    """Settings by their dotted name, as texts or TOML values."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, name: str, usual: Any) -> Any:  # noqa: ANN401
        return self.values.get(name, usual)

    def count(self, name: str, usual: int) -> int:
        """Return a whole number; -1 stands for torchtitan's own choice."""
        return int(self._read(name, usual, int, "a whole number"))

    def on(self, name: str) -> bool:
        """Return a switch."""
        raw = self.values.get(name, False)
        if isinstance(raw, bool) or raw == "":
            return raw is not False
        return str(raw).lower() in ("true", "1", "yes")

    def choice(self, name: str, known: Mapping[str, T]) -> T:
        """Return what the value of a setting that is there stands for."""
        raw = str(self.values[name])
        if raw not in known:
            raise ConfigError(f"is {raw!r}; known: {', '.join(known)} (in {SHOWN})", name)
        return known[raw]

    def _read(self, name: str, usual: object, kind: Callable[[Any], Any], what: str) -> Any:  # noqa: ANN401
        raw = self.values.get(name, usual)
        try:
            return kind(raw)
        except (TypeError, ValueError):
            raise ConfigError(f"is {raw!r}; it must be {what} (in {SHOWN})", name) from None


def draft_of_torchtitan(words: list[str]) -> Draft:
    """Read torchtitan's command line, and the configuration file that it names.

    Parameters
    ----------
    words : list of str
        Its words; launcher and script may stand before the flags.

    Returns
    -------
    Draft
        Model, fields, and a note for the settings that have no effect.

    Raises
    ------
    ConfigError
        If a setting is unknown or has a wrong value.
    FormatError
        If the configuration file cannot be read.
    InfeasibleError
        If the degrees do not fit each other.
    """
    pasted = split_flags(words, SHOWN)
    flags = {name.replace("-", "_"): " ".join(values) for name, values in pasted.flags.items()}
    file = flags.pop("job.config_file", None)
    settings = _Settings({**(_flat(_read_file(file)) if file else {}), **flags})
    notes = _check_known(settings)
    stack = _stack(settings)
    why = "with torch.compile" if stack == _COMPILED else "without torch.compile"
    notes.append(Note("assumed-stack", f"stack is not given: {stack}, for torchtitan {why}; give --stack"))
    fields: dict[str, Any] = {"zero": 3, "stack": stack}
    fields |= {field: settings.count(f"parallelism.{name}", 1) for name, field in _DEGREES.items()}
    fields = {name: value for name, value in fields.items() if name not in ("ep", "etp") or value != 1}
    _data_parallel(settings, fields)
    if "nproc_per_node" in flags:
        fields["gpus"] = settings.count("nproc_per_node", 1) * settings.count("nnodes", 1)
    _batch(settings, fields)
    _pipeline(settings, fields)
    _computing(settings, fields)
    layers = "parallelism.pipeline_parallel_layers_per_stage"
    if layers in settings.values:
        notes.append(Note("flag-not-modelled", f"{layers} is not modelled: the layers are split evenly", layers))
    return Draft(
        model=_model(settings), fields=fields, notes=tuple(notes), finish=lambda given: _finish(settings, given)
    )


def _read_file(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", path) from None
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text: {error.reason} at byte {error.start}", path) from None
    return parse_toml(text, path)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _check_known(settings: _Settings) -> list[Note]:
    harmless = []
    for name in settings.values:
        if name in _USED:
            continue
        if not any(re.fullmatch(pattern, name) for pattern in _HARMLESS):
            raise ConfigError(f"is no setting of torchtitan that is known here (in {SHOWN})", name)
        harmless.append(name)
    return [Note("flags-without-effect", f"no effect on the time of a step: {', '.join(harmless)}")] if harmless else []


def _model(settings: _Settings) -> str | None:
    """Return the built-in model that name and flavor mean."""
    name, flavor = settings.get("model.name", None), settings.get("model.flavor", None)
    if name is None:
        return None
    tried = [f"{name}-{flavor}", f"{name}.1-{flavor}", f"{name} {flavor}", str(flavor)] if flavor else [str(name)]
    found = next((each for each in tried if find_model(each)), None)
    if found is None:
        raise ConfigError(f"{' '.join(tried[:1])!r} is no model that is known here; give --model", "model.flavor")
    return find_model(found)


def _stack(settings: _Settings) -> str:
    compiled = settings.on("compile.enable") or settings.on("training.compile")
    return _COMPILED if compiled else "torchtitan-eager-2024"


def _data_parallel(settings: _Settings, fields: dict[str, Any]) -> None:
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


def _batch(settings: _Settings, fields: dict[str, Any]) -> None:
    """Fill in the batch: torchtitan's local batch is that of one data parallel rank."""
    if "training.seq_len" in settings.values:
        fields["seq_length"] = settings.count("training.seq_len", 2048)
    in_pipeline = settings.count("parallelism.pipeline_parallel_microbatch_size", 1)
    fields["micro_batch"] = in_pipeline if fields["pp"] > 1 else _local_batch(settings)
    total = settings.count("training.global_batch_size", -1)
    if total > 0:
        fields["global_batch"] = total


def _finish(settings: _Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the global batch and the sharding group that follow from the GPUs."""
    model_parallel = given["tp"] * given["pp"] * given["cp"]
    dp = max(1, given["gpus"] // model_parallel)
    found = {"global_batch": _local_batch(settings) * dp}
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


def _replication(settings: _Settings) -> tuple[int, int]:
    """Return the degrees of sharding, -1 for what is left of the GPUs, and of replication."""
    shard_name, replicate_name = (f"parallelism.data_parallel_{each}_degree" for each in ("shard", "replicate"))
    shard, replicas = settings.count(shard_name, -1), settings.count(replicate_name, 1)
    if shard < 1 and shard != -1:
        raise ConfigError(f"is {shard}; it must be at least 1, or -1 for what is left (in {SHOWN})", shard_name)
    if replicas < 1:
        raise ConfigError(f"is {replicas}; it must be at least 1 (in {SHOWN})", replicate_name)
    return shard, replicas


def _local_batch(settings: _Settings) -> int:
    return settings.count("training.local_batch_size", settings.count("training.batch_size", 8))


def _pipeline(settings: _Settings, fields: dict[str, Any]) -> None:
    raw = str(settings.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if raw.lower() not in _SCHEDULES:
        known = ", ".join(("1F1B", "GPipe", "Interleaved1F1B"))
        raise ConfigError(
            f"is {raw!r}; schedules that can be simulated: {known}", "parallelism.pipeline_parallel_schedule"
        )
    if fields["pp"] > 1:
        schedule, interleaved = _SCHEDULES[raw.lower()]
        fields["schedule"] = schedule
        # Source: torchtitan, distributed/pipeline_parallel.py: two stages per rank unless layers per stage are given.
        fields["vpp"] = 2 if interleaved else 1


def _computing(settings: _Settings, fields: dict[str, Any]) -> None:
    mode = str(settings.get("activation_checkpoint.mode", "selective"))
    if mode not in _CHECKPOINTING:
        raise ConfigError(f"is {mode!r}; known: {', '.join(_CHECKPOINTING)}", "activation_checkpoint.mode")
    fields["recompute"] = _CHECKPOINTING[mode]
    converters = str(settings.get("model.converters", ""))
    fields["precision"] = "mxfp8" if "mx" in converters else "fp8" if "float8" in converters else "bf16"
    if fields["precision"] == "bf16" and "training.mixed_precision_param" in settings.values:
        fields["precision"] = settings.choice("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"})
    if "training.mixed_precision_reduce" in settings.values:
        fields["grad_reduce_bytes"] = settings.choice("training.mixed_precision_reduce", {"float32": 4, "bfloat16": 2})
    fields["overlap_tp"] = settings.on("parallelism.enable_async_tensor_parallel")
    if fields["tp"] > 1:
        fields["sequence_parallel"] = True
    rotate = "parallelism.context_parallel_rotate_method"
    if rotate in settings.values:
        fields["cp_kind"] = settings.choice(rotate, {"allgather": "all_gather", "alltoall": "ring"})
    elif fields["cp"] > 1:
        fields["cp_kind"] = "all_gather"
