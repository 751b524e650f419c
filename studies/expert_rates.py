"""Hold the costs of GEMMs of experts against what `studies/expert_gemms.py` timed.

    python studies/expert_rates.py [--data DIR]

Prints, by launch, type and tokens of an expert, the median rate of each direction and what is estimated over it, and
what tokens that random routing leaves unevenly cost, and the rate of large GEMMs in one kernel over that of plain ones
of as many rows.
"""

import argparse
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import DATA, table_path
from traincast.calibration.operators import operators_of
from traincast.calibration.tables import read_table
from traincast.estimate.operators import estimate_operator
from traincast.workload.ops import OperatorCall

TABLE = "expert_gemms_h100.csv"
LARGE = 2048
"""Tokens of an expert from which its GEMMs are large."""
WAYS = ("forward", "dgrad", "wgrad")


class Timed(NamedTuple):
    """One timing, its estimate, and how its tokens were spread."""

    call: OperatorCall
    time_s: float
    estimated_s: float
    routing: str

    @property
    def kind(self) -> tuple[str, str]:
        """Return how it was launched, and its type."""
        if self.call.family == "gemm":
            return "plain", self.call.dtype
        return ("one after the other" if ("kernel", "each") in self.call.options else "one kernel"), self.call.dtype

    @property
    def tokens(self) -> int:
        """Tokens of an expert."""
        return self.call.shape[0] // (self.call.shape[3] if len(self.call.shape) > 3 else 1)

    @property
    def rate(self) -> float:
        """FLOP per second."""
        rows, n, k = self.call.shape[:3]
        return 2.0 * rows * n * k / self.time_s


def timings(folder: Path) -> list[Timed]:
    """Return all timings with their estimates."""
    table = read_table(table_path(TABLE, folder))
    measured = operators_of(table)
    routing = [row.cells["routing"] for row in table.rows]
    columns = zip(measured.gpu, measured.calls, measured.time_s.tolist(), routing, strict=True)
    return [Timed(call, time_s, estimate_operator(call, gpu).time_s, how) for gpu, (call,), time_s, how in columns]


def rates(found: Iterable[Timed]) -> str:
    """Return a line for the timings of one launch, type and number of tokens: rates, and estimated over measured."""
    cells = []
    for way in WAYS:
        some = [each for each in found if each.call.direction == way]
        rate, off = (
            np.median([each.rate for each in some]) / 1e12,
            np.median([each.estimated_s / each.time_s for each in some]),
        )
        cells.append(f"{way} {rate:4.0f} TFLOP/s, {off:.2f}")
    return "; ".join(cells)


def share_of_plain(found: Iterable[Timed]) -> float:
    """Return the median rate of large GEMMs of experts in one kernel over that of a plain one of as many rows."""
    plain = {_product(each.call): each.rate for each in found if each.kind[0] == "plain"}
    grouped = (each for each in found if each.kind[0] == "one kernel" and each.tokens >= LARGE)
    return float(np.median([each.rate / plain[_product(each.call)] for each in grouped]))


def _product(call: OperatorCall) -> tuple[object, ...]:
    return call.shape[:3], call.dtype, call.direction


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder with {TABLE}")
    found = timings(parser.parse_args().data)
    even = sorted((each for each in found if each.routing == "balanced"), key=lambda each: (each.kind, each.tokens))
    for kind, some in groupby(even, key=lambda each: each.kind):
        of_kind = list(some)
        errors = [abs(each.estimated_s / each.time_s - 1.0) for each in of_kind]
        print(f"{', '.join(kind)}: {len(of_kind)} timings, error {100 * np.median(errors):.1f} % in the median")
        if kind[0] != "plain":
            for tokens, same in groupby(of_kind, key=lambda each: each.tokens):
                print(f"  {tokens:5d} tokens: {rates(list(same))}")
    alike = {each.call: each.time_s for each in even}
    uneven = [each.time_s / alike[each.call] for each in found if each.routing == "random"]
    print(f"one kernel over plain, {LARGE} tokens and more: {share_of_plain(even):.3f} in the median")
    low, middle, high = np.quantile(uneven, (0.1, 0.5, 0.9))
    print(f"random routing over balanced: {middle:.2f} in the median, {low:.2f} to {high:.2f} of eight in ten")


if __name__ == "__main__":
    main()
