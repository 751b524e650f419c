"""Compute times of the rows that are written: those of AICB's own measurement (AIOB), or ours.

AIOB times the kernels of one layer on a GPU and writes, for each, a section with the longest, shortest and mean time of
its iterations in us::

    train_iter:10
    Emb:
        time_gpu_max: 857
        time_gpu_min: 782
        time_gpu_avg: 799
    atten_qkv:
        ...

AICB sums up the sections of attention and MLP, takes the backward passes to last as long as the forward ones, and
shares a sum out evenly over the rows of its half of the layer. Source: aliyun/aicb, ``utils/utils.py``
(``extract_averages``), ``workload_generator/SimAI_training_workload_generator.py`` (``_get_aiob_compute_time``).
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from traincast.errors import FormatError
from traincast.files import read_text
from traincast.formats.aicb.conventions import Conventions, row_of
from traincast.formats.values import number, shown
from traincast.job.share import rank_share
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stages_of
from traincast.lowering.state import StateExchange
from traincast.lowering.work import work_of
from traincast.model.blocks.part import Part
from traincast.model.blocks.share import Share
from traincast.model.structure import FIRST_BLOCKS, Blocks, parts_of
from traincast.units import GIGA
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Phase

Seconds = Callable[[Mapping[OperatorCall, float]], float]
"""What operator calls take, one after the other, each as often as it is said."""

PLACEHOLDER_NS = 1
"""AICB's time of what it has not measured."""


class Times(NamedTuple):
    """Compute times of a row in ns."""

    forward: int = PLACEHOLDER_NS
    input_grad: int = PLACEHOLDER_NS
    weight_grad: int = PLACEHOLDER_NS


class ComputeTimes(Protocol):
    """Who knows the times of rows."""

    def row_times(self, row: str, layer: Blocks) -> Times:
        """Return those of a row of a layer, or of the LM head."""
        ...

    def embedding(self, before: str | None) -> Times:
        """Return those of the embedding, which follows a row of the microbatch before, or begins the first one."""
        ...

    def update_ns(self) -> int:
        """Return that of the parameter update."""
        ...

    def has_head(self) -> bool:
        """Tell whether the LM head has a time of its own."""
        ...


