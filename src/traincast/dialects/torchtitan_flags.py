"""torchtitan's flags or configuration file as a job: ``--like torchtitan -- --job.config_file llama3_70b.toml ...``.

A file's tables and the dotted flags are the same settings; flags win. Source: torchtitan,
torchtitan/config/job_config.py (2024-12 to 2025-10).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from traincast.diagnostics import Note
from traincast.dialects.dialect_flags import flag_table, judge
from traincast.dialects.launch import Launch, launch_notes, read_launch
from traincast.dialects.pasted import Pasted, split_flags
from traincast.errors import ConfigError, InfeasibleError
from traincast.files import read_toml
from traincast.job.draft import Draft
from traincast.job.inputs import InputFile, input_of
from traincast.model.load import find_model, model_names
from traincast.names import find_name, known_names, nearest
from traincast.units import RANGES, checked_field, count_of, counted, is_number, parse_tokens, plain_number, quoted

T = TypeVar("T")

SHOWN = "torchtitan settings"

_SCHEDULES = {
    "1f1b": ("1f1b", False),
    "gpipe": ("gpipe", False),
    "interleaved1f1b": ("interleaved", True),
}
_COMPILED = "torchtitan-2025"
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_CONTEXT = 2048
"""Tokens of a sequence where none are given: torchtitan/config/configs.py (TrainingConfig)."""
_FLAVORS = {
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama4-scout",
    ("llama4", "17bx128e"): "llama4-maverick",
}
"""Flavors that are named after their sizes alone: torchtitan/models/*/__init__.py."""
_CHECKPOINTING = {"none": "none", "selective": "selective", "full": "full"}
_DEGREES = {
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
    "expert_tensor_parallel_degree": "etp",
}


class _Settings:
    """Settings by their dotted name, as texts or TOML values."""

    def __init__(self, values: Mapping[str, Any], inputs: tuple[InputFile, ...] = ()) -> None:
        self.values = values
        self.inputs = inputs

    def get(self, name: str, usual: Any) -> Any:  # noqa: ANN401
        return self.values.get(name, usual)

    def count(self, name: str, usual: int) -> int:
        """Return a whole number of at least 1; where -1 is usual it stands for torchtitan's own choice."""
        raw = self.values.get(name, usual)
        value = plain_number(raw) if isinstance(raw, str) and is_number(raw) else raw
        if value == usual == -1:
            return -1
        try:
            return int(RANGES["degree"].checked(value))
        except ConfigError as error:
            also = ", or -1 for what is left" if usual == -1 else ""
            raise ConfigError(f"{error}{also} (in {SHOWN})", name) from None

    def tokens(self, name: str) -> int:
        """Return a number of tokens; ``8k`` is 8,192."""
        try:
            return int(checked_field("seq_length", parse_tokens(str(self.values[name]))))
        except ConfigError as error:
            raise ConfigError(f"{error} (in {SHOWN})", name) from None

    def on(self, name: str, *, usual: bool = False) -> bool:
        """Return a switch."""
        raw = self.values.get(name, usual)
        if isinstance(raw, bool) or raw == "":
            return raw is not False
        return str(raw).lower() in ("true", "1", "yes")

    def choice(self, name: str, known: Mapping[str, T]) -> T:
        """Return what the value of a setting that is there stands for."""
        raw = str(self.values[name])
        found = find_name(raw, known)
        if found is None:
            raise ConfigError(f"is {quoted(raw)}; {known_names(raw, known)} (in {SHOWN})", name)
        return known[found]


def draft_of_torchtitan(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read torchtitan's command line, and the configuration file that it names.

    Parameters
    ----------
    words : sequence of str
        Its words; launcher and script may stand before the flags.
    strict : bool, default False
        Refuse unknown settings instead of warning of them.

    Returns
    -------
    Draft
        Model and fields; its notes list the settings that have no effect, its warnings those that are not modelled.

    Raises
    ------
    ConfigError
        If a setting has a wrong value.
    FormatError
        If the configuration file cannot be read.
    InfeasibleError
        If the degrees do not fit each other.
    """
    table, launch = flag_table("torchtitan"), read_launch(words, SHOWN)
    pasted = split_flags(launch.words, SHOWN, table)
    settings = _settings(pasted, launch)
    given = {name.replace("_", "-"): _text(value) for name, value in settings.values.items() if value is not False}
    judged = judge(given, table, strict=strict)
    framework = _framework(settings)
    why = "with torch.compile" if framework == _COMPILED else "without torch.compile"
    assumed = Note("assumed-framework", f"framework is not given: {framework}, for torchtitan {why}; give --framework")
    notes = (*judged.notes, *launch_notes(launch), assumed)
    warnings = (*judged.warnings, *_python_config(settings))
    fields: dict[str, Any] = {"zero": 3, "framework": framework}
    fields |= {field: settings.count(f"parallelism.{name}", 1) for name, field in _DEGREES.items()}
    fields = {name: value for name, value in fields.items() if name not in ("ep", "etp") or value != 1}
    _data_parallel(settings, fields)
    gpus, says = _world(launch)
    if gpus is not None:
        fields["gpus"] = gpus
    _batch(settings, fields)
    _pipeline(settings, fields)
    _computing(settings, fields)
    notes += _sharding(settings, fields)
    model, why_none = _model(settings), _why_no_model(settings)
    return Draft(
        model=model,
        fields=fields,
        notes=notes,
        warnings=warnings,
        finish=lambda given: _finish(settings, given),
        launched=gpus,
        whys={name: why for name, why in (("gpus", says), ("model", why_none)) if why is not None},
        inputs=settings.inputs,
    )


def _settings(pasted: Pasted, launch: Launch) -> _Settings:
    """Return the settings of the file, and of the flags over them."""
    flags: dict[str, Any] = {name.replace("-", "_"): _value(values) for name, values in pasted.flags.items()}
    # Source: torchtitan, run_train.sh: its variables stand for the file, or for the module and its function.
    from_script = {"CONFIG_FILE": "job.config_file", "MODULE": "module", "CONFIG": "config"}
    if (launch.script or "").endswith(".sh"):
        flags = {name: launch.variables[key] for key, name in from_script.items() if key in launch.variables} | flags
    file = flags.pop("job.config_file", None)
    spellings = flag_table("torchtitan").spellings
    read = {name.replace("_", "-"): value for name, value in (_flat(read_toml(Path(file))) if file else {}).items()}
    usual = {spellings.get(name, (name,))[0].replace("-", "_"): value for name, value in read.items()}
    return _Settings({**usual, **flags}, (input_of(file, "torchtitan"),) if file else ())


def _value(values: Sequence[str]) -> Any:  # noqa: ANN401
    return False if tuple(values) == ("false",) else " ".join(values)


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is True else str(value)


def _world(launch: Launch) -> tuple[int | None, str | None]:
    """Return the ranks of the launcher; those of ``NGPU`` where torchtitan's own script starts them."""
    gpus = count_of(launch.variables.get("NGPU", ""))
    if launch.gpus is None and (launch.script or "").endswith(".sh") and gpus is not None:
        return gpus, f"NGPU {gpus}"
    return launch.gpus, launch.says


def _python_config(settings: _Settings) -> tuple[Note, ...]:
    """Warn of a configuration that is a function of Python, which only torchtitan can run."""
    name = settings.get("config", None)
    if name is None:
        return ()
    text = f"config {name} is a function of torchtitan, which is not run: only the settings that are given count"
    return (Note("flag-not-modelled", text, "config"),)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _model(settings: _Settings) -> str | None:
    """Return the built-in model that name and flavor mean."""
    name, flavor = settings.get("model.name", None), settings.get("model.flavor", None)
    if name is None:
        # A function of Python is named after its model; where it is not, the model stays open.
        return find_model(str(settings.get("config", "")))
    # A flavor may also say which kernel or positions it has.
    size = re.sub(r"_(?:flex|varlen|irope)(?:_attn)?$", "", str(flavor))
    if (str(name), size) in _FLAVORS:
        return _FLAVORS[str(name), size]
    tried = [f"{name}-{size}", f"{name}.1-{size}", f"{name} {size}", size] if flavor else [str(name)]
    return next((found for each in tried if (found := find_model(each))), None)


def _why_no_model(settings: _Settings) -> str | None:
    """Return what to say where no model is given otherwise; None where the settings name none."""
    if "model.name" not in settings.values:
        return None
    name = "-".join(str(settings.values[each]) for each in ("model.name", "model.flavor") if each in settings.values)
    near = ", ".join(nearest(name, model_names()))
    return f"{quoted(name)} is not a known model{near and '; near it: '}{near}"


def _framework(settings: _Settings) -> str:
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
        fields["seq_length"] = settings.tokens("training.seq_len")
    in_pipeline = settings.count("parallelism.pipeline_parallel_microbatch_size", 1)
    if (pieces := settings.count("parallelism.pipeline_parallel_microbatches", -1)) > 0:
        in_pipeline = max(1, _local_batch(settings) // pieces)
    fields["micro_batch"] = in_pipeline if fields["pp"] > 1 else _local_batch(settings)
    total = settings.count("training.global_batch_size", -1)
    if total > 0:
        fields["global_batch"] = total
    if (tokens := settings.count(_TOKENS, -1)) > 0:
        fields["micro_batch"] = _sequences(settings, _TOKENS, tokens)
        step = "training.num_tokens_per_train_step"
        if (tokens := settings.count(step, -1)) > 0:
            fields["global_batch"] = _sequences(settings, step, tokens)


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
    return settings.count(shard_name, -1), settings.count(replicate_name, 1)


def _sequences(settings: _Settings, name: str, tokens: int) -> int:
    """Return a number of tokens as sequences of the full length, in which newer versions count their batches."""
    length = settings.tokens("training.seq_len") if "training.seq_len" in settings.values else _CONTEXT
    if tokens % length:
        raise ConfigError(f"is {tokens}; it must be a multiple of the {length} tokens of a sequence (in {SHOWN})", name)
    return tokens // length


def _local_batch(settings: _Settings) -> int:
    if (tokens := settings.count(_TOKENS, -1)) > 0:
        pieces = settings.count("parallelism.num_pp_microbatches", 1)
        in_pipeline = settings.count("parallelism.pipeline_parallel_degree", 1) > 1
        return _sequences(settings, _TOKENS, tokens) * (pieces if in_pipeline else 1)
    return settings.count("training.local_batch_size", 8)


def _pipeline(settings: _Settings, fields: dict[str, Any]) -> None:
    raw = str(settings.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if raw.lower() not in _SCHEDULES:
        known = ", ".join(("1F1B", "GPipe", "Interleaved1F1B"))
        raise ConfigError(
            f"is {quoted(raw)}; schedules that can be simulated: {known}", "parallelism.pipeline_parallel_schedule"
        )
    if fields["pp"] > 1:
        schedule, interleaved = _SCHEDULES[raw.lower()]
        fields["schedule"] = schedule
        # Source: torchtitan, distributed/pipeline_parallel.py: two stages per rank unless layers per stage are given.
        fields["vpp"] = 2 if interleaved else 1


def _sharding(settings: _Settings, fields: dict[str, Any]) -> tuple[Note, ...]:
    """Fill in when FSDP frees parameters, and the type it gathers them in."""
    reshard, eight = "parallelism.fsdp_reshard_after_forward", "float8.enable_fsdp_float8_all_gather"
    known = {"default": None, "always": True, "never": False}
    if reshard in settings.values and (said := settings.choice(reshard, known)) is not None:
        fields["reshard_after_forward"] = said
    if not settings.on(eight):
        return ()
    if fields["precision"] != "fp8":
        text = f"{eight} has no effect without the converter float8: parameters are gathered in 16 bits"
        return (Note("flags-without-effect", text),)
    fields["param_gather_bytes"] = 1
    return ()


def _computing(settings: _Settings, fields: dict[str, Any]) -> None:
    mode = "activation_checkpoint.mode"
    fields["recompute"] = settings.choice(mode, _CHECKPOINTING) if mode in settings.values else "selective"
    converters = str(settings.get("model.converters", ""))
    fp8 = "float8" in converters or settings.on("float8.enable_float8_linear")
    fields["precision"] = "mxfp8" if "mx" in converters else "fp8" if fp8 else "bf16"
    if fields["precision"] == "bf16" and "training.mixed_precision_param" in settings.values:
        fields["precision"] = settings.choice("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"})
    if "training.mixed_precision_reduce" in settings.values:
        fields["grad_reduce_bytes"] = settings.choice("training.mixed_precision_reduce", {"float32": 4, "bfloat16": 2})
    fields["overlap_tp"] = settings.on("parallelism.enable_async_tensor_parallel")
    if fields["tp"] > 1:
        fields["sequence_parallel"] = settings.on("parallelism.enable_sequence_parallel", usual=True)
    rotate = "parallelism.context_parallel_rotate_method"
    if rotate in settings.values:
        fields["cp_kind"] = settings.choice(rotate, {"allgather": "all_gather", "alltoall": "ring"})
    elif fields["cp"] > 1:
        fields["cp_kind"] = "all_gather"
