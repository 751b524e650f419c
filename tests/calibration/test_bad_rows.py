"""A bad row of any kind of measurements is named and left out; the others are predicted as without it."""

import pytest

from fuzzing.measured import MEASURED
from traincast.calibration.validate import validate

DAMAGE = {
    "a cell less": lambda row, _: row.rpartition(",")[0],
    "a cell more": lambda row, _: f"{row},1",
    "no number": lambda row, column: with_cell(row, column, "many"),
    "below zero": lambda row, column: with_cell(row, column, "-1"),
    "empty": lambda row, column: with_cell(row, column, " "),
    "nan": lambda row, column: with_cell(row, column, "nan"),
    "infinite": lambda row, column: with_cell(row, column, "1e999"),
    "5,000 digits": lambda row, column: with_cell(row, column, "9" * 5000),
}
NUMBER = {
    "collectives": "size_bytes",
    "named": "ms",
    "gemm": "k",
    "fit": "m",
    "attention": "seq",
    "experts": "tokens",
    "kernels": "time_s",
    "runs": "global_batch",
    "schema": "global_batch",
    "memory": "global_batch",
    "sweep": "tp",
}
"""A column that must hold a number, of each kind."""


def with_cell(row, column, text):
    cells = row.split(",")
    cells[column] = text
    return ",".join(cells)


@pytest.mark.parametrize("kind", MEASURED)
def test_bad_rows_are_named_and_the_others_stay(tmp_path, kind):
    header, *rows = MEASURED[kind].splitlines()
    column = header.split(",").index(NUMBER[kind])
    path = tmp_path / "a100.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    whole = validate(path)
    bad = [damage(rows[0], column) for damage in DAMAGE.values()]
    path.write_text("\n".join([header, rows[0], *bad, *rows[1:]]) + "\n")
    found = validate(path)
    assert len(found.skipped) == len(whole.skipped) + len(bad)
    assert all(row.reason for row in found.skipped)
    assert found.total.rows == whole.total.rows + len(bad)
    assert found.total.evaluated == whole.total.evaluated
    assert found.predictions.predicted.tolist() == pytest.approx(whole.predictions.predicted.tolist(), nan_ok=True)
    assert not (known := [row for row in bad if row == rows[0]]), known
