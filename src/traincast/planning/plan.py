"""Plan a run: screen the space of layouts, simulate the best ones, and choose."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from typing import Any

from msgspec import Struct

from traincast.crew import Crew, LostError, crew
from traincast.engine import load as load_engine
from traincast.errors import InfeasibleError
from traincast.job.job import Job
from traincast.job.levels import BEST, LEVELS
from traincast.job.request import JobRequest
from traincast.planning.advice import advising_of
from traincast.planning.answer import Asked, Choice, LayoutToRun, Plan, WhyNot
from traincast.planning.changes import start_of
from traincast.planning.choosing import choices_of, chosen_first, with_first
from traincast.planning.explain import explain
from traincast.planning.finalists import Finalist, Simulate, disagreement, simulated
from traincast.planning.layout import Estimate, Estimated, Layout
from traincast.planning.options import PlanOptions
from traincast.planning.pareto import pareto
from traincast.planning.remedies import nothing_divides, nothing_fits
from traincast.planning.screen.frontier import Frontier
from traincast.planning.screen.screen import Screen, Screened
from traincast.planning.sensitivity import Sensitivity, sensitivities
from traincast.planning.simulator import Simulator
from traincast.planning.task import PlanTask
from traincast.planning.tuning import Effort, Switched, as_carefully, reached, settled, tuned_further
from traincast.progress import part
from traincast.simulation.advised import outcome_of
from traincast.simulation.alternatives import Outcome
from traincast.simulation.forecast import forecast_step
from traincast.simulation.step import Setting


def plan(
    request: JobRequest,
    setting: Setting,
    options: PlanOptions | None = None,
    had: Job | None = None,
    estimated: Estimated | None = None,
    workers: int = 1,
) -> Plan:
    """Return the best layouts for what a request leaves open; what it says is fixed.

    `had` is a job that one has: the plan then says what changes of its layout save. `estimated` is handed layouts
    that fit as they are found; what it raises ends the plan. So many `workers`, copies of this process, share it; the
    plan is the same with any number.

    Raises
    ------
    InfeasibleError
        If no layout divides the GPUs and the batch, or none fits into memory.
    TraincastError
        If the request cannot be run at all.
    """
    task = PlanTask.asked(request, setting, options or PlanOptions())
    # Once, before there are copies.
    with suppress(InfeasibleError):  # said where the space is worked out
        _ = task.screen.families
    if workers > 1:
        load_engine(task.simulator().setting.engine)
    try:
        with crew(workers, partial(_alongside, task, lists=estimated is not None)) as own:
            return _made(task, had, estimated, own)
    except LostError:
        return _made(task, had, estimated, Crew())


def _alongside(task: PlanTask, own: Crew, *, lists: bool) -> None:
    """Do a copy's share: what less effort reaches, while the first simulates the best, and what is around that."""
    screened, simulate = task.screen.run(crew=own, lists=lists), task.simulator()
    efforts = own.each(_less(task, screened, simulate))
    best: _Best = own.of_first()
    own.each([*_carefully(task, efforts, best, simulate), *_changed(best, simulate)])
    own.each(_better(task, best, simulate))


def _less(task: PlanTask, screened: Screened, simulate: Simulator) -> list[Callable[[], Effort]]:
    """Return the pieces that say what other levels of effort reach."""
    return [partial(reached, task.screen, screened, each, simulate) for each in task.other_levels]


def _carefully(
    task: PlanTask, efforts: Sequence[Effort], best: "_Best", simulate: Simulator
) -> list[Callable[[], Effort]]:
    """Return the pieces that say what these reach where that is chosen as carefully as the layout to run."""
    return [partial(as_carefully, task.screen, each, best.layout, best.step_s, simulate) for each in efforts]


class _Best(Struct, frozen=True):
    """The layout to run, as copies of the process need it."""

    layout: Layout
    step_s: float
    changed: list[Job]
    """Jobs with something else changed, to be forecast for advice."""


def _changed(best: _Best, simulate: Simulator) -> list[Callable[[], Outcome | None]]:
    """Return the pieces that say what changes of the layout to run would do."""
    return [partial(outcome_of, each, simulate.setting, simulate.study) for each in best.changed]


def _better(task: PlanTask, best: _Best, simulate: Simulator) -> list[Callable[[], Sensitivity]]:
    """Return the pieces that say what better hardware would do for the layout to run."""
    return [*sensitivities(task.request, best.layout, simulate.setting, best.step_s, simulate.study)]


