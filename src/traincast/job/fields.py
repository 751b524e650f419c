"""What a job may say: one table, `data/job/fields.csv`, a row for each field.

From it come the flags and their help, job files and their template, what a plan decides and may limit, the columns of
plans and sweeps, what a result tells of its job, and a layout in a line. `traincast.job.request.JobRequest` declares
the same fields with their types; a test keeps the two alike. Rows of ``of`` ``layout`` are said of files alone, whose
`traincast.job.options.LayoutOptions` they set. Source of the other names of flags: Megatron-LM,
megatron/training/arguments.py.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from traincast.shipped import shipped_rows
from traincast.tables import from_row

TABLE = "job/fields.csv"
JOB, LAYOUT = "job", "layout"
"""What a field may be of: a job, or what files leave out of their layout."""
GROUPS = (
    *("run", "parallelism", "batch", "pipeline", "precision", "kernels", "experts"),
    *("recompute", "offload", "sharding", "finetuning"),
)
"""Subjects of which one part of a job decides, in the order in which a layout in a line tells of them."""
PARALLEL, FACTS, PLAN = "parallel", "facts", "plan"
"""Where a field may be shown: in the keys ``parallel`` and ``job`` of a result, in the columns of plans and sweeps."""


class Field(Struct, frozen=True, kw_only=True):
    """One field, as its row says it."""

    name: str
    group: str
    """One of `GROUPS`."""
    section: str
    """Subject of the help."""
    of: tuple[str, ...]
    """`JOB`, `LAYOUT`, or both."""
    flags: tuple[str, ...] = ()
    """Ours, and those that Megatron-LM users type; none of what only files and keywords can say."""
    takes: str
    """``text``, ``count``, ``counts``, ``tokens``, ``number``, ``switch`` (with a ``--no-`` form), ``choice``, or
    ``names`` for several choices."""
    choices: str = ""
    """List in `traincast.job.choices` of all values of a ``choice`` or of ``names``, and of the names that may stand
    instead of a ``count``."""
    what: str = ""
    """What a choice is of, in the words of a message."""
    least: float | None = None
    """Smallest value of a number; the largest below, None: that of `traincast.units.range_of`."""
    most: float | None = None
    axis: str = ""
    """``axis`` of what a plan decides, ``limited`` where it may have an upper limit too, ``way`` of a switch that no
    other axis depends on, ``open`` of what a plan leaves open as an axis says the same otherwise."""
    change: str = ""
    """Change of a layout that it is part of, where it is not one by itself."""
    needs: tuple[str, ...] = ()
    """What must hold for it to have an effect: ``tp>1``, ``zero=3``, or what is true or given, such as ``experts``."""
    together: str = ""
    """What it says with others of the same name: who says one of them leaves none of the others open."""
    goes_with: tuple[str, ...] = ()
    """Fields with whose value a published recipe's value of it has its meaning: said anew, they take it along."""
    shown: tuple[str, ...] = ()
    """`PARALLEL`, `PLAN`; an axis is in `PLAN` without it, and what is not in `PARALLEL` in `FACTS`."""
    fact: str = ""
    """Key of these that tells it, where that has another name: what it was decided into."""
    shortens: str = ""
    """Kind of work that turning it on shortens, as a what-if names it."""
    line: str = ""
    """What a layout in a line says of it, with ``{}`` for the value; empty: nothing."""
    usual: str = ""
    """Value of which the line says nothing."""
    since: str
    """Version that had it first."""
    file: str = ""
    """Section of a job file."""
    example: str = ""
    """Value in the template, as TOML writes it."""
    given: bool = False
    """Whether the template says it, rather than leaves it open."""
    comment: str = ""
    """What the template says of it."""
    help: str
    help_of_layout: str = ""
    """The same of files, where that is another."""

    def matters(self, layout: object) -> bool:
        """Say whether it has an effect on a layout, which has what it needs as attributes."""
        return all(_holds(each, layout) for each in self.needs)

    @property
    def is_number(self) -> bool:
        """Whether it is a number, or several."""
        return self.takes in ("count", "counts", "tokens", "number") and not self.choices

    @property
    def is_axis(self) -> bool:
        """Whether a plan decides it."""
        return self.axis in ("axis", "limited", "way")


def _holds(need: str, layout: object) -> bool:
    name, more, least = need.partition(">")
    if more:
        return int(getattr(layout, name)) > int(least)
    name, equals, wanted = need.partition("=")
    value = getattr(layout, name)
    return str(value) == wanted if equals else bool(value)


def read_fields(rows: Iterable[Mapping[str, str]]) -> Mapping[str, Field]:
    """Return the fields that rows of a table describe, by name."""
    found = (from_row(row, Field) for row in rows)
    return MappingProxyType({each.name: each for each in found})


FIELDS = read_fields(shipped_rows(TABLE))
"""Every field of the table by name, in its order."""


def fields(*, group: str | None = None, of: str | None = None) -> tuple[Field, ...]:
    """Return the fields of a group, of jobs or of layouts; all of them where neither is named."""
    return tuple(each for each in FIELDS.values() if group in (None, each.group) and (of is None or of in each.of))


def needing(need: str) -> tuple[str, ...]:
    """Return the fields that have an effect only where something holds: ``ep>1``, ``optimizer=muon``."""
    return tuple(each.name for each in FIELDS.values() if need in each.needs)


def axes() -> tuple[str, ...]:
    """Return the fields that a plan decides."""
    return tuple(each.name for each in FIELDS.values() if each.is_axis)


def limited() -> tuple[str, ...]:
    """Return those of them that may have an upper limit."""
    return tuple(each.name for each in FIELDS.values() if each.axis == "limited")


def ways() -> tuple[Field, ...]:
    """Return the switches that a plan sets as they stand: a row of the table and a field of a layout are all it needs.

    What they need they need of degrees.
    """
    return _WAYS


_WAYS = tuple(each for each in FIELDS.values() if each.axis == "way")


def said_together(name: str) -> tuple[str, ...]:
    """Return a field and those that say one thing with it."""
    together = FIELDS[name].together
    return _TOGETHER[together] if together else (name,)


_TOGETHER = {
    together: tuple(each.name for each in FIELDS.values() if each.together == together)
    for together in {each.together for each in FIELDS.values()}
}


def going_with(name: str) -> tuple[str, ...]:
    """Return the fields whose values have their meaning with that of a field: said anew, it takes them along."""
    return tuple(each.name for each in FIELDS.values() if name in each.goes_with)


def left_open() -> tuple[str, ...]:
    """Return the fields of which a plan takes no value of the job: its axes, and what says the same as they do."""
    return tuple(each.name for each in FIELDS.values() if each.axis)


def shown_in(place: str) -> tuple[str, ...]:
    """Return the keys or columns of `PARALLEL`, `FACTS` or `PLAN` that tell fields."""
    if place == PLAN:
        return tuple(each.name for each in FIELDS.values() if each.is_axis or PLAN in each.shown)
    told = [each for each in FIELDS.values() if (PARALLEL in each.shown) == (place == PARALLEL)]
    return tuple(dict.fromkeys(each.fact or each.name for each in told if place == PARALLEL or JOB in each.of))


def file_sections() -> Mapping[str, tuple[Field, ...]]:
    """Return the fields of each section of a job file."""
    found: dict[str, tuple[Field, ...]] = {}
    for each in FIELDS.values():
        if each.file:
            found[each.file] = (*found.get(each.file, ()), each)
    return MappingProxyType(found)
