"""The names that fields of a job may have, by what the table of fields calls each list."""

from collections.abc import Mapping
from types import MappingProxyType

from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.hardware.dtypes import FOUR_BIT, PRECISIONS
from traincast.job.communication import SHARP_GROUPS
from traincast.job.fields import Field
from traincast.job.frameworks import CP_KINDS, GRAPH_SCOPES, LOSS_KERNELS, RECOMPUTE_METHODS
from traincast.job.kernels import GRAPH_IMPLS, STEP_CHECKS, UNFUSED
from traincast.job.levels import LEVELS
from traincast.job.offload import OFFLOAD_MODULES
from traincast.job.optimizer import MAIN_GRADIENT_TYPES, MAIN_PARAMETER_TYPES, MOMENT_TYPES, OPTIMIZERS, TP_MODES
from traincast.job.precision import FP8_RECIPES
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.counts import TASKS
from traincast.model.dispatch import DISPATCH_DTYPES, DISPATCHERS
from traincast.model.recompute import RECOMPUTE, RECOMPUTE_KEEPS, RECOMPUTE_MODULES
from traincast.model.routing import ROUTINGS

NODE_USES = ("auto", "all")
"""How many GPUs of a node a job uses, in addition to a number: as its innermost groups need it, or all."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "precisions": (*PRECISIONS, FOUR_BIT),
        "recomputation": tuple(RECOMPUTE),
        "recompute methods": tuple(RECOMPUTE_METHODS),
        "recompute modules": tuple(RECOMPUTE_MODULES),
        "recompute keeps": tuple(RECOMPUTE_KEEPS),
        "attention kernels": tuple(ATTENTION_KERNELS),
        "kinds of CP": tuple(CP_KINDS),
        "CUDA graph implementations": GRAPH_IMPLS,
        "CUDA graph scopes": tuple(GRAPH_SCOPES),
        "unfused kernels": tuple(UNFUSED),
        "checks of a step": tuple(STEP_CHECKS),
        "loss kernels": LOSS_KERNELS,
        "dispatchers": tuple(DISPATCHERS),
        "dispatch types": tuple(DISPATCH_DTYPES),
        "routings": tuple(ROUTINGS),
        "8-bit recipes": FP8_RECIPES,
        "SHARP groups": SHARP_GROUPS,
        "main gradient types": tuple(MAIN_GRADIENT_TYPES),
        "main parameter types": tuple(MAIN_PARAMETER_TYPES),
        "moment types": tuple(MOMENT_TYPES),
        "optimizers": OPTIMIZERS,
        "TP modes of Muon": TP_MODES,
        "offload modules": tuple(OFFLOAD_MODULES),
        "levels of effort": LEVELS,
        "tasks": tuple(TASKS),
        "LoRA targets": tuple(LORA_TARGETS),
        "uses of a node": NODE_USES,
    }
)
"""Column ``choices`` of `data/job/fields.csv` to the names that it stands for."""


def choices_of(field: Field) -> tuple[str, ...]:
    """Return the names that a field may have; none where it is free."""
    return CHOICES[field.choices] if field.choices else ()