def _made(task: PlanTask, had: Job | None, estimated: Estimated | None, own: Crew) -> Plan:
    """Return the plan; the others of a crew do their share of it."""
    request, options, screen = task.request, task.options, task.screen
    space, setting = screen.space, screen.setting
    simulate = task.simulator()
    screened = _screened(screen, estimated, own, remedies=options.remedies)
    finalists, choices, switches = _decided(task, screened, simulate)
    best, best_few = choices[0], choices[: options.top]
    limits = (each.limits for each in best_few)  # which others cannot work out
    chosen = next(each for each in finalists if each.layout == best.layout)
    advising = advising_of(request, chosen, simulate.study) if options.advise else None
    to_run = _Best(best.layout, best.step_s, [] if advising is None else advising.jobs)
    changed = list(map(cache, _changed(to_run, simulate)))  # what it has begun with is not done again
    efforts = own.each(_less(task, screened, simulate), meanwhile=chain(limits, (each() for each in changed)))
    to_run = own.of_first(to_run)
    if own.count > 1:
        _ = list(limits)
    careful = _carefully(task, efforts, to_run, simulate)
    found: list[Any] = own.each([*careful, *changed])
    efforts, outcomes = found[: len(careful)], found[len(careful) :]
    # Changes are tried one after another, while others look at what is independent of them.
    advice = () if advising is None else advising.advice(to_run.changed, outcomes)
    better = own.each(_better(task, to_run, simulate))
    before = None if had is None else forecast_step(had, simulate.setting, allow_oom=True, study=simulate.study)
    mean, largest = disagreement(finalists)
    explained = tuple(explain(screen, each, best.to_run, simulate) for each in options.explain)
    start = None if had is None or before is None else start_of(screen, had, before, task.usable_bytes, simulate)
    own_effort = Effort(level=task.level, layout=best.layout, step_s=best.step_s, peak_bytes=best.peak_bytes)
    return Plan(
        model=request.model.name,
        cluster=setting.cluster.name,
        framework=space.framework.name,
        gpus=request.gpus,
        seq_length=request.seq_length,
        global_batch=request.global_batch,
        space="full" if options.full else "default",
        tuned=task.level,
        efforts=tuple(sorted((*efforts, own_effort), key=lambda each: LEVELS.index(each.level))),
        switched=switches,
        evaluated=screened.evaluated,
        feasible=screened.feasible,
        screen_s=screened.seconds,
        simulated=len(finalists),
        ties=sum(each.tied for each in choices),
        screen_error=mean,
        screen_error_most=largest,
        best=best_few,
        pareto=pareto(choices),
        estimated=_estimates(screened),
        explained=explained,
        start=start,
        sensitivities=tuple(sorted(better, key=lambda each: -each.saving_s)),
        advice=advice if options.advise else None,
        asked=Asked(request=request, model=request.model.name, cluster=setting.cluster.name),
        assumptions=tuple(task.assumptions()),
        warnings=(),
    )


def _decided(
    task: PlanTask, screened: Screened, simulate: Simulator
) -> tuple[tuple[Finalist, ...], tuple[Choice, ...], tuple[Switched, ...]]:
    """Return the layouts that were simulated, as choices with the one to run first, and what it switches on."""
    space, limit = task.screen.space, task.screen.limit_bytes
    finalists = _finalists(screened, simulate, task.options.finalists)
    if task.level == BEST:
        finalists = (*tuned_further(finalists[0], space, limit, simulate), *finalists)
    judged = partial(choices_of, usable=task.usable_bytes, options=task.options, setting=task.screen.setting)
    first = chosen_first(choices := judged(finalists))[0].layout
    preferred = next(each for each in finalists if each.layout == first)
    chosen, switches = settled(preferred, space, limit, simulate)
    if chosen is not preferred:
        finalists = tuple(chosen if each is preferred else each for each in finalists)
        choices = judged(finalists)
    return finalists, with_first(chosen.layout, choices), switches


def why_not(request: JobRequest, setting: Setting, options: PlanOptions, chosen: LayoutToRun) -> WhyNot:
    """Return why the first layout that options ask for is not the best, where the layout to run is known.

    Raises
    ------
    TraincastError
        As `plan`.
    """
    task = PlanTask.asked(request, setting, options)
    return explain(task.screen, options.explain[0], chosen, task.simulator())


def _screened(screen: Screen, estimated: Estimated | None, own: Crew, *, remedies: bool) -> Screened:
    """Return what a screen finds; where that is nothing, say why, and with `remedies` what would do."""

    def told(found: Frontier) -> None:
        if estimated is not None and found.listed:
            estimated(tuple(found.listed))

    try:
        screened = screen.run(told=told, lists=estimated is not None, crew=own)
    except InfeasibleError as error:
        raise nothing_divides(screen, error, looks=remedies) from None
    if not screened.layouts:
        raise nothing_fits(screen, screened.evaluated, looks=remedies)
    return screened


def _estimates(screened: Screened) -> tuple[Estimate, ...]:
    return tuple(
        Estimate(layout=layout, step_s=step_s, peak_bytes=peak_bytes)
        for layout, step_s, peak_bytes in zip(screened.layouts, screened.step_s, screened.peak_bytes, strict=True)
    )


def _finalists(screened: Screened, simulate: Simulate, count: int) -> tuple[Finalist, ...]:
    with part(0.3, 0.9):
        found = simulated(screened, simulate, count)
    if not found:
        text = "none of the best layouts of the screen can be run; give space=full, or fix less"
        raise InfeasibleError(text).typed(space="--space")
    return found
