"""DeepSpeed's configuration as a job: ``--like deepspeed -- deepspeed --num_gpus 8 train.py --deepspeed ds.json``.

The file says how state is sharded, the batch and the types; the model, the sequence and what the file leaves to
Transformers (``auto``) are flags of the script, or options. Source: deepspeedai/DeepSpeed, deepspeed/runtime/config.py
and engine.py (2026-08); huggingface/transformers, src/transformers/integrations/deepspeed.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.dialects.flags import FlagTable, Pasted, flag_table
from traincast.dialects.launch import Launch, launch_fields, launch_notes, read_launch
from traincast.dialects.settings import (
    Values,
    enabled,
    input_files,
    judged,
    model_of,
    settings_of_file,
    settings_of_words,
    spelled,
    split_files,
)
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.units import quoted

_SHOWN = "DeepSpeed settings"
_FRAMEWORK = "deepspeed-2024"
_FILE_FLAGS = ("deepspeed_config", "deepspeed")
_MICRO, _TOTAL, _STEPS = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"
_MICRO_FLAG = "per_device_train_batch_size"
_ZERO = "zero_optimization"
_TYPES = {"fp32": "fp32", "float32": "fp32", "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
_BYTES = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bfp16": 2, "bf16": 2, "bfloat16": 2}


def draft_of_deepspeed(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a launch line that names DeepSpeed's configuration, or that file; see `traincast.dialects.draft_like`.

    Raises
    ------
    ConfigError
        If a setting has a wrong value, or the script's flags contradict the file.
    FormatError
        If the file cannot be read.
    """
    table, launch = flag_table("deepspeed"), read_launch(words, _SHOWN)
    files, rest = split_files(launch.words)
    flags = dict(settings_of_words(rest, _SHOWN, table))
    for name in _FILE_FLAGS:
        files += flags.pop(name, ())
    said: dict[str, tuple[str, ...]] = {}
    for file in files:
        said |= spelled(settings_of_file(file), table)
    return deepspeed_draft(said, flags, launch, files, table, strict=strict)


def deepspeed_draft(
    said: Values, flags: Values, launch: Launch, files: Sequence[str], table: FlagTable, *, strict: bool
) -> Draft:
    """Return the job that settings of DeepSpeed's file and flags of the script describe (errors as above)."""
    left = [name for name, values in said.items() if values == ("auto",)]
    said = {name: values for name, values in enabled(said).items() if values != ("auto",)}
    settings = Pasted({**flags, **said}, _SHOWN, "")
    _check_equal(said, flags)
    verdict = judged(settings, table, strict=strict)
    fields = {"framework": _FRAMEWORK, **settings.fields(table), **launch_fields(launch)}
    batch = ScriptBatch.from_settings(settings)
    notes = [*verdict.notes, *launch_notes(launch), *_auto(left, flags)]
    assumed = f"framework is not given: {_FRAMEWORK}, for DeepSpeed under Transformers; give --framework"
    notes.append(Note("assumed-framework", assumed))
    _parallel(settings, fields)
    _sharding(settings, fields)
    precision_of(settings, fields)
    notes += [*_on_disk(settings), *recompute_of(settings, fields)]
    adapters_of(settings, fields)
    if launch.gpus is not None:
        fields["gpus"] = launch.gpus
    elif (replicas := batch.replicas()) is not None:
        fields["gpus"] = replicas * fields["tp"] * fields["pp"] * fields["cp"]
    if batch.micro is not None:
        fields["micro_batch"] = batch.micro
    model, why, more = named_model(settings, files)
    whys = {"gpus": launch.says, "model": why, "global_batch": batch.why(left)}
    return Draft(
        model=model,
        fields=fields,
        notes=(*notes, *more),
        settings=verdict.settings,
        warnings=verdict.warnings,
        finish=batch.finish,
        launched=launch.gpus,
        whys=whys,
        inputs=input_files(files, "deepspeed"),
    )


def _check_equal(said: Values, flags: Values) -> None:
    """Refuse numbers that the script's flags and the file say otherwise, as Transformers does."""
    for name, flag in ((_STEPS, _STEPS), (_MICRO, _MICRO_FLAG)):
        if name in said and flag in flags and said[name] != flags[flag]:
            text = f"is {quoted(' '.join(flags[flag]))}, but {name} of the file is {quoted(' '.join(said[name]))}"
            raise ConfigError(f"{text}; Transformers refuses that: give one of them, or auto in the file", f"--{flag}")


