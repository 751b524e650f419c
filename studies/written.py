"""Write the data files of fitted constants, as the product reads them."""

import csv
import io
from collections.abc import Iterable, Mapping

import numpy as np

from traincast.estimate.factors import Factor
from traincast.estimate.operators.constants import STEP, Correction


def write_factors(factors: Iterable[Factor]) -> str:
    """Return the text of a factors file; `read_factors` of it gives equal factors to four digits."""
    lines: list[list[object]] = []
    for each in sorted(factors, key=lambda factor: factor.key):
        cells = [each.level, each.name, each.cost_class, f"{each.factor:.4f}", f"{each.deviation:.4f}", each.rows]
        lines.append(list(cells))
    return _csv(["level", "name", "cost_class", "factor", "deviation", "rows"], lines)


def with_energies(text: str, values: Mapping[tuple[str, str], float]) -> str:
    """Return the text of a file of generations with other values in it, by generation and column, to three digits."""
    header, *rows = csv.reader(io.StringIO(text))
    for (generation, column), value in values.items():
        row = next(each for each in rows if each[0] == generation)
        row[header.index(column)] = f"{value:.3f}"
    return _csv(header, [list(row) for row in rows])


def write_corrections(corrections: Iterable[Correction]) -> str:
    """Return corrections as CSV that a person can read, as `read_corrections` describes it."""
    lines: list[list[object]] = []
    for each in corrections:
        axes = " ".join(f"{first:g}:{last:g}:{count}" for first, last, count in each.axes)
        lines.append([each.gpu, each.family, each.dtype, each.rows, axes, _percent(each)])
    return _csv(["gpu", "family", "dtype", "rows", "axes", "percent"], lines)


def _percent(correction: Correction) -> str:
    """Return the values as lines of whole percent."""
    percent_V = np.clip(np.rint(correction.log_factor_V / STEP), -100, 100).astype(np.int64)
    counts = [count for *_, count in correction.axes if count > 1] or [1]
    width, plane = counts[-1], counts[-2] if len(counts) > 2 else len(percent_V)
    lines = [" ".join(f"{value:3}" for value in line) for line in percent_V.reshape(-1, width).tolist()]
    planes = ("\n".join(lines[start : start + plane]) for start in range(0, len(lines), plane))
    return "\n" + "\n\n".join(planes) + "\n"


def _csv(header: list[str], rows: Iterable[list[object]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([header, *rows])
    return stream.getvalue()
