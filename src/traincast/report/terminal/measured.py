"""A measured run and its simulation, side by side."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.analysis.comparison import compare
from traincast.report.terminal.comparison import Columns, ends, parts
from traincast.report.terminal.parts import heading, indented, text
from traincast.simulation.result import Result, replayed_side, simulated_side


def measured(result: Result) -> Iterator[RenderableType]:
    """Yield the ends of the measured ranks and the sums of their parts; nothing where none was measured."""
    replayed = replayed_side(result, "measured")
    if replayed is None or not replayed.end_s:
        return
    comparison = compare(replayed, simulated_side(result, "simulated"))
    columns = Columns.of(comparison, "measured", "simulated")
    yield heading(f"Measured and simulated: ends of the ranks, {columns.unit.name}")
    yield from ends(comparison, columns, stage_of={rank.rank: rank.stage for rank in result.ranks})
    if comparison.parts:
        yield from parts(comparison, columns, "Measured and simulated")
    unmeasured = dict.fromkeys(part for alone in comparison.only_b.part_s.values() for part in alone)
    named = [part for part in unmeasured if part not in comparison.parts]
    if named:
        yield indented(text(f"only simulated: {', '.join(named)}", "dim"))
