"""Differences of clock readings carry no digits that only the size of the clock made."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import api
from traincast.formats.echo.lines import resolved_s
from traincast.workload.words import Kind

EXAMPLES = Path(__file__).parents[3] / "examples"


@given(st.integers(0, 10**12), st.integers(0, 10**8))
def test_a_difference_of_two_readings_in_hundredths_of_a_millisecond_is_whole_hundredths(before, elapsed):
    early_s, late_s = before / 1e5, (before + elapsed) / 1e5
    assert resolved_s(late_s - early_s, late_s) == pytest.approx(elapsed / 1e5, rel=1e-15, abs=0)


@given(st.floats(1e-9, 1e3), st.floats(0, 1e9))
def test_rounding_stays_within_what_the_clock_can_tell(elapsed_s, clock_s):
    assert abs(resolved_s(elapsed_s, clock_s) - elapsed_s) <= 2.5e-15 * clock_s * 10
    assert resolved_s(elapsed_s, None) == elapsed_s


@pytest.mark.parametrize("name", ["megatron_rank0_pp2.txt", "megatron_pp4_tp2"])
def test_a_replayed_trace_has_the_digits_of_its_file(name):
    program = api.simulate(EXAMPLES / name, cluster="h100", engine="reference").program
    ops = program.ops
    host_s = [
        float(s) for s, kind in zip(ops.duration_s_T, ops.kind_T, strict=True) if kind in (Kind.GAP, Kind.COMPUTE)
    ]
    assert len(host_s) > 100
    # These traces count hundredths of a millisecond; medians of an even number halve them, other layouts take thirds.
    assert sum(abs(s * 2e5 - round(s * 2e5)) < 1e-6 for s in host_s) > 0.97 * len(host_s)
