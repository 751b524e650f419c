"""What to change of a job, the best first: each change alone, then one after another, with the saving that is left.

Candidates are what the framework offers and the job does not do: switches of software, less recomputation, less in the
memory of the host. The likeliest by what the critical path spends on the work that they shorten are forecast again, as
many as `MOST_TRIALS` allows, and what does not fit into memory is not run. Those that save are then taken one by one,
the best alone first, each over the ones before it: the savings are parts of the whole.

How sure a saving is: the classes of work whose share changes are as uncertain as the interval of a forecast has them
(`traincast.simulation.widths`); of what both steps spend alike nothing is left in the difference. The change itself is
modelled within `OWN_SPREAD` of what it saves, and both steps within `OWN_SHARE`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.dialects.spelling import dialect_name, spelled
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable
from traincast.estimate.memory import chance_of_oom
from traincast.estimate.memory.fits import REFUSED_ABOVE
from traincast.job.fields import FIELDS
from traincast.job.job import Job
from traincast.job.switches import Need
from traincast.simulation.confidence import basis_of_step, deviation_alone, sensitivities
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.widths import Z

MOST_TRIALS = 14
"""Forecasts that are made of changes by themselves."""
LEAST_SAVED = 0.002
"""Share of the step that a change must save to be told: less is not a reason to touch a job."""
OWN_SPREAD = 0.7
"""Standard deviation of what a change saves, as a share of it, beyond what classes of work explain: of 17 published
pairs of runs that differ in one setting (Megatron-Bridge's skills, torchtitan's and MaxText's pages) four of five lie
within the interval that it makes."""
OWN_SHARE = 0.01
"""The same as a share of the step, for what no class explains and both steps do not share: as much as repeats of a run
with equal settings differ (docs/published-runs.md, noise)."""
MOST_AFTER = 8
"""Forecasts that are made of changes after others: of those that keep the numbers, of those that change them, and of
those that others allow."""
MOST_NEEDED = 3
"""Changes that come with one that needs them."""
RISKED = 0.1
"""Chance of running out of memory up to which a change is taken, or that of the job as it is."""


class Change(Struct, frozen=True, kw_only=True):
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


class _Search(Struct):
    """What may still be tried of a job."""

    bench: Bench
    start: Tried
    changes: Sequence[Change]
    left: int = MOST_TRIALS
    known: list[Tried] = field(default_factory=list)

    def tried(self, before: Tried, taken: Sequence[Change], change: Change) -> tuple[Tried, tuple[Change, ...]] | None:
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
        self, before: Tried, taken: Sequence[Change], change: Change
    ) -> tuple[Mapping[str, Any], Job, tuple[Change, ...]] | None:
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

    def _met_by(self, need: Need, job: Job, group: Sequence[Change]) -> Change | None:
        """Return the change after which something that is needed holds, of those that change no numbers."""
        said = {name: value for each in group for name, value in each.fields.items()}
        facts = self.bench.facts(job)
        for each in self.changes:
            fits = all(said.get(name, value) == value for name, value in each.fields.items())
            # Of a fact that follows from others nothing is known before the job is decided.
            helps = any(one.name in each.fields and one.holds({**facts, **each.fields}) for one in need)
            if fits and helps and each.keeps_numbers and each not in group:
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


def _broken(changes: Iterable[Change], facts: Mapping[str, Any]) -> Need | None:
    """Return the first of the needs of some changes that does not hold; each is conditions of which one must."""
    needs = (need for each in changes for need in each.needs)
    return next((need for need in needs if not any(one.holds(facts) for one in need)), None)


def advise(start: Tried, changes: Iterable[Change], bench: Bench) -> tuple[Advice, ...]:
    """Return the changes that save, in the order to make them; those that change numbers come after all others.

    After those that are taken come those that save by themselves alone, and those that may not fit.
    """
    changes, on_path = tuple(changes), _on_path(start.result)
    search = _Search(bench, start, changes)
    worth = [each for each in changes if _at_most_s(each, on_path) > LEAST_SAVED * start.step_s]
    worth.sort(key=lambda each: -_at_most_s(each, on_path))
    tried = [(each, found) for each in worth if (found := search.tried(start, (), each)) is not None]
    order = _Order(search, start)
    for keeps in (True, False):
        mine = [each for each in tried if each[0].keeps_numbers == keeps]
        # What saves nothing by itself may save once what hides it is gone.
        mine.sort(key=lambda each: (not search.saves(each[1][0], start), each[1][0].step_s))
        order.take([(each, found[0]) for each, found in mine], keeps=keeps)
        if not keeps:
            # What was not allowed may be by now, as what needs GEMMs in 8 bits.
            alone = {each.name for each, _ in tried}
            order.take([(each, None) for each in worth if each.name not in alone], keeps=keeps)
        for _, (alone_then, group) in mine:
            order.leave(group, alone_then, keeps=keeps)
    return tuple(order.found)


class _Order(Struct):
    """Changes that were taken, one after another, and what is told of them and of the others."""

    search: _Search
    now: Tried
    """With all that were taken."""
    taken: tuple[Change, ...] = ()
    found: list[Advice] = field(default_factory=list)

    def take(self, changes: Sequence[tuple[Change, Tried | None]], *, keeps: bool) -> None:
        """Take each change that saves over those before it and fits, of those that keep the numbers or of the others.

        Of two ways to do the same the first is taken. What saves nothing yet is tried once more after all others.
        """
        left = list(changes)
        self.search.left = MOST_AFTER
        for _ in range(2):
            again = []
            for change, alone in left:
                if any(self.now.fields.get(name, value) != value for name, value in change.fields.items()):
                    continue
                found = self.search.tried(self.now, self.taken, change)
                if found is None:
                    continue
                after, group = found
                if self.search.saves(after, self.now) and self.search.fits(after):
                    self.found.append(_advice(self.search, group, alone or after, self.now, after, keeps=keeps))
                    self.now, self.taken = after, (*self.taken, *group)
                else:
                    again.append((change, alone))
            left = again

    def leave(self, group: Sequence[Change], alone: Tried, *, keeps: bool) -> None:
        """Tell of a change that saves by itself and is not taken."""
        is_taken = any(each in self.taken for each in group)
        if self.search.saves(alone, self.search.start) and not is_taken:
            by_itself = _advice(self.search, group, alone, self.search.start, alone, keeps=keeps)
            nothing = {"taken": False, "saving_s": 0.0, "saving_low_s": 0.0, "saving_high_s": 0.0}
            self.found.append(replace(by_itself, **nothing, iteration_time_s=self.now.step_s))


def _advice(
    search: _Search, group: Sequence[Change], alone: Tried, before: Tried, after: Tried, *, keeps: bool
) -> Advice:
    """Return a change, with those of its group that it needs, and what it saves after those before it."""
    start, change, saving_s = search.start, group[0], before.step_s - after.step_s
    spread_s = deviation_of_saving(before.done, after.done, search.bench.table)
    fields = {name: value for name, value in after.fields.items() if before.fields.get(name, _NOTHING) != value}
    return Advice(
        name=_name(group),
        taken=True,
        fields=fields,
        spelled=spelled(before.job, after.job, fields),
        words_of=dialect_name(after.job.framework),
        saving_s=saving_s,
        saving_low_s=saving_s - Z * spread_s,
        saving_high_s=saving_s + Z * spread_s,
        chance_faster=0.5 * math.erfc(-saving_s / spread_s / math.sqrt(2)) if spread_s > 0 else 1.0,
        alone_s=start.step_s - alone.step_s,
        iteration_time_s=after.step_s,
        more_bytes=alone.peak_bytes - start.peak_bytes,
        peak_bytes=after.peak_bytes,
        chance_of_oom=after.chance_of_oom,
        needs="; ".join(dict.fromkeys(each.asks for each in group if each.asks)),
        numbers="; ".join(dict.fromkeys(each.numbers for each in group if each.numbers)),
        same_numbers=keeps,
        usual=all(each.usual for each in group),
        source=change.source,
    )


def _name(group: Sequence[Change]) -> str:
    """Return what a change is called, with those that it needs."""
    first, *others = (each.name for each in group)
    return f"{first}, with {' and '.join(others)}" if others else first


_NOTHING = object()


def deviation_of_saving(before: JobStep, after: JobStep, table: FactorTable) -> float:
    """Return the standard deviation of the difference of two steps, in seconds.

    The logarithm of each class of work has one deviation, the same for both: of a step it moves as much as the class
    is of it, and of the difference as much as its seconds differ.
    """
    slopes = [{name: each.step_s * slope for name, slope in sensitivities(each).items()} for each in (before, after)]
    basis = basis_of_step(before)
    variance = (OWN_SPREAD * (before.step_s - after.step_s)) ** 2 + (OWN_SHARE * before.step_s) ** 2
    for name in {*slopes[0], *slopes[1]}:
        moved_s = slopes[0].get(name, 0.0) - slopes[1].get(name, 0.0)
        variance += (deviation_alone(basis, table, name) * moved_s) ** 2
    return math.sqrt(variance)


COMPUTE = ("forward", "backward", "weight_gradient", "recompute", "step")


def _on_path(result: Result) -> Mapping[str, float]:
    """Return the seconds of the critical path by kind of work, and of the bubble."""
    sums: dict[str, float] = {}
    for each in result.analysis.critical_path if result.analysis else ():
        sums[each.what] = sums.get(each.what, 0.0) + each.time_s
    return {**sums, "bubble": result.breakdown_s["bubble"]}


def _at_most_s(change: Change, on_path: Mapping[str, float]) -> float:
    """Return what a change can save of the chain that is the longest now: all work of its kinds."""
    kinds = change.shortens or COMPUTE
    return sum(on_path.get(each, 0.0) for each in kinds)


def kinds_shortened(fields: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of work of the critical path that fields of a job shorten."""
    known = {name: FIELDS[name].shortens for name in fields if name in FIELDS and FIELDS[name].shortens}
    return tuple(dict.fromkeys(each.removesuffix("_comm") for each in known.values()))
