"""`traincast validate --ranking`."""

import csv
import json

from measured_tables import ROWS


def test_the_command_prints_regret_and_json(tmp_path, call):
    path = tmp_path / "runs.csv"
    rows = [{**ROWS[0], "id": f"run-{tp}", "tp": tp, "cp": 1, "num_gpus": 16, "global_batch": 64} for tp in (2, 4)]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    code, out, _ = call("validate", "--ranking", path)
    assert code == 0
    assert "Regret of the choice by forecast: mean" in out
    code, out, _ = call("validate", "--ranking", path, "--json")
    document = json.loads(out)
    assert document["schema"] == "traincast.ranking/1"
    assert document["total"]["mean_regret"] == document["groups"][0]["regret"]
    assert call("validate", "--ranking", path, path)[0] == 2
    assert call("validate", "--ranking", path, "--cv", "family")[0] == 2
    assert call("validate", path, "--leave-out", path)[0] == 2
