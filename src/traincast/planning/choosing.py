"""Which of the layouts that were simulated is run: what speaks for each, and which comes first."""

from collections.abc import Sequence

from traincast.analysis.summary import TrainingRun
from traincast.analysis.training_run import training_run
from traincast.planning.answer import Choice
from traincast.planning.doubt import cautious_s, drawn_steps, probabilities, regrets, risks, tied
from traincast.planning.finalists import Finalist
from traincast.planning.layout import Layout
from traincast.planning.options import PlanOptions
from traincast.simulation.step import Setting

_LONGER = 0.005
"""How much longer the step of a layout may be that is preferred for what it depends on, over the fastest."""


def chosen_first(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the layout to run before the others: of those that cannot be told apart the one that depends on least.

    That is fewer groups that cross nodes, then more memory that stays free; its step is hardly longer all the same, as
    a cautious forecast has it: who knows less of a layout does not prefer it for the error of its forecast.
    """
    ties = [each for each in choices if each.tied]
    surest = min(ties, key=lambda each: each.cautious_s)

    def rank(each: Choice) -> tuple[bool, int, float]:
        longer = each.cautious_s > (1 + _LONGER) * surest.cautious_s
        return longer or each.regret > 2 * surest.regret + 0.005, _crossing(each), each.peak_bytes

    chosen = min(ties, key=rank)
    return (chosen, *(each for each in choices if each is not chosen))


def _crossing(choice: Choice) -> int:
    """Return the kinds of groups that communicate between nodes."""
    return len({each.group for each in choice.result.collectives if each.nodes > 1})


def choices_of(
    finalists: Sequence[Finalist], usable: float, options: PlanOptions, setting: Setting
) -> tuple[Choice, ...]:
    """Return layouts that were simulated with what speaks for each: how sure it is, its risks, a whole run with it."""

    def training(each: Finalist) -> TrainingRun | None:
        if options.tokens is None:
            return None
        job = each.done.job
        return training_run(
            options,
            step_s=each.result.iteration_time_s,
            tokens_per_step=job.batch.tokens_per_step,
            gpus=job.parallel.world_size,
            interval=each.result.interval,
            tdp_w=setting.cluster.gpu.tdp_w,
        )

    steps_ND = drawn_steps(finalists)
    ties = tied(finalists)
    return tuple(
        Choice(
            model=each.done.job.model.name,
            cluster=setting.cluster.name,
            layout=each.layout,
            result=each.result,
            tokens_per_step=each.done.job.batch.tokens_per_step,
            screened_s=each.screened_s,
            peak_bytes=each.peak_bytes,
            usable_bytes=usable,
            probability=probability,
            regret=regret,
            tied=tie,
            cautious_s=cautious_s(each),
            risks=risks(each),
            training=training(each),
            doubts=each.result.doubts or {},
        )
        for each, probability, regret, tie in zip(
            finalists, probabilities(steps_ND), regrets(steps_ND), ties, strict=True
        )
    )


def with_first(layout: Layout, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return choices with the layout to run before the others: what was settled of it does not unseat it."""
    return tuple(sorted(choices, key=lambda each: each.layout != layout))
