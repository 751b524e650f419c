"""Results, comparisons, inspections and clusters for people, on a terminal of 80 columns or more.

Colour appears on a terminal only. rich is imported when something is printed, because
loading it takes longer than most answers of the command line.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from traincast.analysis.comparison import Comparison
    from traincast.formats.contract import Inspection
    from traincast.simulation.result import Result
    from traincast.spec.cluster import Cluster


def print_result(result: "Result", console: "Console") -> None:
    """Print a simulated step: its time, where the time goes, and what to know about it."""
    from traincast.report.terminal.result import view

    _print(view(result, ascii_only=console.options.ascii_only), console)


def print_comparison(comparison: "Comparison", console: "Console", *, ranks: bool = False) -> None:
    """Print two steps side by side; with `ranks` every rank and its parts."""
    from traincast.report.terminal.comparison import view

    _print(view(comparison, ranks=ranks), console)


def print_inspection(inspection: "Inspection", console: "Console") -> None:
    """Print what a file is: format, layout, totals, and everything unusual in it."""
    from traincast.report.terminal.inspection import view

    _print(view(inspection), console)


def print_clusters(clusters: "Sequence[Cluster]", console: "Console") -> None:
    """Print the known clusters; of a single one also where its numbers come from."""
    from traincast.report.terminal.clusters import view

    _print(view(clusters), console)


def _print(parts: "Iterable[RenderableType]", console: "Console") -> None:
    for part in parts:
        console.print(part)
