"""A job in a TOML file: sections for model, layout, batch, cluster and software.

::

    [model]
    name = "llama3-70b"

    [parallel]
    tp = 4
    pp = 4

    [batch]
    seq_length = 8192
    global_batch = 256

    [cluster]
    name = "h100"
    gpus = 64

    [software]
    framework = "megatron-core-2025"

`TEMPLATE` lists every key.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from traincast.errors import ConfigError, UnknownNameError
from traincast.files import read_toml
from traincast.job.draft import Draft
from traincast.job.inputs import input_of
from traincast.job.job import JobRequest, under_new_names
from traincast.model.load import builtin_table, find_model, model_names
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table
from traincast.names import known_names
from traincast.units import parse_tokens, quoted, range_of

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "parallel": (
        *("tp", "pp", "vpp", "cp", "ep", "etp", "schedule", "first_stage_layers", "last_stage_layers"),
        *("stage_layers", "embedding_as_layer", "head_as_layer", "sequence_parallel", "zero", "shard"),
        *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p", "cp_kind"),
        *("reshard_after_forward", "param_gather_bytes", "deduplicated_dispatch", "sharp"),
    ),
    "batch": ("seq_length", "micro_batch", "global_batch", "expert_imbalance"),
    "cluster": ("name", "gpus", "gpus_used_per_node"),
    "software": (
        *("framework", "year", "precision", "recompute", "recompute_layers", "recompute_method", "recompute_modules"),
        *("attention_kernel", "cuda_graphs", "vocab_multiple", "grad_reduce_bytes", "task", "lora_rank"),
        *("precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    ),
}
"""Keys of each section but ``model``; they are fields of `JobRequest`, save the cluster's name."""

TEMPLATE = """\
# A job for traincast: traincast predict JOB.toml
# What is commented out is open; traincast decides it by the framework and lists it as an assumption.

[model]
name = "llama3-70b"            # a built-in model (traincast models), a Hugging Face config.json, or a TOML
# base = "llama3-70b"          # or build on one, and give any field of the model here:
# layers = 60

[parallel]
tp = 4                         # tensor parallel degree
pp = 4                         # pipeline stages
# vpp = 5                      # virtual stages per stage; open: by framework, where the layers divide
cp = 2                         # context parallel degree
# ep = 1                       # expert parallel degree
# etp = 1                      # expert tensor parallel degree
# schedule = "interleaved"     # gpipe, 1f1b, interleaved
# first_stage_layers = 4       # layers of the first stage; last_stage_layers likewise
# stage_layers = [20, 20, 20, 20]  # or the layers of every virtual stage, in model order
# embedding_as_layer = false   # the embedding counts as a layer when layers are split; head_as_layer likewise
# sequence_parallel = true     # split norms of a tensor parallel group along the sequence
# zero = 1                     # 0 nothing, 1 optimizer, 2 gradients, 3 parameters (FSDP) sharded
# shard = 8                    # ranks that share one copy of sharded state (HSDP)
# overlap_grad_reduce = true
# overlap_param_gather = true
# overlap_tp = true            # tensor parallel transfers beside their products
# overlap_p2p = true           # messages between stages beside computation
# cp_kind = "ring"             # ring, all_gather, all_to_all
# deduplicated_dispatch = true # a token crosses to a node of its experts once (DeepEP, HybridEP)
# sharp = "dp"                 # dp or dp_replica: InfiniBand switches reduce for that group
# reshard_after_forward = true # with zero 3: free parameters after the forward pass and gather them again
# param_gather_bytes = 2       # bytes of a GEMM weight's element as it is gathered: 2, or 1 with 8-bit GEMMs

[batch]
seq_length = 8192              # tokens of a sequence; "8k" is 8192
micro_batch = 1                # sequences of a microbatch and replica
global_batch = 256             # sequences of a step
# expert_imbalance = 1.0       # tokens of the busiest expert rank over the mean

[cluster]
name = "h100"                  # a preset (traincast clusters) or a TOML
gpus = 256
# gpus_used_per_node = "auto"  # auto: what keeps tp, cp and ep groups in a node; all; or a number, such as 64 of 72

[software]
# framework = "megatron-core-2025" # or a TOML; see docs/jobs.md
# year = 2025                  # chooses the framework where none is named
# precision = "bf16"           # bf16, fp16, fp32, tf32, fp8, fp8_block, mxfp8, nvfp4
# recompute = "none"           # none, selective, full
# recompute_layers = 2         # with full: layers per virtual stage; open: all
# recompute_method = "block"   # with full: block, or uniform: recompute_layers are those of a group, all recomputed
# recompute_modules = ["core_attn"]  # with selective: also mla_up_proj, layernorm, mlp, moe, moe_act, shared_experts
# attention_kernel = "fa3"     # unfused, fa1, fa2, fa3, cudnn, triton
# cuda_graphs = false
# vocab_multiple = 128         # pad the vocabulary to a multiple of this times tp
# grad_reduce_bytes = 4        # bytes of a gradient element as replicas reduce it
# precision_aware_optimizer = true  # Adam keeps its state in these types:
# main_grads_dtype = "fp32"    # fp32, bf16: gradients as they are summed and reduced
# main_params_dtype = "fp32"   # fp32, fp16
# exp_avg_dtype = "bf16"       # fp32, fp16, bf16, fp8
# exp_avg_sq_dtype = "bf16"    # fp32, fp16, bf16, fp8
# task = "pretrain"            # pretrain, sft, lora
# lora_rank = 16
"""
"""A commented job file; its open keys are all there are."""


