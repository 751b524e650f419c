"""Validations and collective tables as documents, files and for people."""

import csv
import io
import json

import pytest

import traincast
from traincast.errors import ConfigError
from traincast.report.csv import predictions_csv
from traincast.report.files import write_whole
from traincast.report.json import collective_to_dict, encode, validation_to_dict
from traincast.report.terminal.accuracy import print_validation
from traincast.report.terminal.estimates import print_collective


@pytest.fixture
def validation(tmp_path):
    path = tmp_path / "runs.csv"
    lines = ["id,gpu,op,num_gpus,message_bytes,time_us"]
    lines += [f"r{size},h100,all_reduce,8,{2**size},{10 + 2**size / 2e5}" for size in range(10, 30, 2)]
    lines += ["odd,[red]abacus[/red],all_reduce,8,8,1", "one,h100,all_reduce,1,8,1"]
    path.write_text("\n".join(lines) + "\n")
    return traincast.validate(path)


FIGURES = [
    *("rows", "evaluated", "coverage", "mean_abs_error", "median_abs_error", "p90_abs_error", "p95_abs_error"),
    *("bias", "spearman", "interval_coverage"),
]


def test_the_document_keeps_its_keys(validation):
    document = json.loads(encode(validation_to_dict(validation)))
    head = [
        "schema",
        *FIGURES,
        "skipped",
        "groups",
        "counted_once",
        "worst",
        "worst_groups",
        "file",
        "kind",
        "quantity",
        "notes",
        "held_out",
    ]
    assert list(document) == head
    assert document["schema"] == "traincast.validation/1"
    assert (document["rows"], document["evaluated"]) == (12, 10)
    assert document["interval_coverage"] is None
    assert [list(each) for each in document["skipped"]] == [["id", "reason"]] * 2
    assert all(list(each) == ["by", "name", *FIGURES] for each in document["groups"])
    assert list(document["worst"][0]) == ["id", "measured", "predicted", "error", "details"]


def test_every_prediction_is_in_the_file(validation):
    rows = list(csv.DictReader(io.StringIO(predictions_csv(validation).decode())))
    assert [row["id"] for row in rows] == [*(f"r{size}" for size in range(10, 30, 2)), "odd"]
    for row in rows[:-1]:
        measured, predicted = float(row["measured_time_s"]), float(row["predicted_time_s"])
        assert float(row["error"]) == predicted / measured - 1
    assert (rows[-1]["predicted_time_s"], rows[-1]["error"], rows[-1]["algorithm"]) == ("", "", "")
    assert rows[0]["cluster"] == "h100"


def test_a_validation_for_people(validation, shown):
    out = shown(print_validation, validation)
    assert out.startswith("Median error ")
    assert "10 of 12 rows predicted (83.3 %)" in out
    assert "by size" in out
    assert "<= 64 KiB" in out
    assert "'[red]abacus[/red]'" in out
    assert "1 row: one rank: a local copy (first: one)" in out
    assert max(map(len, out.splitlines())) <= 80
    assert shown(print_validation, validation, encoding="ascii").isascii()


def test_nothing_predicted_is_said(tmp_path, shown):
    path = tmp_path / "runs.csv"
    path.write_text("ranks,size_bytes,time_us\n8,1024,5\n")
    out = shown(print_validation, traincast.validate(path))
    assert out.startswith("No row could be predicted")
    assert "1 row: the GPU is not specified; give a cluster (first: line 2)" in out


def test_a_collective_for_people_and_machines(shown):
    table = traincast.collective("alltoall", (1024, 2**33), gpus=16, cluster="h100")
    out = shown(print_collective, table)
    assert out.startswith("all-to-all over 16 ranks on 2 nodes of h100\n")
    assert len(out.splitlines()) == 3 + 24
    assert max(map(len, out.splitlines())) <= 80
    document = json.loads(encode(collective_to_dict(table)))
    assert document["schema"] == "traincast.collective/1"
    assert [row["size_bytes"] for row in document["rows"]] == [2**size for size in range(10, 34)]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(ConfigError, match=r"out\.csv cannot be written: No space left"):
        write_whole(path, b"three")
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]
    with pytest.raises(ConfigError, match="is a directory"):
        write_whole(tmp_path, b"")
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_whole(tmp_path / "none" / "out.csv", b"")
