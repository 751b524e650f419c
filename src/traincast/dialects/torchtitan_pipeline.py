"""torchtitan's pipeline: its schedules by name, and which layers are on which virtual stage.

Sources: torchtitan, torchtitan/distributed/pipeline_parallel.py (_get_pipeline_metadata,
_generate_llm_fqn_per_model_part; split points: pipeline_module_split of 2025-05 and before); PyTorch,
torch/distributed/pipelining/schedules.py (get_schedule_class).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from traincast.dialects.flags import Pasted, flag_table
from traincast.errors import InfeasibleError
from traincast.job.job import Job
from traincast.job.pipeline_layout import PipelineLayout
from traincast.model.model import Model
from traincast.schedules.schedule import SCHEDULES, Pairing
from traincast.units import counted, quoted

_SECTION = "parallelism."
_SCHEDULE = f"{_SECTION}pipeline_parallel_schedule"
_MICROBATCH = f"{_SECTION}pipeline_parallel_microbatch_size"
_PER_STAGE = f"{_SECTION}pipeline_parallel_layers_per_stage"
_POINTS = f"{_SECTION}pipeline_parallel_split_points"
_PARTS = f"{_SECTION}module_fqns_per_model_part"
_OVERLAP = f"{_SECTION}pipeline_parallel_expert_parallel_overlap"
_LESS = (
    f"{_SECTION}pipeline_parallel_first_stage_less_layers",
    f"{_SECTION}pipeline_parallel_last_stage_less_layers",
)
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d{1,6})")
_MODULES = {"tok_embeddings": "E", "norm": "", "output": "L", "lm_head": "L"}
"""Modules in addition to the layers, and the letters of a layout that they are."""


def pipeline_fields(settings: Pasted, pp: int) -> dict[str, Any]:
    """Return the schedule, and the virtual stages where they follow without the model.

    Raises
    ------
    ConfigError
        If the schedule has no such name, or the stages are not written as torchtitan writes them.
    """
    known = flag_table("torchtitan").further["schedules"]
    raw = settings.words(_SCHEDULE) or "1F1B"
    if raw.lower() not in known:
        names = ", ".join(each["name"] for each in known.values())
        raise settings.wrong(_SCHEDULE, f"is {quoted(raw)}; schedules that can be simulated: {names}")
    schedule, usual = known[raw.lower()]["schedule"], known[raw.lower()]["vpp"]
    if pp == 1:
        return {}
    fields: dict[str, Any] = {"schedule": schedule}
    if schedule == "dualpipe_v" and _OVERLAP in settings:
        # No other schedule of torchtitan runs a forward and a backward pass at once.
        fields["moe_a2a_overlap"] = settings.is_on(_OVERLAP)
    if _PARTS in settings:
        layout = _layout(settings)
        return fields | {"vpp": max(1, len(layout.stages) // pp), "pipeline_layout": str(layout)}
    if _POINTS in settings:
        return fields | {"vpp": max(1, (len(_points(settings)) + 1) // pp)}
    return fields | ({} if _PER_STAGE in settings else {"vpp": usual})


def schedule_name(schedule: str) -> str | None:
    """Return what torchtitan calls a schedule; None where it has none of that kind."""
    known = flag_table("torchtitan").further["schedules"].values()
    return next((str(each["name"]) for each in known if each["schedule"] == schedule), None)


def pipeline_settings(job: Job) -> dict[str, Any]:
    """Return the settings that say a job's pipeline, as `pipeline_fields` and `stages_of` read them."""
    if job.parallel.pp == 1:
        return {}
    schedule, layers_Q = job.pipeline.schedule, job.pipeline.layers_Q
    known = schedule_name(schedule)
    found: dict[str, Any] = {_SCHEDULE: known, _MICROBATCH: job.batch.micro_batch}
    if len(set(layers_Q)) == 1:
        # It takes embedding and head for layers, of which even stages have none less.
        found |= {**dict.fromkeys(_LESS, 0), _PER_STAGE: layers_Q[0]}
    else:
        found[_PARTS] = _parts(layers_Q)
    if known and SCHEDULES.get(schedule).pairing is Pairing.ALWAYS:
        found[_OVERLAP] = job.experts.a2a_overlap
    return found


