"""Public tables in the common schema: once brought there, no rule is needed to read them."""

import pytest

import common_schema
from datafiles import table_path
from published.reading import read_published
from traincast.calibration.columns import read_measurements
from traincast.calibration.runs import read_runs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measured_training_runs.csv", "nanotron_ultrascale_h100.csv"])
def test_a_public_table_is_read_alike_from_its_own_columns_and_from_the_common_schema(name, tmp_path, monkeypatch):
    out = tmp_path / "out.csv.gz"
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(table_path(name)), str(out)])
    assert common_schema.main() == 0
    printed, written = read_published(table_path(name)), read_measurements(out)
    assert [row.cells for row in printed.rows] == [row.cells for row in written.rows]
    # What is in the common schema is left as it is.
    assert [row.cells for row in read_published(out).rows] == [row.cells for row in written.rows]
    assert read_runs(written).rows


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(tmp_path / "none.csv"), str(tmp_path / "out.csv")])
    assert common_schema.main() == 1
    assert "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
