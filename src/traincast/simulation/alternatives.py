"""Jobs with some change, forecast: what might be changed, what comes with it, and whether it runs, fits and saves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from traincast.analysis.explanation import path_shares
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable
from traincast.estimate.memory import chance_of_oom
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.hardware.gpu import Gpu
from traincast.job.job import Job
from traincast.job.switches import Need
from traincast.later import later, readable
from traincast.simulation.confidence import sensitivities
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result

MOST_TRIALS = 15
"""Forecasts that are made of changes by themselves."""
MOST_NEEDED = 3
"""Changes that come with one that needs them."""
LEAST_SAVED = 0.002
"""Share of the step that a change must save to be told: less is not a reason to touch a job."""
RISKED = 0.1
"""Chance of running out of memory up to which a change is taken, or that of the job as it is."""
COMPUTE = ("forward", "backward", "weight_gradient", "recompute", "step")
"""Kinds of work of the critical path that are computations."""


class Alternative(Struct, frozen=True, kw_only=True):
    """Something that might be otherwise."""

    name: str
    """In plain words."""
    fields: Mapping[str, Any]
    """Fields of the request that say it, all that must be said for it."""
    shortens: tuple[str, ...] = ()
    """Kinds of work of the critical path; none: all computation."""
    asks: str = ""
    """What it needs of a user, in words."""
    numbers: str = ""
    """What it changes in the numbers that a model learns from, in words; empty: nothing."""
    usual: bool = True
    """Whether published recipes do it where it is allowed."""
    source: str = ""
    needs: tuple[Need, ...] = ()
    """What must hold of the job that it makes."""
    is_layout: bool = False
    """Whether it is another layout: it is tried by itself alone, as a plan is what weighs layouts."""

    def at_most_s(self, on_path: Mapping[str, float]) -> float:
        """Return what it can save of the chain that is the longest now: all work of its kinds, by kind."""
        return sum(on_path.get(each, 0.0) for each in self.shortens or COMPUTE)

    @property
    def keeps_numbers(self) -> bool:
        """Whether a model learns from the same numbers."""
        return not self.numbers or self.numbers.startswith("nothing")


class Outcome(Struct, frozen=True, kw_only=True):
    """What advice needs of a forecast."""

    step_s: float
    peak_bytes: float
    """Memory of the GPU that needs most."""
    chance_of_oom: float
    """Chance that some GPU runs out of it."""
    slopes: Mapping[str, float]
    """Derivatives of the logarithm of the step by those of factors (`sensitivities`), for `later`."""

    @classmethod
    def from_forecast(cls, result: Result, done: JobStep) -> "Outcome":
        """Return that of a forecast."""
        return cls(
            step_s=result.iteration_time_s,
            peak_bytes=result.peak_bytes,
            chance_of_oom=max(float(stage.chance_of_oom or 0.0) for stage in result.memory_bytes or ()),
            slopes=later(lambda: sensitivities(done)),
        )


readable(Outcome, "slopes")


class Tried(Struct, frozen=True, kw_only=True):
    """A job with some changes, forecast."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    job: Job
    outcome: Outcome

    @property
    def step_s(self) -> float:
        """Its step."""
        return self.outcome.step_s

    @property
    def peak_bytes(self) -> float:
        """Memory of the GPU that needs most."""
        return self.outcome.peak_bytes


class Bench(Struct, frozen=True, kw_only=True):
    """What tries changes of a job."""

    resolve: Callable[[Mapping[str, Any]], Job]
    """Decides the job with other fields of its request."""
    facts: Callable[[Job], Mapping[str, Any]]
    """Returns what needs may ask about a job."""
    peak_bytes: Callable[[Job], float]
    """Memory of the GPU that needs most."""
    forecast: Callable[[Job], Outcome | None]
    """Returns nothing of a job that cannot run."""
    usable_bytes: float
    gpu: Gpu
    table: FactorTable


class Decided(NamedTuple):
    """A job with a change."""

    fields: Mapping[str, Any]
    job: Job
    group: tuple[Alternative, ...]
    """What was changed for it: the change itself, and what that needs."""


