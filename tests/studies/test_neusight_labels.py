"""NeuSight's graphs held against labels: each runs as its name says, and the errors of both forecasts are compared."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

import neusight_labels as study
import traincast

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples" / "neusight-graph"
LABEL = {"model": "gpt2_large", "mode": "train", "seq": "1024", "batch": "4", "gpu": "h100", "gpus": "1"}
LABEL |= {"option": "", "dtype": "fp32", "measured_ms": "250", "neusight_ms": "200"}


@pytest.fixture
def graphs(tmp_path):
    for path in SAMPLES.glob("*.csv"):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path


def test_a_label_runs_as_its_name_says(graphs):
    one = study.forecast_ms(LABEL, study.graph_of(LABEL, graphs))
    plain = traincast.simulate(SAMPLES / "gpt2_large-train-1024-4.csv", cluster="h100", layers=36, dtype="fp32")
    assert one == pytest.approx(1e3 * plain.iteration_time_s)
    piped = {**LABEL, "option": "pp4_1", "gpus": "4"}
    stages = study.forecast_ms(piped, study.graph_of(piped, graphs))
    # One microbatch goes through four stages one after the other.
    assert stages == pytest.approx(650, rel=0.01) or stages > 0.9 * one


def test_errors_of_both_are_over_the_measurement(graphs):
    found, left = study.held([LABEL, {**LABEL, "batch": "999"}, {**LABEL, "gpu": "abacus"}], graphs)
    (held,) = found
    assert held.their_error == pytest.approx(-0.2)
    assert held.our_error == pytest.approx(held.ours_ms / 250 - 1)
    assert left["NeuSight publishes no graph"] == 1
    assert any("abacus" in reason for reason in left)


def test_figures_are_median_ninetieth_and_bias():
    assert study.figures([-0.1, 0.2, 0.3]) == ["20.0", "28.0", "+20.0"]


def test_the_table_has_all_rows_and_each_group(graphs):
    found, left = study.held([LABEL, {**LABEL, "gpu": "a100"}], graphs)
    console = Console(width=120, record=True)
    with console.capture() as printed:
        study.print_table(found, left, "gpu", console)
    lines = printed.get().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["2", "2", "1", "1"]


def test_without_graphs_it_says_what_is_needed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["neusight_labels.py", "--graphs", str(tmp_path / "none")])
    assert study.main() == 1
    assert "it holds NeuSight's graphs" in capsys.readouterr().err
