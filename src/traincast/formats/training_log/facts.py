"""What frameworks print of a run in addition to its steps: ``data/formats/training_log.toml``, compiled.

Lists of settings (Megatron-LM's arguments, YAML, JSON), sentences, the name of the GPU, the mesh; and what tells that a
run starts, or does something else than training.
"""

import ast
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct

from traincast.shipped import shipped_toml


class _Run(Struct, forbid_unknown_fields=True):
    sentences: tuple[str, ...]
    gpu_name: str
    mesh: str
    preamble: str
    interruption: str


class _Table(Struct, forbid_unknown_fields=True):
    facts: dict[str, str]
    run: _Run


_TABLE = shipped_toml("formats/training_log.toml", _Table)
FACTS = _TABLE.facts
"""Name of a fact in a list of all settings, and the settings that say it."""
PREAMBLE = _TABLE.run.preamble
"""Finds what stands before the first step of a log."""

TAG = re.compile(r"\s*(\[(?:rank|default)\d+\]:|\d+:(?=\s)|\[\d+,\d+\]<\w+>:?|\[[\w.-]+-\d+\]|[\w.-]+/\d+(?=\s))")
"""How launchers mark the rank of a line: torchrun, srun --label, mpirun --tag-output, Kubernetes, NeMo-Run."""
_INTERRUPTION = re.compile(_TABLE.run.interruption)
_STARTS = re.compile(r"Training starts at step|before the start of training step|(?<!-)-{10,}+ arguments -{10,}")
_SETTING = re.compile(rf"""[\s"']*({"|".join(FACTS.values())})["']?\s*(?:\.{{2,}}|[:=])\s*(\d{{1,12}})\s*,?\s*$""")
_OF_DEEPSPEED = re.compile(r"\[config\.py:\d+:print\]\s+(\w+) \.* ?(\d{1,12})\s*$")
_DEEPSPEED_FACTS = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "world_size": "gpus",
}
_ARGUMENT = re.compile(r"(?:^|\s)([a-z]\w*) \.{2,} (.*)$")
_OF_MAXTEXT = re.compile(r"Config param (\w+): (.*)$")
"""MaxText/pyconfig.py: the list of all settings (``log_config``)."""
_OF_TORCHTITAN = re.compile(r"Running with args: (\{.*\})")
"""torchtitan/train.py: ``job_config.to_dict()`` (``--job.print_config``)."""
_OF_INTERRUPTIONS = ("alidat", "heckpoint", "valuat", "aving")
_OF_STARTS = ("raining st", "start of training", " arguments ")
"""Words of lines that are worth a closer look; most are not."""
WORDS = (*_OF_INTERRUPTIONS, *_OF_STARTS)
"""Texts of which every line has one that tells of an interruption or a start."""


def interrupts(text: str) -> bool:
    """Say whether a line tells that something else than training was done: an evaluation, a checkpoint."""
    return any(word in text for word in _OF_INTERRUPTIONS) and _INTERRUPTION.search(text) is not None


def starts(text: str) -> bool:
    """Say whether a line is the first that a framework prints when a run starts."""
    return any(word in text for word in _OF_STARTS) and _STARTS.search(text) is not None


def settings_of_line(text: str) -> tuple[str, dict[str, str]] | None:
    """Return whose settings a line lists, and these: one of Megatron-LM or MaxText, all of torchtitan."""
    if (match := _ARGUMENT.search(text)) is not None:
        return "megatron", {match[1]: match[2].strip()}
    if (match := _OF_MAXTEXT.search(text)) is not None:
        return "maxtext", {match[1]: match[2].strip()}
    if (match := _OF_TORCHTITAN.search(text)) is not None:
        try:
            found = ast.literal_eval(match[1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return "torchtitan", dict(_flat(found)) if isinstance(found, dict) else {}
    return None


def _flat(values: dict[Any, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of sections under dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@cache
def _sentences() -> tuple[tuple[re.Pattern[str], ...], re.Pattern[str], re.Pattern[str]]:
    run = _TABLE.run
    return tuple(map(re.compile, run.sentences)), re.compile(run.gpu_name), re.compile(run.mesh)


def facts_of_line(text: str) -> dict[str, int | str]:
    """Return what a line says of the run, by the keys of `FACTS`."""
    tag = TAG.match(text)
    if (logged := _OF_DEEPSPEED.search(text)) is not None and logged[1] in _DEEPSPEED_FACTS:
        return {_DEEPSPEED_FACTS[logged[1]]: int(logged[2])}
    setting = _SETTING.match(text, tag.end() if tag else 0)
    if setting is not None:
        name = next(name for name, words in FACTS.items() if re.fullmatch(words, setting[1]))
        return {name: int(setting[2])} if int(setting[2]) > 0 else {}
    sentences, gpu_name, mesh = _sentences()
    for sentence in sentences:
        if match := sentence.search(text):
            told = {name: int(value.replace(",", "")) for name, value in match.groupdict().items() if value}
            return _with_world(told)
    if match := gpu_name.search(text):
        return {"gpu": match["gpu"]}
    if match := mesh.search(text):
        names = re.findall(r"\w+", match["names"])
        sizes = list(map(int, re.findall(r"\d{1,12}", match["sizes"])))
        if len(names) == len(sizes):
            told = {name: size for name, size in zip(names, sizes, strict=True) if name in ("tp", "pp", "cp")}
            return {**told, "gpus": math.prod(sizes)}
    return {}


def _with_world(told: dict[str, Any]) -> dict[str, int | str]:
    """Return facts with the GPUs that torchtitan's degrees make; ep is not a dimension of its own."""
    if "dp_shard" not in told:
        return told
    replicas = told.pop("dp_replicate") * told.pop("dp_shard")
    return {**told, "gpus": replicas * told["pp"] * told["cp"] * told["tp"]}
