"""Counting settings of published runs: which are new, how far runs with them are from others."""

import csv
import math

import pytest

import published_settings
from measured_tables import run_row as row
from traincast.calibration.runs import run_of


def setup(source, *settings, of=("megatron", "dense")):
    run = run_of(row(source=source, measured_metric="iter_time_s", measured_value="2.0"))
    return published_settings.Setup(run, of, frozenset(settings))


def test_a_setting_is_new_unless_two_runs_of_other_sources_have_it():
    shared, own = ("schedule", "1f1b"), ("schedule", "zb_v")
    found = [setup("a", shared), setup("a", own), setup("a", own), setup("b", shared), setup("b", shared), setup("c")]
    assert published_settings.is_new(found) == [False, True, True, True, True, False]
    # Degrees between published ones are none of their own; other kinds of models are counted apart.
    degrees = [setup("b", ("tp", each)) for each in ("1", "1", "8", "8")]
    assert published_settings.is_new([setup("a", ("tp", "4")), *degrees])[0] is False
    assert published_settings.is_new([setup("a", ("tp", "4"), of=("megatron", "MoE")), *degrees])[0] is True


def test_distances_are_from_the_middle_of_the_known_runs_of_a_family():
    families, ratios = ["f"] * 5 + ["g"], [0.0, 0.02, -0.02, 0.1, -0.1, 5.0]
    far, near, deviation = published_settings.distances(families, ratios, [False, False, False, True, True, True])
    assert (far, near) == (pytest.approx(0.1), pytest.approx(0.02))
    assert deviation == pytest.approx(math.sqrt(0.1**2 - 0.02**2) / 0.6745)


def test_the_shipped_table_is_that_of_the_study():
    rows = published_settings.counted(published_settings.setups())
    with published_settings.FILE.open(encoding="utf-8", newline="") as stream:
        shipped = list(csv.DictReader(stream))
    # What frameworks do by default changes counts now and then; it is written anew with the boards.
    same = [each for each in rows if each in shipped]
    assert len(same) > 0.9 * max(len(rows), len(shipped))
