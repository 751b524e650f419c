"""Public tables in the common schema: once brought there, no rule is needed to read them."""

import pytest

import common_schema
from datafiles import table_path
from traincast.calibrate.runs import schema
from traincast.calibrate.runs.rows import read_runs
from traincast.calibrate.tables import read_table


@pytest.mark.parametrize("name", ["measured_training_runs.csv", "nanotron_ultrascale_h100.csv"])
def test_a_table_in_the_common_schema_says_the_same_without_rules(name, tmp_path, monkeypatch):
    path, out = table_path(name), tmp_path / "out.csv"
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(path), str(out)])
    assert common_schema.main() == 0
    by_rule = read_runs(read_table(path))
    monkeypatch.setattr(schema, "published_rules", tuple)
    monkeypatch.setattr(schema, "_excluded", dict)
    brought = read_runs(read_table(out))
    assert [row.reason for row in brought.skipped] == [row.reason for row in by_rule.skipped]
    assert brought.full_layout == by_rule.full_layout
    for one, other in zip(by_rule.rows, brought.rows, strict=True):
        assert (one.id, one.request, one.cluster, one.measured_s) == (
            other.id, other.request, other.cluster, other.measured_s
        )  # fmt: skip
        assert (one.peak_bytes, one.memory_kind, one.outcome) == (other.peak_bytes, other.memory_kind, other.outcome)
        assert (one.sweep, one.repeat_of, one.stage_layers) == (other.sweep, other.repeat_of, other.stage_layers)
        assert one.groups == other.groups


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["common_schema.py", str(tmp_path / "none.csv"), str(tmp_path / "out.csv")])
    assert common_schema.main() == 1
    assert "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
