"""The job of a training log that lists its arguments, as Megatron-LM, MaxText and torchtitan do.

Megatron-LM's are those of the command line after Megatron-LM has filled in its defaults (``_print_args`` of
``megatron/training/arguments.py``), under the names of the program: most are those of the flags with underscores. What
is ``None`` or ``False`` was not given.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.dialects.flags import READ, REFUSED, flag_table
from traincast.dialects.maxtext_settings import draft_of_maxtext
from traincast.dialects.megatron_flags import draft_of_megatron
from traincast.dialects.torchtitan_flags import draft_of_torchtitan
from traincast.formats.training_log.record import TrainingLog
from traincast.job.draft import Draft

_OTHERWISE: Mapping[str, str] = {"fp8": "fp8-format", "fp4": "fp4-format"}
"""Arguments whose flags have another name."""
_TURNED_OFF: Mapping[str, str] = {
    "add_bias_linear": "disable-bias-linear",
    "add_position_embedding": "no-position-embedding",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
"""Arguments that are on unless a flag turns them off."""
_MEANS_NOTHING_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "data_parallel_sharding_strategy": ("use_megatron_fsdp", "use_custom_fsdp"),
    "main_grads_dtype": ("use_precision_aware_optimizer",),
    "main_params_dtype": ("use_precision_aware_optimizer",),
    "exp_avg_dtype": ("use_precision_aware_optimizer",),
    "exp_avg_sq_dtype": ("use_precision_aware_optimizer",),
}
"""Arguments that have a value whether it counts or not, and those of which one must be on."""
_VOCABULARY = "padded_vocab_size"
_VIRTUAL = "virtual_pipeline_model_parallel_size"
_STAGES_OF = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
_NEEDS: Mapping[str, frozenset[str]] = {
    "megatron": frozenset({"num_layers", "hidden_size", "num_attention_heads", "seq_length"}),
    "maxtext": frozenset({"per_device_batch_size", "max_target_length"}),
    "torchtitan": frozenset({"training.seq_len"}),
}
"""Settings without which a list says no job."""
_NOT_GIVEN = ("None", "False", "[]", "")


def draft_of_log(log: TrainingLog) -> Draft | None:
    """Return the job that a log's arguments describe; None where it lists none.

    Raises
    ------
    ConfigError
        If the arguments are of a job that cannot be described.
    """
    needs = _NEEDS.get(log.settings_like)
    if needs is None or not needs <= log.settings.keys():
        return None
    if log.settings_like == "maxtext":
        draft = draft_of_maxtext([*_of_maxtext(log.settings)])
    elif log.settings_like == "torchtitan":
        draft = draft_of_torchtitan([*_of_torchtitan(log)])
    else:
        draft = draft_of_megatron([word for words in _flags(log.settings) for word in words])
    note = Note("job-from-log", "the job is taken from the arguments that the log lists", log.path)
    return replace(draft, notes=(note, *draft.notes))


def _of_maxtext(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that say what is forecast; those of a named model are its own."""
    table = flag_table("maxtext")
    sizes = table.further["defaults"] if settings.get("model_name", "default") not in ("", "default") else {}
    for name, value in settings.items():
        known = table.find(name.replace("_", "-"))
        if known is None or value in _NOT_GIVEN or (name in sizes and name != "model_name"):
            continue
        if known.effect_of(value) == READ:
            yield f"{name}={value}"


def _of_torchtitan(log: TrainingLog) -> Iterator[str]:
    """Yield the command line that the settings stand for, on as many GPUs as the log says."""
    table, gpus = flag_table("torchtitan"), log.facts.get("gpus")
    if gpus is not None:
        yield from ("torchrun", "--nproc_per_node", str(gpus), "train.py")
    for name, value in log.settings.items():
        known = table.find(name.replace("_", "-"))
        if known is None or value in ("None", ""):
            continue
        if known.effect_of(value) == READ:
            yield from (f"--{name}", *([value.lower()] if value in ("True", "False") else value.split()))


def _flags(settings: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the flags that say what is forecast, each with its values."""
    table = flag_table("megatron")
    for name, value in settings.items():
        if name in _TURNED_OFF and value == "False":
            yield [f"--{_TURNED_OFF[name]}"]
        needs = _MEANS_NOTHING_WITHOUT.get(name, ())
        unused = needs and all(settings.get(each) != "True" for each in needs)
        if value in _NOT_GIVEN or name in _TURNED_OFF or unused:
            continue
        flag = _OTHERWISE.get(name, name.replace("_", "-"))
        known = table.find(flag)
        words = [] if value == "True" else re.findall(r"[^\s\[\]',\"]+", value)
        effect = None if known is None else known.effect_of(" ".join(words))
        # Arguments of other values have defaults, which say nothing.
        if effect == READ or (effect == REFUSED and value == "True"):
            yield [f"--{flag}", *words]
    if _VOCABULARY in settings and settings.get("vocab_size", "None") in _NOT_GIVEN:
        yield ["--vocab-size", settings[_VOCABULARY]]
    said = [name for name in (_VIRTUAL, *_STAGES_OF) if settings.get(name, "None") not in _NOT_GIVEN]
    if said == [_VIRTUAL]:
        yield ["--num-virtual-stages-per-pipeline-rank", settings[_VIRTUAL]]
