"""What to change of a job, the best first: each change alone, then one after another, with the saving that is left.

Candidates are what the framework offers and the job does not do: switches of software, less recomputation, less in the
memory of the host. The likeliest by what the critical path spends on the work that they shorten are forecast again, as
many as `MOST_TRIALS` allows, and what does not fit into memory is not run. Those that save are then taken one by one,
the best alone first, each over the ones before it: the savings are parts of the whole.

How sure a saving is: the classes of work whose share changes are as uncertain as the interval of a forecast has them
(`traincast.simulation.widths`); of what both steps spend alike nothing is left in the difference. The change itself is
modelled within a factor (`OWN_SPREAD`), and both steps within `OWN_SHARE`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.analysis.explanation import path_shares
from traincast.analysis.summary import Advice
from traincast.dialects.spelling import dialect_name, spelled
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable
from traincast.estimate.memory import chance_of_oom
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.job.job import Job
from traincast.job.switches import Need
from traincast.simulation.confidence import basis_of_step, deviation_alone, sensitivities
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.widths import Z

MOST_TRIALS = 18
"""Forecasts that are made of changes by themselves."""
LEAST_SAVED = 0.002
"""Share of the step that a change must save to be told: less is not a reason to touch a job."""
OWN_SPREAD = 0.7
"""Standard deviation of the logarithm of what a change saves, beyond what classes of work explain: of 17 published
pairs of runs that differ in one setting (Megatron-Bridge's skills, torchtitan's and MaxText's pages) the savings of 16
lie within the interval that it makes."""
OWN_SHARE = 0.01
"""Standard deviation, as a share of the step, of what no class explains and both steps do not share: as much as repeats
of a run with equal settings differ (docs/published-runs.md, noise)."""
MOST_AFTER = 8
"""Forecasts that are made of changes after others: of those that keep the numbers, of those that change them, and of
those that others allow."""
MOST_NEEDED = 3
"""Changes that come with one that needs them."""
RISKED = 0.1
"""Chance of running out of memory up to which a change is taken, or that of the job as it is."""


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

    @property
    def keeps_numbers(self) -> bool:
        """Whether a model learns from the same numbers."""
        return not self.numbers or self.numbers.startswith("nothing")


class Tried(Struct, frozen=True, kw_only=True):
    """A job with some changes, forecast."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    job: Job
    result: Result
    done: JobStep

    @property
    def step_s(self) -> float:
        """Its step."""
        return self.result.iteration_time_s

    @property
    def peak_bytes(self) -> float:
        """Memory of the GPU that needs most."""
        return max(float(stage.peak) for stage in self.result.memory_bytes or ())

    @property
    def chance_of_oom(self) -> float:
        """Chance that some GPU runs out of it."""
        return max(float(stage.chance_of_oom or 0.0) for stage in self.result.memory_bytes or ())


class Bench(Struct, frozen=True, kw_only=True):
    """What tries changes of a job."""

    resolve: Callable[[Mapping[str, Any]], Job]
    """Decides the job with other fields of its request."""
    facts: Callable[[Job], Mapping[str, Any]]
    """Returns what needs may ask about a job."""
    peak_bytes: Callable[[Job], float]
    """Memory of the GPU that needs most."""
    forecast: Callable[[Mapping[str, Any], Job], Tried]
    usable_bytes: float
    table: FactorTable


Found: TypeAlias = tuple[Tried, tuple[Alternative, ...]]
"""A job that was forecast, and what was changed for it: the change itself, and what that needs."""


class _Search(Struct):
    """What may still be tried of a job."""

    bench: Bench
    start: Tried
    changes: Sequence[Alternative]
    left: int = MOST_TRIALS
    known: list[Tried] = field(default_factory=list)

    def tried(
        self, before: Tried, taken: Sequence[Alternative], change: Alternative
    ) -> tuple[Tried, tuple[Alternative, ...]] | None:
        """Return a job with one more change, and with that the others that it needs.

        None where that cannot be, changes nothing, does not fit, or where no trial is left.
        """
        try:
            found = self._allowed(before, taken, change)
            if found is None:
                return None
            fields, job, group = found
            after = self._forecast(fields, job, before)
        except TraincastError:
            return None
        return None if after is None else (after, group)

    def _allowed(
        self, before: Tried, taken: Sequence[Alternative], change: Alternative
    ) -> tuple[Mapping[str, Any], Job, tuple[Alternative, ...]] | None:
        """Return the fields of a job with one more change and what that needs, the job, and all that is changed."""
        group = [change]
        for _ in range(1 + MOST_NEEDED):
            fields = {**before.fields, **{name: value for each in group for name, value in each.fields.items()}}
            job = self.bench.resolve(fields)
            need = _broken((*taken, *group), self.bench.facts(job))
            if need is None:
                return fields, job, tuple(group)
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

    def _forecast(self, fields: Mapping[str, Any], job: Job, before: Tried) -> Tried | None:
        """Return the forecast of a job that is not as it was before, fits, and is known or may still be tried."""
        known = next((each for each in self.known if same_job(job, each.job)), None)
        if known is not None:
            return replace(known, fields=fields)
        if same_job(job, before.job) or self.left <= 0:
            return None
        bench = self.bench
        risk = chance_of_oom(bench.peak_bytes(job), bench.usable_bytes, job.framework.name)
        if risk > max(REFUSED_ABOVE, self.start.chance_of_oom):
            return None
        self.left -= 1
        self.known.append(bench.forecast(fields, job))
        return self.known[-1]

    def saves(self, after: Tried, before: Tried) -> bool:
        """Say whether a step is enough shorter than another to be told."""
        return before.step_s - after.step_s > LEAST_SAVED * self.start.step_s

    def fits(self, after: Tried) -> bool:
        """Say whether a job is no more likely to run out of memory than one would risk, or than it is now."""
        return after.chance_of_oom <= max(RISKED, self.start.chance_of_oom)


def same_job(one: Job, other: Job) -> bool:
    """Say whether two jobs are the same but for why."""
    return all(getattr(one, name) == getattr(other, name) for name in Job.__struct_fields__ if name != "assumptions")


def _broken(changes: Iterable[Alternative], facts: Mapping[str, Any]) -> Need | None:
    """Return the first of the needs of some changes that does not hold; each is conditions of which one must."""
    needs = (need for each in changes for need in each.needs)
    return next((need for need in needs if not any(one.holds(facts) for one in need)), None)


def advise(start: Tried, changes: Iterable[Alternative], bench: Bench) -> tuple[Advice, ...]:
    """Return the changes that save, in the order to make them; those that change numbers come after all others.

    After those that are taken come those that save by themselves alone, and those that may not fit.
    """
    changes = tuple(changes)
    on_path = {**_on_path(start.done), "bubble": start.result.breakdown_s["bubble"]}
    search = _Search(bench, start, changes)
    worth = [each for each in changes if _at_most_s(each, on_path) > LEAST_SAVED * start.step_s]
    worth.sort(key=lambda each: -_at_most_s(each, on_path))
    tried = [(each, found) for each in worth if (found := search.tried(start, (), each)) is not None]
    # What saves nothing by itself may save once what hides it is gone. Of two that save alike the later one of the
    # table does more.
    place, alike_s = {each.name: -at for at, each in enumerate(changes)}, LEAST_SAVED * start.step_s
    tried.sort(
        key=lambda each: (
            not search.saves(each[1][0], start),
            round(each[1][0].step_s / alike_s),
            place[each[0].name],
        )
    )
    order = _Order(search, start)
    for keeps in (True, False):
        order.take([(each, found[0]) for each, found in tried if each.keeps_numbers == keeps], keeps=keeps)
        left = [(found, each.keeps_numbers) for each, found in tried if not order.has(each)]
        if keeps:
            # Other layouts, and other ways to do what was done, which save less than that, come last.
            for (alone, group), same in left:
                is_another_way = order.contradicts(alone.fields) and alone.step_s >= order.now.step_s
                if same and not group[0].is_layout and not is_another_way:
                    order.leave(group, alone, keeps=same)
    # What was not allowed may be by now, as what needs GEMMs in 8 bits.
    alone_too = {each.name for each, _ in tried}
    order.take([(each, None) for each in worth if each.name not in alone_too], keeps=False)
    for (alone, group), same in left:
        order.leave(group, alone, keeps=same)
    return tuple(order.found)


class _Order(Struct):
    """Changes that were taken, one after another, and what is told of them and of the others."""

    search: _Search
    now: Tried
    """With all that were taken."""
    taken: tuple[Alternative, ...] = ()
    found: list[Advice] = field(default_factory=list)

    def take(self, changes: Sequence[tuple[Alternative, Tried | None]], *, keeps: bool) -> None:
        """Take each change that saves over those before it and fits, of those that keep the numbers or of the others.

        Of two ways to do the same the first is taken. What saves nothing yet is tried once more after all others.
        """
        left = [each for each in changes if not each[0].is_layout]
        self.search.left = MOST_AFTER
        for _ in range(2):
            again = []
            for change, alone in left:
                if self.contradicts(change.fields):
                    continue
                found = self.search.tried(self.now, self.taken, change)
                if found is None:
                    continue
                after, group = found
                if self.search.saves(after, self.now) and self.search.fits(after):
                    self.found.append(_advice(self.search, group, alone, self.now, after, keeps=keeps))
                    self.now, self.taken = after, (*self.taken, *group)
                else:
                    again.append((change, alone))
            left = again

    def has(self, change: Alternative) -> bool:
        """Say whether a change was taken."""
        return change in self.taken

    def contradicts(self, fields: Mapping[str, Any]) -> bool:
        """Say whether fields are to be otherwise than what was taken has them."""
        return any(self.now.fields.get(name, value) != value for name, value in fields.items())

    def leave(self, group: Sequence[Alternative], alone: Tried, *, keeps: bool) -> None:
        """Tell of a change that saves by itself and is not taken."""
        told = {each.name for each in self.found} | {each.name for each in self.taken}
        if self.search.saves(alone, self.search.start) and not any(each.name in told for each in group):
            by_itself = _advice(self.search, group, alone, self.search.start, alone, keeps=keeps)
            nothing = {"taken": False, "saving_s": 0.0, "saving_low_s": 0.0, "saving_high_s": 0.0}
            self.found.append(replace(by_itself, **nothing, iteration_time_s=self.now.step_s))


def _advice(
    search: _Search, group: Sequence[Alternative], alone: Tried | None, before: Tried, after: Tried, *, keeps: bool
) -> Advice:
    """Return a change, with those of its group that it needs, and what it saves after those before it."""
    start, change, saving_s = search.start, group[0], before.step_s - after.step_s
    low_s, high_s, chance = surety(before.done, after.done, search.bench.table)
    one, without = (after, before) if alone is None else (alone, start)
    fields = {name: value for name, value in after.fields.items() if before.fields.get(name, _NOTHING) != value}
    return Advice(
        name=_name(group),
        taken=True,
        fields=fields,
        spelled=spelled(before.job, after.job, fields),
        words_of=dialect_name(after.job.framework),
        saving_s=saving_s,
        saving_low_s=low_s,
        saving_high_s=high_s,
        chance_faster=chance,
        alone_s=without.step_s - one.step_s,
        iteration_time_s=after.step_s,
        more_bytes=one.peak_bytes - without.peak_bytes,
        peak_bytes=after.peak_bytes,
        chance_of_oom=after.chance_of_oom,
        needs="; ".join(dict.fromkeys(each.asks for each in group if each.asks)),
        numbers="; ".join(dict.fromkeys(each.numbers for each in group if each.numbers)),
        same_numbers=keeps,
        usual=all(each.usual for each in group),
        source=change.source,
    )


def _name(group: Sequence[Alternative]) -> str:
    """Return what a change is called, with those that it needs."""
    first, *others = (each.name for each in group)
    return f"{first}, with {' and '.join(others)}" if others else first


_NOTHING = object()


def surety(before: JobStep, after: JobStep, table: FactorTable) -> tuple[float, float, float]:
    """Return the ends of the 90 % interval of what a step saves over another, in seconds, and the chance that it does.

    The logarithm of each class of work has one deviation, the same for both: of a step it moves as much as the class
    is of it, and of the difference as much as its seconds differ.
    """
    slopes = [{name: each.step_s * slope for name, slope in sensitivities(each).items()} for each in (before, after)]
    basis, saving_s = basis_of_step(before), before.step_s - after.step_s
    variance = (OWN_SHARE * before.step_s) ** 2
    for name in {*slopes[0], *slopes[1]}:
        moved_s = slopes[0].get(name, 0.0) - slopes[1].get(name, 0.0)
        variance += (deviation_alone(basis, table, name) * moved_s) ** 2
    spread_s, factor = math.sqrt(variance), math.exp(Z * OWN_SPREAD)
    less_s = math.hypot(saving_s * (1 - 1 / factor), Z * spread_s)
    more_s = math.hypot(saving_s * (factor - 1), Z * spread_s)
    chance = 0.5 * math.erfc(-saving_s / spread_s / math.sqrt(2))
    return saving_s - less_s, min(saving_s + more_s, before.step_s), chance


COMPUTE = ("forward", "backward", "weight_gradient", "recompute", "step")


def _on_path(done: JobStep) -> Mapping[str, float]:
    """Return the seconds of the critical path by kind of work."""
    sums: dict[str, float] = {}
    for each in path_shares(done.step.timed.path, done.step.program):
        sums[each.what] = sums.get(each.what, 0.0) + each.time_s
    return sums


def _at_most_s(change: Alternative, on_path: Mapping[str, float]) -> float:
    """Return what a change can save of the chain that is the longest now: all work of its kinds."""
    kinds = change.shortens or COMPUTE
    return sum(on_path.get(each, 0.0) for each in kinds)
