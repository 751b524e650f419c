"""Pairs of published runs of one source that differ in one thing: what one change made of a step.

A thing is what one would call a single change: the number of GPUs (with the batch, or with the batch kept), one degree,
the precision with all that belongs to it, what is recomputed. Everything else that the rows say is equal, and what one
of them leaves open the other leaves open too. Repeats of one job are taken together, by the middle of their steps.

Steps are told by the time of a GPU for a token: of a change of GPUs or batch the share that anyone could work out,
twice the batch in twice the time, says nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from published import single_changes
from traincast.calibration.runs import MeasuredRun
from traincast.job.fields import FIELDS
from traincast.job.request import JOB_FIELDS

GPUS, BATCH, MICRO_BATCH, SEQUENCE, CHIP, FRAMEWORK = (
    "GPUs", "batch", "micro batch", "sequence", "chip", "framework or release"
)  # fmt: skip
WEAK, STRONG = "GPUs, batch with them", "GPUs, same batch"
_SPLIT = ("schedule", "first_stage_layers", "last_stage_layers", "stage_layers", "pipeline_layout")
_THINGS: Mapping[str, str] = {
    **{"gpus": GPUS, "global_batch": BATCH, "micro_batch": MICRO_BATCH, "seq_length": SEQUENCE},
    **{"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "etp": "etp"},
    **dict.fromkeys(("embedding_as_layer", "head_as_layer", "overlap_p2p", *_SPLIT), "pipeline split"),
    **dict.fromkeys(("moe_dispatcher", "deduplicated_dispatch"), "dispatcher"),
    **dict.fromkeys(("moe_a2a_overlap", "delay_wgrad", "moe_shared_expert_overlap"), "expert overlap"),
    **dict.fromkeys(("expert_imbalance", "moe_routing"), "routing"),
    **dict.fromkeys(("cuda_graphs", "cuda_graph_impl", "cuda_graph_scope", "moe_paged_stash"), "graphs"),
    **dict.fromkeys(("param_gather_bytes", "moe_dispatch_dtype"), "precision"),
    **dict.fromkeys(("framework", "year", "tuned"), FRAMEWORK),
    **{"task": "task", "sequence_parallel": "tp", "cp_kind": "cp"},
}
"""What a field of a job belongs to, where that is not its group in `data/job/fields.csv`."""
_KINDS = {
    **dict.fromkeys(("ep_a2a_overlap", "delay_wgrad"), "expert overlap"),
    **dict.fromkeys(("cuda_graph", "cuda_graphs"), "graphs"),
    **dict.fromkeys(("recompute_modules", "ac"), "recompute"),
    **dict.fromkeys(("optimizer_cpu_offload", "optimizer_cpu_offload fraction"), "offload"),
    **{"gpus": WEAK, "compile": FRAMEWORK, "async_tp": "parallelism", "dispatcher": "dispatcher"},
    **{"precision": "precision", "linear precision": "precision", "data parallel": "sharding", "fsdp": "sharding"},
}
"""Words of `single_changes.csv` to what changes, where the jobs that they make differ in more."""
_MODEL, _ITEM = "model", "what ran"
_APART = {_MODEL, _ITEM}
"""What two jobs must have alike to be a pair."""
_WIDEST = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4")


class Side(NamedTuple):
    """One job of a pair, with all runs that repeat it."""

    runs: tuple[MeasuredRun, ...]
    things: Mapping[str, Hashable]
    """What it is, by thing."""

    @property
    def run(self) -> MeasuredRun:
        """Any of them."""
        return self.runs[0]

    @property
    def measured_s(self) -> float:
        """The middle of their steps."""
        return median(run.measured_s or 0.0 for run in self.runs)

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens of a step over its GPUs."""
        request = self.run.request
        return request.global_batch * request.seq_length / request.gpus


class Changed(NamedTuple):
    """Two jobs of one source that differ in one thing."""

    kind: str
    before: Side
    after: Side

    @property
    def ratio(self) -> float:
        """Measured time of a GPU for a token after the change over that before."""
        return self.after.measured_s / self.before.measured_s * self.tokens

    @property
    def source(self) -> str:
        """Where both were published."""
        return self.before.run.groups.source

    @property
    def model(self) -> str:
        """What both train."""
        return self.before.run.groups.model

    @property
    def tokens(self) -> float:
        """What makes a ratio of steps one of the times for a token."""
        return self.before.tokens_per_gpu / self.after.tokens_per_gpu

    @property
    def text(self) -> str:
        """Both values."""
        name = GPUS if self.kind in (WEAK, STRONG) else self.kind
        return f"{_said(self.before.things.get(name))} -> {_said(self.after.things.get(name))}"


