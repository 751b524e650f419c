"""A result as a side of a comparison: its simulated step, and the measured one that it replays."""

from collections.abc import Iterable

from traincast.analysis.comparison import Side
from traincast.analysis.summary import Ratio
from traincast.simulation.differences import ratio_of
from traincast.simulation.result import Result


def simulated_side(result: Result, name: str) -> Side:
    """Return the simulated step of a result, under a name for people."""
    return Side(
        name=name,
        what="simulated",
        step_s=result.iteration_time_s,
        end_s={rank.rank: rank.end_s for rank in result.ranks},
        part_s=_by_rank((each.rank, each.part, each.time_s) for each in result.parts),
        wait_s=_by_rank((each.rank, each.part, each.wait_s) for each in result.parts),
        breakdown_s=result.breakdown_s,
        mfu=result.mfu,
        mfu_peak=result.mfu_peak.dtype if result.mfu_peak else None,
        mfu_16_bit=result.mfu_16_bit,
        interval=result.interval,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu,
        gpus=result.parallel.world_size,
        gpu_tdp_w=result.cluster.gpu_tdp_w,
        training_run=result.training_run,
        doubts=result.doubts,
    )


def ratio_of_sides(a: Side, b: Side) -> Ratio | None:
    """Return how many times as long one step is as another; None where one was not forecast."""
    if a.doubts is None or b.doubts is None:
        return None
    return ratio_of(a.step_s, a.doubts, b.step_s, b.doubts)


def replayed_side(result: Result, name: str) -> Side | None:
    """Return the measured run that a result was simulated from; None where it was none.

    Of folded ranks a result holds one, so that what was measured of the others is not in it.
    """
    if result.measured_s is None:
        return None
    return Side(
        name=name,
        what="measured",
        step_s=result.measured_s,
        end_s={rank.rank: rank.measured_end_s for rank in result.ranks if rank.measured_end_s is not None},
        part_s=_by_rank((each.rank, each.part, each.measured_s) for each in result.parts),
        wait_s=_by_rank((each.rank, each.part, each.measured_wait_s) for each in result.parts),
    )


def _by_rank(parts: Iterable[tuple[int, str, float | None]]) -> dict[int, dict[str, float]]:
    """Return times by rank and part, without those that are not known."""
    part_s: dict[int, dict[str, float]] = {}
    for rank, part, time_s in parts:
        if time_s is not None:
            part_s.setdefault(rank, {})[part] = time_s
    return part_s
