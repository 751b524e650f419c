"""Give every rank of the run a traced rank to stand for it, and make up the stages nobody traced."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traincast.formats.building import Notebook
from traincast.formats.echo.layout import Traced
from traincast.formats.echo.split import RankWork
from traincast.schedules.plan import SlotKind
from traincast.spec.parallel import Parallel
from traincast.workload.ops import Op
from traincast.workload.words import Group, Kind, Phase, Provenance

_FORWARD_SHARE = 1 / 3
"""Forward's share of a layer's work: the backward does two matrix products for each one."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Work by rank, traced or made up, and who stands for whom."""

    works: dict[int, RankWork]
    stage_of: dict[int, int]
    """Stage of each rank in `works`."""
    parallel: Parallel

    def source_of(self, rank: int) -> int:
        """Return the rank whose work a rank does: itself, else its like in the stage."""
        if rank in self.works:
            return rank
        per_stage = self.parallel.ranks_per_stage
        stage, place = divmod(rank, per_stage)
        alike = [other for other in self.works if self.stage_of[other] == stage]
        return min(alike, key=lambda other: ((other % per_stage) % self.parallel.tp != place % self.parallel.tp, other))


def plan_stages(traced: Traced, parallel: Parallel, works: Mapping[int, RankWork], notes: Notebook) -> Stages:
    """Make up the stages that nobody traced and say who stands for whom.

    Parameters
    ----------
    traced : Traced
        The traces.
    parallel : Parallel
        The layout.
    works : mapping
        Split work by traced rank.
    notes : Notebook
        Receives what was assumed.

    Returns
    -------
    Stages
    """
    per_stage = parallel.ranks_per_stage
    known = dict(works)
    stage_of = {rank: rank // per_stage for rank in works}
    if len(works) < parallel.world_size:
        missing = parallel.world_size - len(works)
        notes.assume(
            "ranks-mirrored",
            f"{len(works)} of {parallel.world_size} ranks were traced; each of the other {missing} does what a traced "
            "rank of its stage, or else of another stage, did",
            None,
        )
    present = sorted(set(stage_of.values()))
    for stage in range(parallel.pp):
        if stage in present:
            continue
        source = min((rank for rank in works), key=lambda rank: _distance(stage_of[rank], stage, parallel.pp))
        made = _without_start(works[source], stage, parallel.pp)
        rank = stage * per_stage + source % per_stage
        if stage == parallel.pp - 1:
            made = _with_head(made, _remainder_s(traced, parallel, notes))
        known[rank], stage_of[rank] = made, stage
        notes.assume("stage-made-up", f"stage {stage} was not traced; it does what rank {source} did", None)
    return Stages(known, stage_of, parallel)


def _distance(known: int, wanted: int, stages: int) -> tuple[bool, int]:
    """Prefer a middle stage for a middle stage, then the nearest."""
    return (known in (0, stages - 1)) != (wanted in (0, stages - 1)), abs(known - wanted)


def _without_start(work: RankWork, stage: int, stages: int) -> RankWork:
    """Return the work for another stage: no gap before the start, embedding gradients at the ends only."""
    outer = stage in (0, stages - 1)
    end = [op for op in work.end if outer or op.group is not Group.EMB]
    return RankWork([], dict(work.slots), end, {})


def _remainder_s(traced: Traced, parallel: Parallel, notes: Notebook) -> float:
    """Return the head's and loss's work on the last stage: what the first wait leaves of whole stages."""
    rank = traced.first_rank
    waits, sends = traced.ops(rank, "recv_backward"), traced.ops(rank, "send_forward")
    forwards, backwards = traced.ops(rank, "forward_step"), traced.ops(rank, "backward_step")
    if traced.profile or traced.microbatches > 1 or not (waits and forwards and backwards) or waits[0].is_placeholder:
        return 0.0
    further = parallel.pp - 1 - rank // parallel.ranks_per_stage
    stage_s = (forwards[0].duration_s or 0.0) + (backwards[0].duration_s or 0.0)
    travel_s = (2 * further - 1) * (sends[0].duration_s or 0.0) if sends else 0.0
    wait_s = waits[0].duration_s or 0.0
    head_s = max(0.0, wait_s - travel_s - further * stage_s)
    notes.assume(
        "head-from-wait",
        f"head and loss on the last stage: {1e3 * wait_s:.2f} ms of waiting - {1e3 * travel_s:.2f} ms of messages - "
        f"{further} x {1e3 * stage_s:.2f} ms of a stage's work = {1e3 * head_s:.2f} ms",
        waits[0].line,
    )
    return head_s


def _with_head(work: RankWork, head_s: float) -> RankWork:
    """Add the head's and loss's work to every forward (a third) and backward (two thirds)."""
    if head_s <= 0:
        return work
    forward = Op(
        name="head_and_loss",
        kind=Kind.COMPUTE,
        phase=Phase.FORWARD,
        duration_s=head_s * _FORWARD_SHARE,
        provenance=Provenance.ASSUMED,
        part="forward_step",
    )
    backward = replace(forward, phase=Phase.BACKWARD, duration_s=head_s * (1 - _FORWARD_SHARE), part="backward_step")
    slots = {slot: [*ops, forward] if slot[0] is SlotKind.F else [backward, *ops] for slot, ops in work.slots.items()}
    return RankWork(work.start, slots, work.end, work.before_recv)
