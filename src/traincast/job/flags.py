"""Flags of the layout, with the long names that Megatron-LM users type.

Source of the aliases: Megatron-LM, megatron/training/arguments.py.
"""

from typing import NamedTuple


class Flag(NamedTuple):
    """One layout flag of the command line."""

    field: str
    """Field of `LayoutOptions` that it sets."""
    names: tuple[str, ...]
    help: str


LAYOUT_FLAGS: tuple[Flag, ...] = (
    Flag("gpus", ("--gpus", "--world-size"), "World size; changes dp, never the microbatches."),
    Flag("tp", ("--tp", "--tensor-model-parallel-size"), "Tensor parallel degree."),
    Flag("pp", ("--pp", "--pipeline-model-parallel-size"), "Pipeline stages."),
    Flag("vpp", ("--vpp", "--num-virtual-stages-per-pipeline-rank"), "Virtual stages per stage."),
    Flag("cp", ("--cp", "--context-parallel-size"), "Context parallel degree."),
    Flag("ep", ("--ep", "--expert-model-parallel-size"), "Expert parallel degree."),
    Flag("etp", ("--etp", "--expert-tensor-parallel-size"), "Expert tensor parallel degree (default: tp)."),
    Flag("dp", ("--dp", "--data-parallel-size"), "Data parallel degree."),
    Flag("microbatches", ("--microbatches",), "Microbatches per step."),
    Flag("layers", ("--layers", "--num-layers"), "Layers of the model, where the file lists fewer."),
)

_OTHER_NAMES = {"pp_message_bytes": "--pp-comm"}


def flag_of(field: str) -> str:
    """Return the name of the command-line flag that sets a field of `LayoutOptions`."""
    named = {flag.field: flag.names[0] for flag in LAYOUT_FLAGS} | _OTHER_NAMES
    return named.get(field, f"--{field.replace('_', '-')}")
