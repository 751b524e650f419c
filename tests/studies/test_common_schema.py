"""Public tables in the common schema: once brought there, no rule is needed to read them."""

import gzip

import pytest

import common_schema
from datafiles import DATA, table_path
from traincast.calibrate.runs import read_runs
from traincast.calibrate.tables import read_table


@pytest.mark.parametrize("name", ["measured_training_runs.csv", "nanotron_ultrascale_h100.csv"])
def test_the_tables_of_the_studies_are_the_published_ones_in_the_common_schema(name, tmp_path, monkeypatch):
    out = tmp_path / "out.csv.gz"
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(table_path(name, DATA / "published")), str(out)])
    assert common_schema.main() == 0
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(table_path(name).read_bytes())
    # What is in the common schema is left as it is.
    table = read_table(out)
    assert all(common_schema.common_row(row, table.columns) == row for row in table.rows)
    assert read_runs(table).rows


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(tmp_path / "none.csv"), str(tmp_path / "out.csv")])
    assert common_schema.main() == 1
    assert "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
