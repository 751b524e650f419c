"""A job as overrides of a recipe of Megatron-Bridge, by the tables that read them.

Its settings are Megatron-LM's flags in sections, so that they are said as these are.
Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py and models/gpt_provider.py.
"""

import json
from collections.abc import Iterator
from typing import Any

from traincast.dialects.flags import flag_table
from traincast.dialects.megatron_writing import demanded_by, gathers_once, lost_by_megatron, megatron_said
from traincast.dialects.recipe_flags import PRECISION_FLAGS, flag_of_setting, flags_of_precision
from traincast.job.job import Job


def bridge_text(job: Job) -> str:
    """Return the overrides of a recipe, one a line."""
    lost = [*lost_by_megatron(job, "Megatron-Bridge")]
    if gathers_once(job):
        lost.append("# parameters gathered once: Megatron-Bridge gathers them again for the backward pass")
    lines = (f"{name}={plain_setting(value)}" for name, value in bridge_said(job).items())
    return "".join(f"{line}\n" for line in (*lines, *lost))


def bridge_said(job: Job) -> dict[str, Any]:
    """Return the settings of a recipe that say a job, by name; then what these demand."""
    return dict(_settings(job)) | demanded_by(job, flag_table("bridge").further["demanded"])


def _settings(job: Job) -> Iterator[tuple[str, Any]]:
    table, flags = flag_table("bridge").further, megatron_said(job)
    always = table["writes"]["always"].split()
    for name in table["writes"]["settings"].split():
        flag = flag_of_setting(name, table)
        value = not flags[table["off"][flag]] if flag in table["off"] else flags.get(flag)
        if name in always or value not in (None, False):
            yield name, value
    precision = {name: flags[name] for name in PRECISION_FLAGS if flags.get(name)}
    named = (name for name, words in table["precisions"].items() if flags_of_precision(words) == precision)
    yield from (("mixed_precision", name) for name in list(named)[:1])


def plain_setting(value: object) -> str:
    """Write a value as Hydra reads it."""
    if value is None:
        return "null"
    return json.dumps(value).replace(" ", "").replace('"', "") if isinstance(value, (bool, list)) else str(value)
