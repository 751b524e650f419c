"""The price of a collective over sizes, as nccl-tests prints it."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.estimate.collective_table import CollectiveRow, CollectiveTable
from traincast.report.terminal.parts import notes, number, table, text
from traincast.units import GIGA, format_size, parse_time


def view(collective: CollectiveTable) -> Iterator[RenderableType]:
    """Yield the table: sizes in bytes, times in us, bandwidths in GB/s, as in nccl-tests."""
    op = collective.op.replace("_", " ")
    where = number(collective.nodes, "node", "nodes")
    yield text(f"{op} over {number(collective.ranks, 'rank', 'ranks')} on {where} of {collective.cluster}", "bold")
    yield text("time in us; algbw and busbw, as nccl-tests defines them, in GB/s")
    rows = [
        (
            f"{row.size_bytes}",
            format_size(row.size_bytes),
            f"{row.time_s / parse_time('1us'):,.2f}",
            _rate(row.algbw_bytes_per_s),
            _rate(row.busbw_bytes_per_s),
            _how(row),
            row.protocol or "-",
        )
        for row in collective.rows
    ]
    headings = ("size", " ", "time", "algbw", "busbw", "algorithm", "protocol")
    yield table(headings, rows, labels=("algorithm", "protocol"))
    yield from notes("Assumptions", collective.assumptions)


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s / GIGA:,.2f}"


def _how(row: CollectiveRow) -> str:
    return row.algorithm.replace("_", " ")
