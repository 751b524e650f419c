"""What there is to try: jobs, and files that come with traincast."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from traincast.errors import UnknownNameError
from traincast.serve.about import Nothing
from traincast.serve.words import Value
from traincast.shipped import SHIPPED

if TYPE_CHECKING:
    from traincast.serve.bench import Workbench

EXAMPLES = SHIPPED / "serve" / "examples.zip"
"""Some of the files of the folder examples."""


class Example(Struct, frozen=True, kw_only=True):
    """Something to try."""

    name: str
    title: str
    text: str
    """What it is."""
    view: str
    """``forecast``, ``plan``, or ``explain``."""
    job: dict[str, Value] = {}
    plan: dict[str, Value] = {}


class Examples(Struct, frozen=True, kw_only=True):
    """What there is to try."""

    examples: tuple[Example, ...]


_LLAMA: dict[str, Value] = {"model": "llama3-70b", "cluster": "h100", "gpus": 512, "global_batch": 512}
_EXAMPLES = (
    Example(
        name="llama3_70b",
        title="Llama 3 70B on 512 H100",
        text="a job of examples/llama3_70b_512gpu.toml",
        view="forecast",
        job={**_LLAMA, "seq_length": "8k", "tp": 8, "pp": 4},
    ),
    Example(
        name="deepseek_v3",
        title="DeepSeek-V3 on 2,048 H100",
        text="a mixture of experts in FP8, over 16 pipeline stages and 64 expert parallel ranks",
        view="forecast",
        job={
            **{"model": "deepseek-v3", "cluster": "h100", "gpus": 2048, "global_batch": 8192, "seq_length": "4k"},
            **{"pp": 16, "ep": 64, "precision": "fp8", "recompute": "full"},
        },
    ),
    Example(name="plan", title="Llama 3 70B on 512 H100", text="every layout of it", view="plan", job=_LLAMA),
    Example(
        name="megatron_pp4_tp2",
        title="Traces with a straggler",
        text="measured traces of all 8 ranks of a run, one of them slow",
        view="explain",
    ),
    Example(
        name="today.log",
        title="A log of training",
        text="a log of Megatron-LM, made up: slower than it should be",
        view="explain",
    ),
    Example(
        name="aicb_scaled_512gpu.txt",
        title="A workload of SimAI",
        text="a workload for SimAI, as AICB writes them",
        view="explain",
    ),
    Example(
        name="neusight_gpt2_large_dp.tsv",
        title="A forecast of operators",
        text="a forecast of operators by NeuSight",
        view="explain",
    ),
)


def examples(asked: Nothing, bench: "Workbench") -> Examples:  # noqa: ARG001
    """List what there is to try."""
    return Examples(examples=_EXAMPLES)


def unpacked(name: str, folder: Path) -> tuple[str, ...]:
    """Unpack a bundled example into a folder."""
    known = [each.name for each in _EXAMPLES if each.view == "explain"]
    if name not in known:
        raise UnknownNameError("example", name, known)
    folder.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(EXAMPLES) as archive:
        found = [each for each in archive.namelist() if name in each.split("/")]
        archive.extractall(folder, found)
    # A file of a folder of examples stands by itself.
    if any(name == each.rpartition("/")[2] for each in found):
        (folder / found[0]).rename(folder / name)
        found = [name]
    return tuple(found)