def read_job_file(path: str) -> Draft:
    """Read a job file.

    Parameters
    ----------
    path : str
        A TOML file.

    Returns
    -------
    Draft
        What the file says; what it leaves open is not in it.

    Raises
    ------
    FormatError
        If it cannot be read or is not TOML.
    ConfigError
        If a section or key is unknown, or a value of the wrong type.
    UnknownNameError
        If the model that it builds on is not known.
    """
    draft = draft_of_table(read_toml(Path(path)), path)
    return replace(draft, inputs=(input_of(path, "job"),))


def draft_of_table(document: Mapping[str, Any], shown: str) -> Draft:
    """Return the job that the tables of a job file describe.

    Parameters
    ----------
    document : mapping
        Tables by section.
    shown : str
        The file, for messages and for paths beside it.

    Raises
    ------
    ConfigError
        If a section or key is unknown, or a value of the wrong type.
    """
    types = {field.name: get_args(field.type) or (field.type,) for field in fields(JobRequest)}
    given: dict[str, Any] = {}
    for section, table in document.items():
        if section != "model" and section not in SECTIONS:
            raise ConfigError(f"is no section; {known_names(section, ['model', *SECTIONS])} (in {shown})", section)
        if not isinstance(table, Mapping):
            raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", section)
        if section == "model":
            continue
        for key, raw in _under_new_names(section, table, shown).items():
            place = f"{section}.{key}"
            if key not in SECTIONS[section]:
                raise ConfigError(f"is unknown; {known_names(key, SECTIONS[section])} (in {shown})", place)
            if key == "seq_length" and isinstance(raw, str):
                raw = _tokens(raw, place, shown)  # noqa: PLW2901
            value = _value(raw, (str,) if key == "name" else types[key], place, shown)
            given[key] = _in_range(key, value, place, shown)
    cluster = given.pop("name", None)
    beside = _beside(cluster, shown)
    return Draft(model=_model(document.get("model"), shown), cluster=beside, fields=given)


def _under_new_names(section: str, table: Mapping[str, Any], shown: str) -> Mapping[str, Any]:
    return under_new_names(table, shown) if section == "software" else table


def _tokens(text: str, place: str, shown: str) -> int:
    try:
        return parse_tokens(text)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", place) from None


def _value(raw: object, types: tuple[Any, ...], place: str, shown: str) -> Any:  # noqa: ANN401
    """Return a value of one of the types of a field."""
    plain = [kind for kind in types if kind in (bool, int, float, str)]
    if bool in plain and isinstance(raw, bool):
        return raw
    if int in plain and isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if float in plain and isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    if str in plain and isinstance(raw, str):
        return raw
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if plain:
        shape = wanted[plain[0]]
    else:
        (element, _) = get_args(types[0])
        if isinstance(raw, list) and raw and all(type(each) is element for each in raw):
            return tuple(raw)
        shape = {int: "a list of whole numbers", str: "a list of texts"}[element]
    raise ConfigError(f"is {quoted(raw)}; it must be {shape} (in {shown})", place)


def _in_range(key: str, value: Any, place: str, shown: str) -> Any:  # noqa: ANN401
    """Return a value whose number, or each number of a list, is in the range of its field."""
    known = range_of(key)
    if known is None or isinstance(value, bool | str):
        return value
    try:
        return tuple(map(known.checked, value)) if isinstance(value, tuple) else known.checked(value)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", place) from None


def _model(table: Any, shown: str) -> Model | str | None:  # noqa: ANN401
    """Return the name of a model, or the model that a table describes."""
    if table is None:
        return None
    if set(table) == {"name"}:
        name = table["name"]
        if not isinstance(name, str):
            raise ConfigError(f"is {quoted(name)}; it must be a text (in {shown})", "model.name")
        return _beside(name, shown)
    values = dict(table)
    base = values.pop("base", None)
    if base is None and isinstance(values.get("name"), str):
        base = find_model(values["name"])
    if base is not None and (not isinstance(base, str) or find_model(base) is None):
        raise UnknownNameError("base model", str(base), model_names())
    values = {"name": Path(shown).stem, "source": f"set in {shown}", **values}
    try:
        return model_from_table(merged(builtin_table(base) if base else {}, values), shown)
    except ConfigError as error:
        raise ConfigError(str(error) if shown in str(error) else f"{error} (in {shown})", "model") from error


def _beside(name: str | None, shown: str) -> str | None:
    """Return a path relative to the job file as one that can be opened; a name as it is."""
    if name is None or not name.endswith((".toml", ".json")):
        return name
    found = Path(shown).parent / name
    return str(found) if found.is_file() else name
