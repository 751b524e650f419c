"""Name what made measured steps slower than the same steps without stragglers, with the evidence.

Times of computations of a type are taken apart: what is usual (the mean over the stages), what a stage adds to it (its
median worker), what a worker adds to its stage (its mean over microbatches and steps), and what is left and changes
from microbatch to microbatch. Each of these, slow communication and pauses of the host are mended alone and the steps
replayed; what that saves, over all that is lost, is the share of that cause. A stage that holds less than others, or a
worker that is faster, is nothing to mend: of these only what is above the usual is.

What changes from microbatch to microbatch is told apart by how it changes. Where sequences are of unequal lengths
attention takes longer in the forward and in the backward pass of the same microbatch, on whatever rank; where experts
get unequal numbers of tokens the ranks with more of them compute longer. (Lin et al., arXiv 2505.05713, section 5.3,
take a correlation of forward and backward from 0.9 as the mark of unequal sequences.)

Letters: N operations of all steps, C computations among them.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from traincast.analysis.slowdown import OWN, Replays
from traincast.analysis.stragglers import WELL_ABOVE
from traincast.analysis.summary import Cause
from traincast.units import format_share
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.words import Kind, Phase

MATTERS = 0.02
"""Share of a step that a cause must cost to be named."""
LEADING = 0.25
"""Share of what is lost that it must be."""
TOGETHER = 0.9
"""Correlation of forward and backward from which they move together."""

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
    balanced_s_C: FloatArray
    """Mean over the workers of its stage."""


def causes(replays: Replays, unequal_experts: str = "") -> tuple[Cause, ...]:
    """Return what made steps slower, the most expensive first; nothing where nothing costs `MATTERS` of a step.

    `unequal_experts` says how unequal the tokens of experts are, where the trace shows that they are.
    """
    parts = _taken_apart(replays)
    as_is_s, unpaused_s, usual_s = replays.mean_steps(
        [replays.duration_s_N, replays.unpaused_s_N, replays.usual_s_N]
    ).tolist()
    lost_s = as_is_s - min(usual_s, unpaused_s)
    tried = list(_mended(replays, parts, unequal_experts))
    steps_s = replays.mean_steps([durations for durations, _ in tried]).tolist()
    found = [(unpaused_s - step_s, cause) for step_s, (_, cause) in zip(steps_s, tried, strict=True)]
    pauses = Cause(name=PAUSES, saving_s=0.0, share=0.0, evidence=_pauses(replays, as_is_s, unpaused_s))
    found.append((as_is_s - unpaused_s, pauses))
    named = [
        Cause(
            name=cause.name,
            saving_s=saving_s,
            share=saving_s / as_is_s,
            evidence=cause.evidence,
            ranks=cause.ranks,
            stages=cause.stages,
        )
        for saving_s, cause in found
        if lost_s > 0 and saving_s >= MATTERS * as_is_s and saving_s >= LEADING * lost_s
    ]
    return tuple(sorted(named, key=lambda each: -each.saving_s))


def _taken_apart(replays: Replays) -> _Parts:
    """Take the times of computations of microbatches apart, by pass."""
    compute_N = np.isin(replays.kind_N, (Kind.COMPUTE,)) & (replays.duration_s_N > 0)
    at_C = np.flatnonzero(compute_N)
    time_s_C = replays.unpaused_s_N[at_C]
    of_type, of_stage, of_worker, balanced = (np.zeros(len(at_C)) for _ in range(4))
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
            balanced[here] = mean_s.mean()
            stage_means.append(float(of_stage[here[0]]))
        of_type[mine] = np.mean(stage_means)
    return _Parts(at_C, time_s_C, of_type, of_stage, of_worker, balanced)


def _mended(replays: Replays, parts: _Parts, unequal_experts: str) -> Iterator[tuple[FloatArray, Cause]]:
    """Yield durations with one thing mended, and what that is."""

    def scaled(factor_C: FloatArray) -> FloatArray:
        duration_s_N = replays.unpaused_s_N.copy()
        duration_s_N[parts.at_C] = parts.time_s_C * factor_C
        return duration_s_N

    rank_C, stage_C = replays.rank_N[parts.at_C], replays.stage_N[parts.at_C]
    stages = _totals(stage_C, parts.of_stage_s_C, parts.of_type_s_C)
    if len(stages) > 1:
        longest = max(stages, key=lambda stage: stages[stage][0])
        ratio = stages[longest][0] / _median([each for stage, (each, _) in stages.items() if stage != longest])
        last = max(stages)
        yield (
            scaled(parts.of_type_s_C / parts.of_stage_s_C),
            Cause(
                name=LONG_LAST_STAGE if longest == last else LONG_STAGE,
                saving_s=0.0,
                share=0.0,
                evidence=f"stage {longest} computes {ratio:.2f}x as long as the median of the others",
                stages=(longest,),
            ),
        )
    workers = _totals(rank_C, parts.of_worker_s_C, parts.of_stage_s_C)
    slow = sorted(
        (rank for rank in workers if workers[rank][0] > WELL_ABOVE * workers[rank][1]),
        key=lambda r: -_ratio(workers, r),
    )
    if slow and not unequal_experts:
        shown = ", ".join(f"rank {rank} {_ratio(workers, rank):.2f}x" for rank in slow[:3])
        yield (
            scaled(np.where(np.isin(rank_C, slow), parts.of_stage_s_C / parts.of_worker_s_C, 1.0)),
            Cause(
                name=SLOW_WORKER,
                saving_s=0.0,
                share=0.0,
                evidence=f"against the median worker of their stage: {shown}",
                ranks=tuple(slow[:16]),
                stages=tuple(sorted({int(stage_C[rank_C == rank][0]) for rank in slow})),
            ),
        )
    yield (
        scaled((parts.balanced_s_C if unequal_experts else parts.of_worker_s_C) / parts.time_s_C),
        _varying(replays, parts, unequal_experts),
    )
    talk_N = _communications(replays)
    yield (
        np.where(talk_N, np.minimum(replays.usual_s_N, replays.unpaused_s_N), replays.unpaused_s_N),
        Cause(name=COMMUNICATION, saving_s=0.0, share=0.0, evidence=_slowest_type(replays)),
    )


def _communications(replays: Replays) -> BoolArray:
    """Return which operations are transfers; where no other member was recorded, waiting for it may be in its time."""
    talk_N: BoolArray = ~np.isin(replays.kind_N, OWN) & replays.met_N
    return talk_N


def _varying(replays: Replays, parts: _Parts, unequal_experts: str) -> Cause:
    """Return the cause of times that change from microbatch to microbatch."""
    if unequal_experts:
        return Cause(name=EXPERTS, saving_s=0.0, share=0.0, evidence=unequal_experts)
    spread = float(np.std(parts.time_s_C / parts.of_worker_s_C)) if len(parts.at_C) else 0.0
    together = _correlation(replays, parts)
    told = f"times of a microbatch spread by {format_share(spread)} around the mean of their worker"
    if together is None:
        return Cause(name=VARYING, saving_s=0.0, share=0.0, evidence=told)
    told += f"; forward and backward of the same microbatch have a correlation of {together:.2f}"
    return Cause(name=SEQUENCES if together >= TOGETHER else VARYING, saving_s=0.0, share=0.0, evidence=told)


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


def _slowest_type(replays: Replays) -> str:
    """Say which communication takes well longer than usual the most."""
    labels, worst, most_s = replays.types(), "communication", 0.0
    talk_N = _communications(replays)
    for number in distinct(replays.name_N[talk_N]).tolist():
        at = talk_N & (replays.name_N == number)
        over_s = float(np.maximum(replays.unpaused_s_N[at] - replays.usual_s_N[at], 0.0).sum())
        if over_s > most_s:
            worst, most_s = labels[number], over_s
    return f"transfers above the median of their type, most of all {worst}"


def _pauses(replays: Replays, as_is_s: float, unpaused_s: float) -> str:
    per_step_s = float(replays.duration_s_N[replays.pause_N].sum()) / max(len(replays.steps), 1)
    share = (as_is_s - unpaused_s) / as_is_s if as_is_s else 0.0
    return f"pauses of {per_step_s:.3g} s in a step over all ranks; they make it {format_share(share)} longer"
