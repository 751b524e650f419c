"""Name what made measured steps slower than the same steps without stragglers, with the evidence.

Times of computations of a type are taken apart: what is usual (the mean over the stages), what a stage adds to it (its
median worker), what a worker adds to its stage (its mean over microbatches and steps), and what is left and changes
from microbatch to microbatch. Each of these, slow communication and pauses of the host may be the cause; each says the
change that would mend it alone, as ``--what-if`` takes it, and what the steps are shorter by with that change decides
(`traincast.simulation.causes`).

What changes from microbatch to microbatch is told apart by how it changes. Where sequences are of unequal lengths
attention takes longer in the forward and in the backward pass of the same microbatch, on whatever rank; where experts
get unequal numbers of tokens the ranks with more of them compute longer. (Lin et al., arXiv 2505.05713, section 5.3,
take a correlation of forward and backward from 0.9 as the mark of unequal sequences.)

Letters: N operations of all steps, C computations among them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from traincast.analysis.slowdown import OWN, Replays
from traincast.analysis.stragglers import WELL_ABOVE
from traincast.job.changes import BALANCED, EVEN, USUAL
from traincast.units import format_share
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.words import Kind, Phase

TOGETHER = 0.9
"""Correlation of forward and backward from which they move together."""
ABOVE = 1.02
"""Time of a stage over that of others from which it is longer: ranks of one stage agree within 2 %."""
MOST_RANKS = 16
"""Slow workers that one change mends."""

SLOW_WORKER = "slow worker"
LONG_STAGE = "long stage"
LONG_LAST_STAGE = "long last stage"
SEQUENCES = "unequal sequence lengths"
EXPERTS = "imbalance of experts"
VARYING = "computation that varies"
COMMUNICATION = "slow communication"
PAUSES = "host pauses"


class _Parts(Struct, frozen=True):
    """Times of computations, taken apart, [C]."""

    at_C: IntArray
    time_s_C: FloatArray
    of_type_s_C: FloatArray
    """Mean over the stages."""
    of_stage_s_C: FloatArray
    """Median over its workers, the lower one of two."""
    of_worker_s_C: FloatArray
    """Mean over microbatches and steps."""


class Suspect(Struct, frozen=True, kw_only=True):
    """Something that may have made measured steps slower."""

    name: str
    change: str
    """What mends it, as ``--what-if`` takes it."""
    evidence: str
    ranks: tuple[int, ...] = ()
    """The ranks that it concerns, where it is about some of them."""
    stages: tuple[int, ...] = ()
    includes: str = ""
    """Change of another suspect that this one mends, too."""
    mended_s_N: FloatArray | None = None
    """What the operations of all steps take with it mended, where one step alone does not tell, [N]."""


def suspects(replays: Replays, unequal_experts: str = "") -> list[Suspect]:
    """Return what may have made steps slower.

    `unequal_experts` says how unequal the tokens of experts are, where the trace shows that they are.
    """
    parts = _taken_apart(replays)
    rank_C, stage_C = replays.rank_N[parts.at_C], replays.stage_N[parts.at_C]
    slow = [] if unequal_experts else list(_slow_workers(rank_C, stage_C, parts))
    found = [*slow, *_long_stage(stage_C, parts, slow)]
    found.append(_varying(replays, parts, unequal_experts))
    talk_N = _communications(replays)
    usual_s_N = np.where(talk_N, np.minimum(replays.usual_s_N, replays.duration_s_N), replays.duration_s_N)
    change = f"comm={USUAL}"
    found.append(
        Suspect(name=COMMUNICATION, change=change, evidence=_slowest_type(replays, talk_N), mended_s_N=usual_s_N)
    )
    found.append(Suspect(name=PAUSES, change="host*0", evidence=_pauses(replays)))
    return found


def _taken_apart(replays: Replays) -> _Parts:
    """Take the times of computations of microbatches apart, by pass."""
    compute_N = np.isin(replays.kind_N, (Kind.COMPUTE,)) & (replays.duration_s_N > 0)
    at_C = np.flatnonzero(compute_N)
    time_s_C = replays.unpaused_s_N[at_C]
    of_type, of_stage, of_worker = (np.zeros(len(at_C)) for _ in range(3))
    name_C, stage_C, rank_C = replays.name_N[at_C], replays.stage_N[at_C], replays.rank_N[at_C]
    for name in distinct(name_C).tolist():
        stage_means = []
        mine = np.flatnonzero(name_C == name)
        for stage in distinct(stage_C[mine]).tolist():
            here = mine[stage_C[mine] == stage]
            ranks, which = np.unique(rank_C[here], return_inverse=True)
            mean_s = np.bincount(which, time_s_C[here]) / np.bincount(which, minlength=len(ranks))
            of_worker[here] = mean_s[which]
            # The lower one of two: half of a stage is not slow because the other half is.
            of_stage[here] = np.sort(mean_s)[(len(mean_s) - 1) // 2]
            stage_means.append(float(of_stage[here[0]]))
        of_type[mine] = np.mean(stage_means)
    return _Parts(at_C, time_s_C, of_type, of_stage, of_worker)


def _long_stage(stage_C: IntArray, parts: _Parts, slow: Sequence[Suspect]) -> Iterator[Suspect]:
    """Yield the stage that computes longest, where there are several."""
    stages = _totals(stage_C, parts.of_stage_s_C, parts.of_type_s_C)
    if len(stages) < 2:
        return
    longest = max(stages, key=lambda stage: stages[stage][0])
    ratio = stages[longest][0] / _median([each for stage, (each, _) in stages.items() if stage != longest])
    if ratio > ABOVE:
        yield Suspect(
            name=LONG_LAST_STAGE if longest == max(stages) else LONG_STAGE,
            change=f"stage{longest}.own=peers",
            evidence=f"stage {longest} computes {ratio:.2f}x as long as the median of the others",
            stages=(longest,),
            # What brings a stage to the level of its peers brings its slow workers there, too.
            includes=next((each.change for each in slow if longest in each.stages), ""),
        )


def _slow_workers(rank_C: IntArray, stage_C: IntArray, parts: _Parts) -> Iterator[Suspect]:
    """Yield the ranks that compute much longer than the median of their stage."""
    workers = _totals(rank_C, parts.of_worker_s_C, parts.of_stage_s_C)
    slow = sorted(
        (rank for rank in workers if workers[rank][0] > WELL_ABOVE * workers[rank][1]),
        key=lambda r: -_ratio(workers, r),
    )
    if not slow:
        return
    shown = ", ".join(f"rank {rank} {_ratio(workers, rank):.2f}x" for rank in slow[:3])
    more = f" and {len(slow) - 3} more" if len(slow) > 3 else ""
    worst = tuple(sorted(slow[:MOST_RANKS], key=slow.index))
    yield Suspect(
        name=SLOW_WORKER,
        change=f"rank{','.join(map(str, sorted(worst)))}.own=peers",
        evidence=f"against the median worker of their stage: {shown}{more}",
        ranks=worst,
        stages=tuple(sorted({int(stage_C[rank_C == rank][0]) for rank in worst})),
    )


def _communications(replays: Replays) -> BoolArray:
    """Return which operations are transfers; where no other member was recorded, waiting for it may be in its time."""
    talk_N: BoolArray = ~np.isin(replays.kind_N, OWN) & replays.met_N
    return talk_N


def _varying(replays: Replays, parts: _Parts, unequal_experts: str) -> Suspect:
    """Return what may be the cause of times that change from microbatch to microbatch."""
    if unequal_experts:
        return Suspect(name=EXPERTS, change=f"compute={BALANCED}", evidence=unequal_experts)
    spread = float(np.std(parts.time_s_C / parts.of_worker_s_C)) if len(parts.at_C) else 0.0
    together = _correlation(replays, parts)
    told = f"times of a microbatch spread by {format_share(spread)} around the mean of their worker"
    change = f"compute={EVEN}"
    if together is None:
        return Suspect(name=VARYING, change=change, evidence=told)
    told += f"; forward and backward of the same microbatch have a correlation of {together:.2f}"
    return Suspect(name=SEQUENCES if together >= TOGETHER else VARYING, change=change, evidence=told)


def _correlation(replays: Replays, parts: _Parts) -> float | None:
    """Return how both passes of the same microbatch vary together; None where that is not seen."""
    phase_C = replays.phase_N[parts.at_C]
    left_C = parts.time_s_C / parts.of_worker_s_C - 1.0
    keys = np.stack([replays.step_N[parts.at_C], replays.rank_N[parts.at_C], replays.microbatch_N[parts.at_C]], axis=1)
    in_pass = replays.microbatch_N[parts.at_C] >= 0
    sums = []
    if not in_pass.any():
        return None
    _, which = np.unique(keys[in_pass], axis=0, return_inverse=True)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        mine = phase_C[in_pass] == phase
        count = np.bincount(which[mine], minlength=int(which.max()) + 1)
        total = np.bincount(which[mine], left_C[in_pass][mine], minlength=len(count))
        sums.append(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))
    both = ~np.isnan(sums[0]) & ~np.isnan(sums[1])
    if both.sum() < 8 or not np.std(sums[0][both]) or not np.std(sums[1][both]):
        return None
    return float(np.corrcoef(sums[0][both], sums[1][both])[0, 1])


def _totals(what_C: IntArray, mine_s_C: FloatArray, like_s_C: FloatArray) -> dict[int, tuple[float, float]]:
    """Return the sums of two columns for each value of another one."""
    values, which = np.unique(what_C, return_inverse=True)
    mine, like = np.bincount(which, mine_s_C), np.bincount(which, like_s_C)
    return {int(value): (float(a), float(b)) for value, a, b in zip(values, mine, like, strict=True)}


def _ratio(totals: dict[int, tuple[float, float]], key: int) -> float:
    mine, like = totals[key]
    return mine / like if like else 1.0


def _median(values: list[float]) -> float:
    return float(np.median(values)) or 1.0


def _slowest_type(replays: Replays, talk_N: BoolArray) -> str:
    """Name the communication that most exceeds its usual time."""
    labels, worst, most_s = replays.types(), "communication", 0.0
    for number in distinct(replays.name_N[talk_N]).tolist():
        at = talk_N & (replays.name_N == number)
        over_s = float(np.maximum(replays.unpaused_s_N[at] - replays.usual_s_N[at], 0.0).sum())
        if over_s > most_s:
            worst, most_s = labels[number], over_s
    return f"transfers above the median of their type, most of all {worst}"


def _pauses(replays: Replays) -> str:
    per_step_s = float(replays.duration_s_N[replays.pause_N].sum()) / max(len(replays.steps), 1)
    return f"pauses of {per_step_s:.3g} s in a step over all ranks"
