"""Flags of a job and of the layout of a file on the command line, ours and those that Megatron-LM users type."""

from msgspec.structs import replace

from traincast.job.fields import JOB, LAYOUT, fields

_OTHER_NAMES = {
    "pp_message_bytes": "--pp-comm",
    "busbw_bytes_per_s": "--busbw",
    "compute_slowdown": "--slow",
    "failures": "--goodput",
    "gpu_power_w": "--gpu-power",
}
"""Field of options to its flag, where that has another name."""

JOB_FLAGS = tuple(each for each in fields(of=JOB) if each.flags)
"""Fields that have a flag of a command that takes a job."""

LAYOUT_FLAGS = tuple(replace(each, help=each.help_of_layout or each.help) for each in fields(of=LAYOUT))
"""Those whose flag says otherwise than a file how its work is laid out."""


def flag_of(field: str) -> str:
    """Return the name of the flag that sets a field of a job, of `LayoutOptions` or of `StepOptions`."""
    named = {each.name: each.flags[0] for each in (*JOB_FLAGS, *LAYOUT_FLAGS)} | _OTHER_NAMES
    return named.get(field, f"--{field.replace('_', '-')}")