def changed_pairs(runs: Iterable[MeasuredRun]) -> list[Changed]:
    """Return every two jobs that differ in one thing."""
    alike: dict[tuple[str, str, str], dict[tuple[tuple[str, Hashable], ...], list[MeasuredRun]]] = {}
    for run in runs:
        groups = run.groups
        jobs = alike.setdefault((groups.source, groups.model, groups.task), {})
        jobs.setdefault(tuple(things_of(run).items()), []).append(run)
    return [
        pair
        for jobs in alike.values()
        for pair in _pairs([Side(tuple(found), dict(things)) for things, found in jobs.items()])
    ]


def told_changes() -> Iterator[Changed]:
    """Yield the pairs of `single_changes.csv`, whose runs stand in no other table or differ in what follows too."""
    for pair in single_changes.pairs():
        named = (("before", pair.before), ("after", pair.after))
        ids = (run.id if run.id != pair.id else f"{run.id} {side}" for side, run in named)
        runs = (replace(run, id=name) for (_, run), name in zip(named, ids, strict=True))
        before, after = (Side((run,), things_of(run)) for run in runs)
        kind = _kind(before, after) or _KINDS.get(pair.change.partition(":")[0], "several settings")
        yield Changed(kind, before, after)


def things_of(run: MeasuredRun) -> dict[str, Hashable]:
    """Return what a run is, by thing; what is left open is not in it."""
    found: dict[str, dict[str, str]] = {}
    for name in JOB_FIELDS:
        value = getattr(run.request, name)
        if value is not None and name != _MODEL:
            thing = _THINGS.get(name) or FIELDS[name].group
            found.setdefault(thing, {})[name] = str(value)
    cells = run.cells
    things: dict[str, Hashable] = {thing: tuple(said.items()) for thing, said in found.items()}
    things[FRAMEWORK] = (*found.get(FRAMEWORK, {}).items(), ("framework as written", cells.get("framework", "")))
    things[CHIP] = tuple(
        (name, cells.get(name, "")) for name in ("gpu", "interconnect", "nic_gbit_per_gpu", "scaleup_domain")
    )
    things[_MODEL] = replace(run.request.model, source=""), run.stage_layers
    for name, number in ((GPUS, "gpus"), (BATCH, "global_batch"), (MICRO_BATCH, "micro_batch")):
        things[name] = getattr(run.request, number)
    things[SEQUENCE] = run.request.seq_length
    # Cards of one job have a run of a few steps, one that is resumed, one that is tuned.
    things[_ITEM] = cells.get("source_url_or_repo_path", "").partition("#")[2].partition(".")[0]
    return things


def _pairs(sides: Sequence[Side]) -> Iterator[Changed]:
    for one, other in combinations(sides, 2):
        kind = _kind(one, other)
        if kind:
            before, after = sorted((one, other), key=lambda side: _order(side, kind))
            yield Changed(kind, before, after)


def _kind(one: Side, other: Side) -> str:
    """Return the thing that two jobs differ in; empty where that is none, or several."""
    names = one.things.keys() | other.things.keys()
    differs = {name for name in names if one.things.get(name) != other.things.get(name)}
    if GPUS in differs:
        weak = one.tokens_per_gpu == other.tokens_per_gpu
        return (WEAK if weak else "") if differs == {GPUS, BATCH} else STRONG if differs == {GPUS} else ""
    if differs == {SEQUENCE, BATCH}:
        return SEQUENCE if one.tokens_per_gpu == other.tokens_per_gpu else ""
    if differs == {MICRO_BATCH, BATCH}:
        first, second = one.run.request, other.run.request
        same = first.global_batch * (second.micro_batch or 0) == second.global_batch * (first.micro_batch or 0)
        return MICRO_BATCH if same else ""
    return next(iter(differs)) if len(differs) == 1 and not differs & _APART else ""


def _order(side: Side, kind: str) -> tuple[object, ...]:
    """Return what a side of a pair comes by: fewer first, wider types first."""
    request = side.run.request
    if kind in (WEAK, STRONG):
        return (request.gpus,)
    if kind == "precision":
        dtype = request.precision or ""
        return (_WIDEST.index(dtype) if dtype in _WIDEST else -1, str(side.things.get(kind)))
    number = {BATCH: request.global_batch, MICRO_BATCH: request.micro_batch, SEQUENCE: request.seq_length}.get(kind)
    value = number if number is not None else getattr(request, kind, None)
    return (value if isinstance(value, int) else 0, str(side.things.get(kind, "")))


def _said(value: Hashable) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(said) for _, said in value)
    return "not said" if value is None else str(value)