def _parts(layers_Q: Sequence[int]) -> list[list[str]]:
    """Return the modules of every virtual stage by their names in torchtitan's models."""
    ends = list(accumulate(layers_Q))
    parts = [[f"layers.{index}" for index in range(end - held, end)] for held, end in zip(layers_Q, ends, strict=True)]
    return [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", "output"]]


def unused(settings: Pasted, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of the pipeline that have no effect given the others."""
    ignored = (
        [_PER_STAGE, *_LESS, _POINTS] if _PARTS in settings else [_PER_STAGE, *_LESS] if _POINTS in settings else []
    )
    ignored += [] if "moe_a2a_overlap" in fields or not settings.is_on(_OVERLAP) else [_OVERLAP]
    ignored += [_SCHEDULE, _PARTS, _POINTS, _PER_STAGE, *_LESS] if fields["pp"] == 1 else []
    return tuple(name for name in dict.fromkeys(ignored) if name in settings)


def stages_of(settings: Pasted, given: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    """Return the layers of each virtual stage, unless the other fields say them.

    Embedding and LM head weigh one layer each, or what their settings say; the layers that are left over go to the
    first stages.

    Raises
    ------
    InfeasibleError
        If the layers do not fill the stages, or these do not fit the ranks or the schedule.
    """
    said = ("pipeline_layout", "stage_layers", "first_stage_layers", "last_stage_layers")
    if model is None or given["pp"] == 1 or any(map(given.get, (*said, "embedding_as_layer", "head_as_layer"))):
        return {}
    pp = given["pp"]
    if _POINTS in settings:
        bounds = (0, *_points(settings), model.layers)
        layers = tuple(end - begin for begin, end in pairwise(bounds))
        if min(layers) < 0 or len(layers) % pp:
            raise InfeasibleError(
                f"{_POINTS} make {counted(len(layers), 'stage')} of {model.layers} layers for pp {pp}"
            )
        return {"stage_layers": layers}
    first, last = (settings.count(name, 0, usual=1) for name in _LESS)
    weight = model.layers + first + last
    vpp = given.get("vpp") or _virtual(settings, weight, given)
    each, more = divmod(weight, pp * vpp)
    if max(first, last, 1) > each:
        raise InfeasibleError(
            f"{model.layers} layers + {first} for the embedding + {last} for the LM head do not fill pp {pp} x vpp "
            f"{vpp} = {pp * vpp} stages: {each} each; use a smaller pp, or another number of layers per stage"
        )
    held = [each + (index < more) for index in range(pp * vpp)]
    held[0] -= first
    held[-1] -= last
    return {"vpp": vpp, "stage_layers": tuple(held)}


def _virtual(settings: Pasted, weight: int, given: Mapping[str, Any]) -> int:
    """Return the virtual stages of each rank that the layers per stage make."""
    each, pp = settings.count(_PER_STAGE, 1), int(given["pp"])
    stages = -(-weight // each)
    several = flag_table("torchtitan").further["schedules"][(settings.words(_SCHEDULE) or "1F1B").lower()]["vpp"] > 1
    vpp, odd = divmod(stages, pp)
    if odd or (vpp > 1) != several:
        needs = "two or more virtual stages on each" if several else "one on each"
        raise InfeasibleError(
            f"{_PER_STAGE} {each} makes {counted(stages, 'stage')} for pp {pp}; schedule {given['schedule']} needs "
            f"{needs}"
        )
    return vpp


def _points(settings: Pasted) -> tuple[int, ...]:
    """Return the layers at which a new stage begins."""
    names = [name for word in settings.flags[_POINTS] for name in re.findall(r"[\w.]+", word)]
    found = list(map(_LAYER.fullmatch, names))
    numbers = [int(each[1]) for each in found if each is not None]
    if not names or len(numbers) != len(names) or sorted(set(numbers)) != numbers:
        raise settings.wrong(_POINTS, f"is {quoted(settings.words(_POINTS))}; write it like layers.8,layers.16")
    return tuple(numbers)


def _layout(settings: Pasted) -> PipelineLayout:
    """Read what each part of the model holds, from lists of the names of its modules; layers must be in their order."""
    try:
        parts = list(map(ast.literal_eval, settings.flags[_PARTS]))
        parts = parts[0] if len(parts) == 1 and isinstance(parts[0][0], list) else parts
        stages = tuple("".join(map(_letter, part)) for part in parts)
        layers = [int(found[1]) for part in parts for name in part if (found := _LAYER.fullmatch(name))]
    except (SyntaxError, ValueError, TypeError, LookupError, RecursionError, MemoryError):
        layers, stages = [], ()
    if not layers or layers != list(range(len(layers))):
        example = "[['tok_embeddings', 'layers.0'], ['layers.1', 'norm', 'lm_head']]"
        text = quoted(settings.words(_PARTS))
        raise settings.wrong(_PARTS, f"is {text}; write lists of modules with the layers in order, like {example}")
    return PipelineLayout(stages)


def _letter(module: str) -> str:
    """Return the letter of a layout that a module is, by its full name."""
    return "t" if _LAYER.fullmatch(module) else _MODULES[module.rpartition(".")[2]]
