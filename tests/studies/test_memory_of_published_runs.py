"""The memory that public tables print, against the memory model."""

import re

import numpy as np
import pytest

from datafiles import table_path
from published.reading import read_published
from traincast.calibration.kind import Request
from traincast.calibration.kinds.runs import ONE_DEVIATION
from traincast.calibration.kinds.runs import predict_memory as predict
from traincast.estimate.memory.fits import memory_deviation

RUNS, SWEEP = "measured_training_runs.csv", "nanotron_ultrascale_h100.csv"


@pytest.fixture(scope="module")
def published():
    return {name: predict(read_published(table_path(name)), Request()) for name in (RUNS, SWEEP)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [RUNS, SWEEP])
def test_published_memory_is_met(name, published):
    found = published[name]
    assert np.median(np.abs(found.predicted / found.measured - 1)) <= 0.10
    counts = {
        note.code: [int(number) for number in re.findall(r"\b(\d+) (?:runs|are)", note.text)] for note in found.notes
    }
    if "infeasible-crashed" in counts:
        runs, wrong, refused = counts["infeasible-ok"]
        crashed, called, _ = counts["infeasible-crashed"]
        assert wrong <= 0.01 * runs
        assert refused <= wrong
        assert called >= 0.7 * crashed


@pytest.mark.slow
def test_the_deviation_that_chances_follow_from_is_that_of_published_runs(published):
    errors = np.concatenate([np.abs(np.log(each.measured / each.predicted)) for each in published.values()])
    assert memory_deviation() == pytest.approx(np.quantile(errors, ONE_DEVIATION), abs=max(0.01, 1 / errors.size**0.5))