def _auto(left: Sequence[str], flags: Values) -> list[Note]:
    """Return a note of what the file leaves to Transformers."""
    if not left:
        return []
    why = "from the flags of the script" if flags else "the script's flags are not given"
    return [Note("settings-auto", f"auto, as Transformers fills them in ({why}): {', '.join(left)}")]


class ScriptBatch(Struct, frozen=True):
    """Sequences of a step: any two of total, micro batch and accumulation, with the replicas, say the third.

    Source: DeepSpeed, runtime/config.py (_set_batch_related_parameters, _batch_assertion).
    """

    total: int | None
    micro: int | None
    steps: int | None

    @classmethod
    def from_settings(cls, settings: Pasted) -> "ScriptBatch":
        """Read it from the settings."""
        micro = next((name for name in (_MICRO, _MICRO_FLAG) if name in settings), _MICRO)
        total, each, steps = (settings.count(name, 1) if name in settings else None for name in (_TOTAL, micro, _STEPS))
        return cls(total, each, steps)

    def replicas(self) -> int | None:
        """Return the replicas that all three of its numbers say; None where one is open or they do not divide."""
        if self.total is None or self.micro is None or self.steps is None:
            return None
        each = self.micro * self.steps
        return None if self.total % each else self.total // each

    def why(self, left: Sequence[str], *, of_script: bool = False) -> str | None:
        """Return why the global batch is not known; None where it follows from the GPUs.

        Of settings that leave the batch to the script (`of_script`) no key of DeepSpeed's is missing.
        """
        if self.total is not None or self.micro is not None:
            return None
        if of_script:
            return f"the settings leave the batch to the script, and no --{_MICRO_FLAG} is given"
        auto = _MICRO in left or _TOTAL in left
        return (
            f"{_MICRO} is auto, and no --{_MICRO_FLAG} is given" if auto else f"neither {_TOTAL} nor {_MICRO} is given"
        )

    def finish(self, given: Mapping[str, Any], _model: object = None) -> dict[str, Any]:
        """Return what follows from the GPUs.

        Raises
        ------
        InfeasibleError
            If the numbers do not multiply.
        """
        replicas = max(1, given["gpus"] // (given["tp"] * given["pp"] * given["cp"]))
        if self.total is None:
            return {} if self.micro is None else {"global_batch": self.micro * (self.steps or 1) * replicas}
        micro = self.micro or max(1, self.total // (replicas * (self.steps or 1)))
        steps = self.steps or max(1, self.total // (replicas * micro))
        if micro * steps * replicas != self.total and "global_batch" not in given:
            raise InfeasibleError(
                f"{_TOTAL} {self.total} is not micro batch {micro} x accumulation {steps} x {replicas} replicas = "
                f"{micro * steps * replicas}; give other GPUs, or change one of them"
            )
        return {"global_batch": self.total, "micro_batch": micro}


def _parallel(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the degrees: tensor parallelism without its sequence, sequences split by heads, stages."""
    if settings.count("tensor_parallel.autotp_size", usual=0) > 1:
        # Source: DeepSpeed, runtime/tensor_parallel: weights are split, activations between them are not.
        fields |= {"tp": settings.count("tensor_parallel.autotp_size", 1), "sequence_parallel": False}
    if settings.count("sequence_parallel_size", usual=0) > 1:
        # Source: DeepSpeed, runtime/sequence_parallel/ulysses_sp.py: an all-to-all of heads and sequence.
        fields |= {"cp": settings.count("sequence_parallel_size", 1), "cp_kind": "all_to_all"}
    if settings.count("pipeline.stages", usual=0) > 1:
        fields |= {"pp": settings.count("pipeline.stages", 1), "vpp": 1, "schedule": "1f1b"}


def _sharding(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the stage of ZeRO, over which ranks, what is overlapped, and the type of reductions."""
    stage = settings.count(f"{_ZERO}.stage", usual=0)
    if stage > 3:
        raise settings.wrong(f"{_ZERO}.stage", f"is {stage}; it must be from 0 to 3")
    # Source: DeepSpeed, runtime/zero/config.py (overlap_comm_valid), stage_1_and_2.py (gathers after the step).
    overlap = settings.is_on(f"{_ZERO}.overlap_comm", usual=stage == 3) and stage > 0
    fields |= {"zero": stage, "overlap_grad_reduce": overlap, "overlap_param_gather": stage == 3}
    _offloading(settings, stage, fields)
    group = settings.text(f"{_ZERO}.mics_shard_size") if f"{_ZERO}.mics_shard_size" in settings else "-1"
    if stage and group != "-1":
        fields["shard"] = settings.count(f"{_ZERO}.mics_shard_size", 1)


def _offloading(settings: Pasted, stage: int, fields: dict[str, Any]) -> None:
    """Fill in what the host keeps.

    Source: DeepSpeed, runtime/zero/stage_1_and_2.py (step: parameters are copied after the update) and stage3.py.
    """
    optimizer, parameters = (f"{_ZERO}.offload_{each}" for each in ("optimizer", "param"))
    if stage and _leaves(settings, optimizer):
        ratio = f"{optimizer}.ratio"
        share = settings.number(ratio, "share") if ratio in settings else 1.0
        fields |= {"offload_optimizer": share, **({"overlap_offload": False} if share else {})}
    if stage == 3 and _leaves(settings, parameters):
        fields |= {"offload_parameters": True, "offload_optimizer": 1.0, "overlap_offload": False}


def _leaves(settings: Pasted, what: str) -> bool:
    """Say whether something is offloaded, to whatever device."""
    return settings.words(f"{what}.device") not in ("", "none") if f"{what}.device" in settings else False


def _on_disk(settings: Pasted) -> list[Note]:
    """Say what is offloaded to a disk: it is taken as offloaded to the memory of the host."""
    disks = [f"{_ZERO}.offload_{each}.device" for each in ("optimizer", "param")]
    text = "nvme is not modelled: what is offloaded stays in the memory of the host, which is many times as fast"
    return [Note("flag-not-modelled", f"{name} {text}", name) for name in disks if settings.words(name) == "nvme"]


def precision_of(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in the type of GEMMs and of reduced gradients.

    Source: DeepSpeed, runtime/engine.py (communication_data_type).
    """
    half = {name: settings.is_on(f"{name}.enabled", usual=settings.is_on(name)) for name in ("bf16", "fp16")}
    if all(half.values()):
        raise settings.wrong("bf16.enabled", "and fp16.enabled are both true; DeepSpeed refuses that")
    precision = next((name for name, is_on in half.items() if is_on), "fp32")
    if settings.is_on("torch_autocast.enabled"):
        name = "torch_autocast.dtype"
        precision = settings.choice(name, _TYPES) if name in settings else "bf16"
    reduced = _BYTES["fp32" if precision == "fp32" else precision]
    if "communication_data_type" in settings:
        reduced = settings.choice("communication_data_type", _BYTES)
    fields |= {"precision": precision, "grad_reduce_bytes": reduced}


def recompute_of(settings: Pasted, fields: dict[str, Any]) -> list[Note]:
    """Fill in what is recomputed: the script's flag says so; the file's section says how, if the script does."""
    if "gradient_checkpointing" in settings:
        fields["recompute"] = "full" if settings.is_on("gradient_checkpointing") else "none"
        return []
    section = ("partition_activations", "cpu_checkpointing", "number_checkpoints")
    said = [name for name in section if settings.words(f"activation_checkpointing.{name}") not in ("false", "0")]
    if not any(f"activation_checkpointing.{name}" in settings for name in said):
        fields["recompute"] = "none"
        return []
    fields["recompute"] = "full"
    text = "activation_checkpointing is configured: every layer is taken as recomputed; give --recompute none where "
    notes = [Note("assumed-recompute", f"{text}the script does not call it", "activation_checkpointing")]
    if any(settings.is_on(f"activation_checkpointing.{name}") for name in section[:2]):
        text = "partition_activations and cpu_checkpointing are not modelled: layer inputs stay whole on the GPU"
        notes.append(Note("flag-not-modelled", text, "activation_checkpointing"))
    return notes


def adapters_of(settings: Pasted, fields: dict[str, Any]) -> None:
    """Fill in that adapters are trained, where the script's flags say so."""
    if settings.is_on("use_peft"):
        fields["task"] = "lora"
    else:
        fields.pop("lora_rank", None)


def named_model(settings: Pasted, files: Sequence[str]) -> tuple[str | None, str | None, list[Note]]:
    """Return the model that the script's flags name, or a ``config.json`` next to the file; why none; notes."""
    if "model_name_or_path" in settings:
        return (*model_of(settings.text("model_name_or_path")), [])
    for file in files:
        config = Path(file).with_name("config.json")
        if config.is_file() and config != Path(file):
            text = f"the model is {config}, which stands next to the configuration; give --model for another"
            return str(config), None, [Note("assumed-model", text)]
    return None, None, []
