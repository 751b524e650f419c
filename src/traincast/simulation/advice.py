"""What to change of a job, the best first: each change alone, then one after another, with the saving that is left.

Candidates are what the framework offers and the job does not do: switches of software, less recomputation, less in the
memory of the host. The likeliest by what the critical path spends on the work that they shorten are forecast again, as
many as `MOST_TRIALS` allows, and what does not fit into memory is not run. Those that save are then taken one by one,
the best alone first, each over the ones before it: the savings are parts of the whole.

How sure a saving is: the classes of work whose share changes are as uncertain as the interval of a forecast has them
(`traincast.simulation.widths`); of what both steps spend alike nothing is left in the difference. The change itself is
modelled within `OWN_SPREAD` of what it saves.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.dialects.spelling import dialect_name, spelled
from traincast.errors import TraincastError
from traincast.estimate.factors import FactorTable
from traincast.estimate.memory import chance_of_oom
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
OWN_SPREAD = 0.4
"""Standard deviation of what a change saves, as a share of it, beyond what classes of work explain."""
MOST_AFTER = 8
"""Forecasts that are made at least of changes after others."""
MOST_NEEDED = 3
"""Changes that come with one that needs them."""
RISKED = 0.1
"""Chance of running out of memory up to which a change is told, or that of the job as it is."""


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
            if fits and helps and not each.numbers and each not in group:
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
        if risk > max(RISKED, self.start.chance_of_oom):
            return None
        self.left -= 1
        self.known.append(bench.forecast(fields, job))
        return self.known[-1]

    def saves(self, after: Tried, before: Tried) -> bool:
        """Say whether a step is enough shorter than another to be told."""
        return before.step_s - after.step_s > LEAST_SAVED * self.start.step_s


def same_job(one: Job, other: Job) -> bool:
    """Say whether two jobs are the same but for why."""
    return all(getattr(one, name) == getattr(other, name) for name in Job.__struct_fields__ if name != "assumptions")


def _broken(changes: Iterable[Change], facts: Mapping[str, Any]) -> Need | None:
    """Return the first of the needs of some changes that does not hold; each is conditions of which one must."""
    needs = (need for each in changes for need in each.needs)
    return next((need for need in needs if not any(one.holds(facts) for one in need)), None)


def advise(start: Tried, changes: Iterable[Change], bench: Bench) -> tuple[Advice, ...]:
    """Return the changes that save, in the order to make them; those that change numbers come after all others."""
    changes, on_path = tuple(changes), _on_path(start.result)
    search = _Search(bench, start, changes)
    worth = [each for each in changes if _at_most_s(each, on_path) > LEAST_SAVED * start.step_s]
    worth.sort(key=lambda each: -_at_most_s(each, on_path))
    alone = [(each, search.tried(start, (), each)) for each in worth]
    search.left = max(search.left, MOST_AFTER)
    tried = [(each, found[0]) for each, found in alone if found is not None]
    # What saves nothing by itself may save once what hides it is gone.
    tried.sort(key=lambda each: (bool(each[0].numbers), not search.saves(each[1], start), each[1].step_s))
    return tuple(_in_order(search, tried))


def _in_order(search: _Search, changes: Sequence[tuple[Change, Tried]]) -> Iterator[Advice]:
    """Yield changes one after another, each over those before it, as long as they save."""
    now = search.start
    taken: tuple[Change, ...] = ()
    for change, alone in changes:
        if any(now.fields.get(name, value) != value for name, value in change.fields.items()):
            continue  # another way to do the same was taken
        found = search.tried(now, taken, change)
        if found is None or not search.saves(found[0], now):
            continue
        after, group = found
        yield _advice(search, change, group, alone, now, after)
        now, taken = after, (*taken, *group)


def _advice(
    search: _Search, change: Change, group: Sequence[Change], alone: Tried, before: Tried, after: Tried
) -> Advice:
    """Return a change, with those of its group that it needs: what it saves alone, and after those before it."""
    start, saving_s = search.start, before.step_s - after.step_s
    spread_s = deviation_of_saving(before.done, after.done, search.bench.table)
    fields = {name: value for name, value in after.fields.items() if before.fields.get(name, _NOTHING) != value}
    return Advice(
        name=f"{change.name}, with {_and(each.name for each in group[1:])}" if group[1:] else change.name,
        fields=fields,
        spelled=spelled(before.job, after.job, fields),
        words_of=dialect_name(after.job.framework),
        saving_s=saving_s,
        low_s=saving_s - Z * spread_s,
        high_s=saving_s + Z * spread_s,
        chance_faster=0.5 * math.erfc(-saving_s / spread_s / math.sqrt(2)) if spread_s > 0 else 1.0,
        alone_s=start.step_s - alone.step_s,
        iteration_time_s=after.step_s,
        memory_bytes=alone.peak_bytes - start.peak_bytes,
        peak_bytes=after.peak_bytes,
        chance_of_oom=after.chance_of_oom,
        needs="; ".join(dict.fromkeys(each.asks for each in group if each.asks)),
        numbers="; ".join(dict.fromkeys(each.numbers for each in group if each.numbers)),
        usual=all(each.usual for each in group),
        source=change.source,
    )


_NOTHING = object()


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def deviation_of_saving(before: JobStep, after: JobStep, table: FactorTable) -> float:
    """Return the standard deviation of the difference of two steps, in seconds.

    The logarithm of each class of work has one deviation, the same for both: of a step it moves as much as the class
    is of it, and of the difference as much as its seconds differ.
    """
    slopes = [{name: each.step_s * slope for name, slope in sensitivities(each).items()} for each in (before, after)]
    basis = basis_of_step(before)
    variance = (OWN_SPREAD * (before.step_s - after.step_s)) ** 2
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
