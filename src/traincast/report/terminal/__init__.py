"""Results, comparisons, validations and more for people, on a terminal of 80 columns or more.

Colour appears on a terminal only. rich is imported when something is printed, because
loading it takes longer than most answers of the command line.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from traincast.analysis.comparison import Comparison
    from traincast.calibrate.calibrate import Calibration
    from traincast.calibrate.operator_calibration import OperatorCalibration
    from traincast.calibrate.validate import Validation
    from traincast.estimate.collective_table import CollectiveTable
    from traincast.estimate.operator_price import OperatorPrice
    from traincast.estimate.simai.total import SimaiReport
    from traincast.formats.contract import Inspection
    from traincast.hardware.cluster import Cluster
    from traincast.model.model import Model
    from traincast.simulation.result import Result


def print_result(result: "Result", console: "Console") -> None:
    """Print a simulated step: its time, where the time goes, and what to know about it."""
    from traincast.report.terminal.result import view

    _print(view(result, ascii_only=console.options.ascii_only), console)


def print_comparison(comparison: "Comparison", console: "Console", *, ranks: bool = False) -> None:
    """Print two steps side by side; with `ranks` every rank and its parts."""
    from traincast.report.terminal.comparison import view

    _print(view(comparison, ranks=ranks), console)


def print_simai(report: "SimaiReport", result: "Result", console: "Console") -> None:
    """Print SimAI-Analytical's own numbers of a file, and the simulated step beside them."""
    from traincast.report.terminal.simai import view

    _print(view(report, result), console)


def print_inspections(inspections: "Sequence[Inspection]", console: "Console", *, whole: bool = False) -> None:
    """Print what files are: format, layout, totals, and everything unusual in them.

    Of many files only the first and the last are shown, unless `whole`.
    """
    from traincast.report.terminal.inspection import view

    _print(view(inspections, whole=whole), console)


def print_clusters(clusters: "Sequence[Cluster]", console: "Console") -> None:
    """Print a few lines on each cluster."""
    from traincast.report.terminal.clusters import view

    _print(view(clusters), console)


def print_cluster_numbers(clusters: "Sequence[Cluster]", console: "Console") -> None:
    """Print every number of each cluster with its unit and where it comes from."""
    from traincast.report.terminal.clusters import numbers

    _print(numbers(clusters), console)


def print_models(models: "Sequence[Model]", console: "Console") -> None:
    """Print a line on each model."""
    from traincast.report.terminal.models import view

    _print(view(models), console)


def print_model_counts(models: "Sequence[Model]", seq_length: int, console: "Console") -> None:
    """Print the parameters and FLOPs of each model by part, and where its numbers come from."""
    from traincast.report.terminal.models import details

    _print(details(models, seq_length), console)


def print_validation(validation: "Validation", console: "Console") -> None:
    """Print how far predictions are from measurements, in total and by group."""
    from traincast.report.terminal.validation import view

    _print(view(validation), console)


def print_collective(table: "CollectiveTable", console: "Console") -> None:
    """Print the price of a collective over sizes, as nccl-tests prints a measurement."""
    from traincast.report.terminal.collective import view

    _print(view(table), console)


def print_operator(price: "OperatorPrice", console: "Console") -> None:
    """Print the price of an operator: its time, what binds it, and every term behind it."""
    from traincast.report.terminal.operator import view

    _print(view(price), console)


def print_operator_calibration(calibration: "OperatorCalibration", console: "Console") -> None:
    """Print a fit of operators' constants: its residuals by family, and the constants."""
    from traincast.report.terminal.operator import calibration_view

    _print(calibration_view(calibration), console)


def print_calibration(calibration: "Calibration", console: "Console") -> None:
    """Print a fit: its residuals by size, and the constants before and after."""
    from traincast.report.terminal.calibration import view

    _print(view(calibration), console)


def _print(parts: "Iterable[RenderableType]", console: "Console") -> None:
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    # rich fills lines up to a box's width; who reads a file or a pipe does not want the blanks.
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