class MeasuredTimes(Struct, frozen=True):
    """The times of AIOB as AICB uses them."""

    conventions: Conventions
    section_us: Mapping[str, float]
    """Mean of each section; ``param_time`` has its shortest as ``param_time.min``, too."""
    place: str
    """Where they stand, for messages."""

    def row_times(self, row: str, layer: Blocks) -> Times:  # noqa: ARG002 all layers of AICB's are alike
        """Return half of a sum where a half of the layer has two rows; recomputed attention runs twice forward."""
        whole = self._exact(row) or self._sum("mlp" if row.startswith("mlp") else "atten")
        if not self.conventions.sequence_parallel:
            return Times(whole, whole, whole)
        recomputed = self.conventions.job.recompute.granularity != "none" and "attention" in row
        forward = whole * (2 if recomputed else 1)
        if row.endswith(("_row", "_column")):
            return Times(forward // 2, whole // 2, whole // 2)
        return Times(forward, whole, PLACEHOLDER_NS if row == "mlp_moelayer" else whole)

    def embedding(self, before: str | None) -> Times:
        """Return the lookup; in the last column AICB leaves what it wrote before: an input gradient, or the update."""
        left = self._ns("param_time") if before is None else self.row_times(before, ()).input_grad
        return Times(self._ns("Emb"), PLACEHOLDER_NS, left)

    def update_ns(self) -> int:
        """Return the shortest and the mean update, which AICB adds up."""
        return self._ns("param_time.min") + self._ns("param_time")

    def has_head(self) -> bool:
        """Tell that it has none: with sequence parallelism AICB takes it to last as long as attention."""
        return self.conventions.sequence_parallel

    def _exact(self, row: str) -> int:
        return self._ns(row) if row in self.section_us else 0

    def _sum(self, word: str) -> int:
        """Return the sum of the sections of a half of the layer, which has its norm."""
        norm = {"atten": "layernorm", "mlp": "layernorm2"}[word]
        twice = self.conventions.generation.doubles_flash and self.conventions.job.recompute.granularity != "none"
        found = [
            us * 1000 * (2 if twice and "flash" in name else 1)
            for name, us in self.section_us.items()
            if name == norm or word in name
        ]
        if not found:
            raise FormatError(f"has no section of {'attention' if word == 'atten' else 'the MLP'}", self.place)
        return round(sum(found))

    def _ns(self, section: str) -> int:
        if section not in self.section_us:
            raise FormatError(f"has no {section.partition('.')[2] or 'mean'} time of {shown(section)}", self.place)
        return round(self.section_us[section] * 1000)


_SECTION = re.compile(r"(\w+):\s*$")
_TIME = re.compile(r"\s*time_gpu_(\w+):\s*(\S+)")


def read_aiob(path: Path) -> dict[str, float]:
    """Return the mean of each section of AIOB's file in us, and the shortest of ``param_time``.

    Raises
    ------
    FormatError
        If it cannot be read, or has no times; with the line of the entry that is not a time.
    """
    times: dict[str, float] = {}
    section = ""
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if header := _SECTION.match(text):
            section = header[1]
        elif found := _TIME.match(text):
            _take(times, section, found[1], found[2], (str(path), line))
    if not times:
        raise FormatError("has no AIOB times, such as 'Emb:' and below it 'time_gpu_avg: 799'", str(path), 1)
    return times


def parse_times(text: str, place: str) -> dict[str, float]:
    """Return times that are written out, ``Emb=799,attention=1820,param_time.min=16647``, as `read_aiob` does."""
    times: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        section, _, which = name.partition(".")
        if not equals or not section:
            raise FormatError(f"{shown(part)} is not of the form SECTION=MICROSECONDS", place)
        _take(times, section, which or "avg", value, (place, None))
    return times


def _take(times: dict[str, float], section: str, which: str, value: str, place: tuple[str, int | None]) -> None:
    try:
        us = number(value)
        if us < 0:
            raise ValueError(f"{shown(value)} is below zero")
    except ValueError as problem:
        raise FormatError(f"time of {section or 'no section'}: {problem}; give us", *place) from None
    if which == "avg":
        times[section] = us
    elif which == "min" and section == "param_time":
        times["param_time.min"] = us


class EstimatedTimes(Struct, frozen=True, eq=False):
    """Our times of what the parts of a layer run in each pass; what is recomputed runs before the input gradient."""

    conventions: Conventions
    seconds: Seconds
    ranks_per_node: int
    _known: dict[tuple[str, Blocks], Times] = field(default_factory=dict)

    def row_times(self, row: str, layer: Blocks) -> Times:
        """Return the times of the parts that a row stands for; of the LM head all, which nothing recomputes."""
        key = row, layer
        if key not in self._known:
            parts, final = self._parts(layer), row.startswith("final")
            own = parts if final else [part for part in parts if row_of(part.name, self.conventions, layer) == row]
            self._known[key] = self._times(own, 0.0 if final else self._recomputed)
        return self._known[key]

    def embedding(self, before: str | None) -> Times:  # noqa: ARG002 every microbatch takes as long
        """Return the lookup and the gradient of its table, which is one of weights."""
        forward, backward, weights = self._times(self._parts(FIRST_BLOCKS))
        return Times(forward, 0, backward + weights)

    def update_ns(self) -> int:
        """Return the update of the stage that takes longest."""
        job = self.conventions.job
        updated, plan = [0] * job.parallel.pp, plan_of_job(job)
        for stage, each in zip(plan.placement[0], stages_of(job, self.ranks_per_node, plan=plan), strict=True):
            updated[stage] += StateExchange(job, each.weights()).updated()
        return round(self.seconds({OperatorCall(family="optimizer", shape=(max(updated),), dtype="bf16"): 1.0}) * GIGA)

    def has_head(self) -> bool:
        """Tell that it has."""
        return True

    @property
    def _recomputed(self) -> float:
        """Share of the layers that run again whole."""
        job = self.conventions.job
        if job.recompute.granularity != "full":
            return 0.0
        layers = max(1, *job.pipeline.layers_Q)
        return 1.0 if job.recompute.layers is None else min(1.0, job.recompute.layers / layers)

    def _parts(self, blocks: Blocks) -> list[Part]:
        return parts_of(blocks, self._share)

    @property
    def _share(self) -> Share:
        return rank_share(self.conventions.job, self.ranks_per_node)

    def _times(self, parts: list[Part], again: float = 0.0) -> Times:
        job = self.conventions.job
        work = work_of(parts, self._share)
        passes = [self.seconds(work.passes[phase].calls) for phase in _PASSES]
        modules = [work.modules[name].calls for name in job.recompute.recomputed_modules if name in work.modules]
        passes[1] += again * passes[0] + sum(map(self.seconds, modules))
        return Times(*(round(each * GIGA) for each in passes))


_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT)
