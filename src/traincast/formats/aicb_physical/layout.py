"""Decide the layout of a physical AICB workload: what the user says, then the sizes of its groups, then a default."""

from collections.abc import Iterable
from dataclasses import dataclass

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import PhysicalFile, PhysicalRow
from traincast.formats.aicb_physical.steps import Steps
from traincast.formats.layout import NODE_RANKS, asked_dp, microbatches_of, warn_single_microbatch
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.workload.words import Group


@dataclass(frozen=True, slots=True)
class Layout:
    """The decided layout."""

    parallel: Parallel
    schedule: str
    as_written: frozenset[Group]
    """Groups that have as many members here as in the file, so that its times hold for them."""


def written_sizes(file: PhysicalFile) -> dict[Group, int]:
    """Return the members of each kind of group, where the rows say them.

    Raises
    ------
    FormatError
        If two rows disagree.
    """
    sizes: dict[Group, int] = {}
    for row in _rows(file):
        if row.ranks is None or row.group is Group.NONE:
            continue
        if sizes.setdefault(row.group, row.ranks) != row.ranks:
            name = row.group.name.lower()
            raise FormatError(
                f"a {name} group has {row.ranks} members here and {sizes[row.group]} before", file.path, row.line
            )
    return sizes


def decide_layout(file: PhysicalFile, steps: Steps, options: LayoutOptions, notes: Notebook) -> Layout:
    """Work out degrees, microbatches and schedule.

    Raises
    ------
    FormatError
        If the rows contradict each other.
    InfeasibleError
        If degrees do not divide the world.
    """
    sizes, sections = written_sizes(file), len(file.sections)
    tp = _degree("tp", options.tp, sizes.get(Group.TP, 1), notes)
    pp = _stages(file, steps, options, sizes, notes)
    written = _written_dp(file, sizes, tp, pp, sections, notes)
    dp = asked_dp(options, {"tp": tp, "pp": pp}, file.path) or written
    ep = _experts(file, options, sizes, dp, notes)
    microbatches = microbatches_of(options, max(1, steps.passes[0].microbatches), "the step", notes)
    parallel = Parallel(tp=tp, dp=dp, pp=pp, ep=ep, etp=options.etp, microbatches=microbatches)
    members = {
        Group.TP: tp,
        Group.DP: dp,
        Group.EP: ep,
        Group.EDP: parallel.edp,
        Group.PP: pp,
        Group.EMB: min(2, pp),
        Group.WORLD: parallel.world_size,
    }
    schedule = options.schedule or "1f1b"
    if steps.passes[0].microbatches:
        warn_single_microbatch(notes, pp, pp, parallel.microbatches)
    same = frozenset(group for group, count in members.items() if sizes.get(group, count) == count)
    return Layout(parallel, schedule, same)


def _rows(file: PhysicalFile) -> Iterable[PhysicalRow]:
    return (row for section in file.sections for row in section.rows)


def _degree(name: str, chosen: int | None, written: int, notes: Notebook) -> int:
    """Return a degree: the user's, with a warning where the file has another one, else the file's."""
    if chosen is not None and chosen != written:
        notes.warn(
            f"{name}-not-rescaled",
            f"the file was written for {name} {written}; its sizes are kept for {name} {chosen}",
        )
    return written if chosen is None else chosen


def _stages(file: PhysicalFile, steps: Steps, options: LayoutOptions, sizes: dict[Group, int], notes: Notebook) -> int:
    """Return the number of pipeline stages."""
    sections = len(file.sections)
    if sections > 1:
        if options.pp not in (None, sections):
            raise FormatError(f"describes {sections} pipeline stages; --pp {options.pp} is another number", file.path)
        return sections
    sends = bool(steps.passes[0].messages)
    written = sizes.get(Group.PP, 1)
    if sends and max(written, options.pp or 1) == 1:
        row = steps.passes[0].messages[0]
        raise FormatError(
            "sends messages to another stage, and nothing says how many stages there are; give --pp",
            file.path,
            row.line,
        )
    if written == 1 and options.pp is not None:
        return options.pp
    return _degree("pp", options.pp, written, notes)


def _written_dp(file: PhysicalFile, sizes: dict[Group, int], tp: int, pp: int, sections: int, notes: Notebook) -> int:
    """Return the data parallel degree that the file says: by its dp groups, by its titles, or a default."""
    told = [section.ranks for section in file.sections if section.ranks is not None]
    ranks = sum(told) if len(told) == sections and told else None
    if Group.DP in sizes:
        dp = sizes[Group.DP]
        if ranks is not None and ranks != tp * dp * pp:
            notes.warn(
                "world-mismatch",
                f"the titles name {ranks} ranks, but tp {tp} x dp {dp} x pp {pp} = {tp * dp * pp}; the groups count",
            )
        return dp
    if ranks is not None and ranks % (tp * pp) == 0:
        return ranks // (tp * pp)
    if any(row.group is Group.DP for row in _rows(file)):
        notes.assume(
            "world-absent",
            f"the file does not say how many ranks a dp group has; taken as {NODE_RANKS} (give --gpus or --dp)",
        )
        return NODE_RANKS
    return sizes.get(Group.EP, 1) * sizes.get(Group.EDP, 1)


def _experts(file: PhysicalFile, options: LayoutOptions, sizes: dict[Group, int], dp: int, notes: Notebook) -> int:
    """Return the expert parallel degree; AICB's logs of expert layers often leave it out."""
    if options.ep is not None:
        return options.ep
    if Group.EP in sizes:
        return sizes[Group.EP]
    first = next((row for row in _rows(file) if row.group is Group.EP), None)
    if first is None:
        return 1
    notes.warn(
        "ep-absent", f"the file does not say how many ranks an ep group has; taken as dp {dp} (give --ep)", first.line
    )
    return dp