class Search(Struct):
    """What may still be tried of a job."""

    bench: Bench
    start: Tried
    changes: Sequence[Alternative]
    left: int = MOST_TRIALS
    known: list[tuple[Job, Outcome | None]] = field(default_factory=list)
    """Jobs that were forecast."""
    _alone: dict[str, Decided | None] = field(default_factory=dict)
    """What comes of a change by itself."""

    def jobs(self, changes: Iterable[Alternative]) -> list[Job]:
        """Return the jobs that are forecast to try changes by themselves, each once."""
        found: list[Job] = []
        for each in changes:
            decided = self._decided(self.start, (), each)
            known = (*found, self.start.job)
            if decided is None or any(same_job(decided.job, job) for job in known) or self._is_hopeless(decided.job):
                continue
            if len(found) == self.left:
                break
            found.append(decided.job)
        return found

    def learn(self, jobs: Sequence[Job], outcomes: Sequence[Outcome | None]) -> None:
        """Take over what jobs were forecast to do."""
        self.known += zip(jobs, outcomes, strict=True)
        self.left -= len(jobs)

    def tried(
        self, before: Tried, taken: Sequence[Alternative], change: Alternative
    ) -> tuple[Tried, tuple[Alternative, ...]] | None:
        """Return a job with one more change, and with that the others that it needs.

        None where that cannot be, changes nothing, does not fit, or where no trial is left.
        """
        decided = self._decided(before, taken, change)
        if decided is None:
            return None
        outcome = self._outcome(decided.job, before)
        if outcome is None:
            return None
        return Tried(fields=decided.fields, job=decided.job, outcome=outcome), decided.group

    def _decided(self, before: Tried, taken: Sequence[Alternative], change: Alternative) -> Decided | None:
        """Return a job with one more change and what that needs; None where that cannot be."""
        alone = before is self.start and not taken
        if alone and change.name in self._alone:
            return self._alone[change.name]
        try:
            found = self._allowed(before, taken, change)
        except TraincastError:
            found = None
        if alone:
            self._alone[change.name] = found
        return found

    def _allowed(self, before: Tried, taken: Sequence[Alternative], change: Alternative) -> Decided | None:
        group = [change]
        for _ in range(1 + MOST_NEEDED):
            fields = {**before.fields, **{name: value for each in group for name, value in each.fields.items()}}
            job = self.bench.resolve(fields)
            need = _broken((*taken, *group), self.bench.facts(job))
            if need is None:
                return Decided(fields, job, tuple(group))
            helping = self._met_by(need, job, group)
            if helping is None:
                return None
            group.append(helping)
        return None

    def _met_by(self, need: Need, job: Job, group: Sequence[Alternative]) -> Alternative | None:
        """Return the change after which something that is needed holds, of those that change no numbers."""
        said = {name: value for each in group for name, value in each.fields.items()}
        facts = self.bench.facts(job)
        for each in self.changes:
            fits = all(said.get(name, value) == value for name, value in each.fields.items())
            # Of a fact that follows from others nothing is known before the job is decided.
            helps = any(one.name in each.fields and one.holds({**facts, **each.fields}) for one in need)
            if fits and helps and each.keeps_numbers and not each.is_layout and each not in group:
                return each
        return None

    def _outcome(self, job: Job, before: Tried) -> Outcome | None:
        """Return the forecast of a job that is not as it was before, fits, and is known or may still be tried."""
        for known, outcome in self.known:
            if same_job(job, known):
                return outcome
        if same_job(job, before.job) or self.left <= 0 or self._is_hopeless(job):
            return None
        self.left -= 1
        self.known.append((job, self.bench.forecast(job)))
        return self.known[-1][1]

    def _is_hopeless(self, job: Job) -> bool:
        """Say whether a job is so likely to run out of memory, or so sure not to run, that it is not tried."""
        bench = self.bench
        try:
            risk = chance_of_oom(bench.peak_bytes(job), bench.usable_bytes, job.framework.name)
        except TraincastError:
            return True  # it cannot be laid out
        return risk > max(REFUSED_ABOVE, self.start.outcome.chance_of_oom)

    def saves(self, after: Tried, before: Tried) -> bool:
        """Say whether a step is enough shorter than another to be told."""
        return before.step_s - after.step_s > LEAST_SAVED * self.start.step_s

    def fits(self, after: Tried) -> bool:
        """Say whether a job is no more likely to run out of memory than one would risk, or than it is now."""
        return after.outcome.chance_of_oom <= max(RISKED, self.start.outcome.chance_of_oom)


def same_job(one: Job, other: Job) -> bool:
    """Say whether two jobs are the same but for why."""
    return all(getattr(one, name) == getattr(other, name) for name in Job.__struct_fields__ if name != "assumptions")


def _broken(changes: Iterable[Alternative], facts: Mapping[str, Any]) -> Need | None:
    """Return the first of the needs of some changes that does not hold; each is conditions of which one must."""
    needs = (need for each in changes for need in each.needs)
    return next((need for need in needs if not any(one.holds(facts) for one in need)), None)


def on_path(done: JobStep) -> Mapping[str, float]:
    """Return the seconds of the critical path by kind of work."""
    sums: dict[str, float] = {}
    for each in path_shares(done.step.timed.path, done.step.program):
        sums[each.what] = sums.get(each.what, 0.0) + each.time_s
    return sums
