"""What to change of a job, the best first: each change alone, then one after another, with the saving that is left.

Candidates are what the framework offers and the job does not do: switches of software, less recomputation, less in the
memory of the host. The likeliest by what the critical path spends on the work that they shorten are forecast again
(`traincast.simulation.alternatives`). Those that save and fit are then taken one by one, the best alone first, each
over the ones before it: the savings are parts of the whole.

How sure a saving is: the classes of work whose share changes are as uncertain as the interval of a forecast has them
(`traincast.simulation.widths`); of what both steps spend alike nothing is left in the difference. The change itself is
modelled within a factor (`OWN_SPREAD`), and both steps within `OWN_SHARE`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.analysis.summary import Advice
from traincast.dialects.spelling import dialect_name, spelled
from traincast.job.job import Job
from traincast.simulation.alternatives import LEAST_SAVED, Alternative, Bench, Outcome, Search, Tried
from traincast.simulation.confidence import deviation_alone
from traincast.simulation.widths import Z, basis_of

OWN_SPREAD = 0.6
"""Standard deviation of the logarithm of what a change saves: that of measured over forecast savings of published
pairs of runs that differ in one setting (Megatron-Bridge's skills, torchtitan's and MaxText's pages, MLPerf), where at
least 2 % are forecast. Of 30 pairs the savings of 29 lie within the interval that it makes with what classes of work
add."""
OWN_SHARE = 0.01
"""Standard deviation, as a share of the step, of what no class explains and both steps do not share: as much as repeats
of a run with equal settings differ (docs/published-runs.md, noise)."""
MOST_AFTER = 6
"""Forecasts that are made of changes after others: of those that keep the numbers, of those that change them, and of
those that others allow."""


class Advising(Struct, frozen=True):
    """What may be changed of a job, the likeliest to save first, before any of it is forecast."""

    search: Search
    worth: tuple[Alternative, ...]

    @classmethod
    def from_changes(
        cls, start: Tried, path_s: Mapping[str, float], changes: Iterable[Alternative], bench: Bench
    ) -> "Advising":
        """Return the changes of a job that may save enough to be told.

        `path_s` is what its critical path spends on each kind of work.
        """
        changes = tuple(changes)
        worth = [each for each in changes if each.at_most_s(path_s) > LEAST_SAVED * start.step_s]
        worth.sort(key=lambda each: -each.at_most_s(path_s))
        return cls(Search(bench, start, changes), tuple(worth))

    @property
    def jobs(self) -> list[Job]:
        """The jobs that changes by themselves make, to be forecast."""
        return self.search.jobs(self.worth)

    def advice(self, jobs: Sequence[Job], outcomes: Sequence[Outcome | None]) -> tuple[Advice, ...]:
        """Return the changes that save, in the order to make them; those that change numbers come after all others.

        After those that are taken come those that save by themselves alone, and those that may not fit. `outcomes` are
        the forecasts of `jobs`.
        """
        search = self.search
        search.learn(jobs, outcomes)
        return _ordered(search, self.worth)


def _ordered(search: Search, worth: Sequence[Alternative]) -> tuple[Advice, ...]:
    start = search.start
    tried = [(each, found) for each in worth if (found := search.tried(start, (), each)) is not None]
    # What saves nothing by itself may save once what hides it is gone. Of two that save alike the later one of the
    # table does more.
    place, alike_s = {each.name: -at for at, each in enumerate(search.changes)}, LEAST_SAVED * start.step_s
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

    search: Search
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
    search: Search, group: Sequence[Alternative], alone: Tried | None, before: Tried, after: Tried, *, keeps: bool
) -> Advice:
    """Return a change, with those of its group that it needs, and what it saves after those before it."""
    start, change, saving_s = search.start, group[0], before.step_s - after.step_s
    low_s, high_s, chance = surety(before, after, search.bench)
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
        chance_of_oom=after.outcome.chance_of_oom,
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


def surety(before: Tried, after: Tried, bench: Bench) -> tuple[float, float, float]:
    """Return the ends of the 90 % interval of what a step saves over another, in seconds, and the chance that it does.

    The logarithm of each class of work has one deviation, the same for both: of a step it moves as much as the class
    is of it, and of the difference as much as its seconds differ.
    """
    slopes = [{name: each.step_s * slope for name, slope in each.outcome.slopes.items()} for each in (before, after)]
    basis, saving_s = basis_of(before.job, bench.gpu, before.outcome.slopes), before.step_s - after.step_s
    variance = (OWN_SHARE * before.step_s) ** 2
    for name in {**slopes[0], **slopes[1]}:
        moved_s = slopes[0].get(name, 0.0) - slopes[1].get(name, 0.0)
        variance += (deviation_alone(basis, bench.table, name) * moved_s) ** 2
    spread_s, factor = math.sqrt(variance), math.exp(Z * OWN_SPREAD)
    less_s = math.hypot(saving_s * (1 - 1 / factor), Z * spread_s)
    more_s = math.hypot(saving_s * (factor - 1), Z * spread_s)
    chance = 0.5 * math.erfc(-saving_s / spread_s / math.sqrt(2))
    return saving_s - less_s, min(saving_s + more_s, before.step_s), chance
