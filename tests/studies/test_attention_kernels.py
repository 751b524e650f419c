"""What attention on Hopper is estimated at, against the kernels that were timed on an H100."""

import numpy as np
import pytest

from datafiles import table_path
from traincast.calibration.operators import operators_of
from traincast.calibration.tables import read_table
from traincast.estimate.operators import estimate_operator

KERNELS = ("cudnn", "fa2")
DIRECTIONS = ("forward", "backward")


@pytest.fixture(scope="module")
def ratios():
    """Return estimated over measured time with the call of each timing."""
    measured = operators_of(read_table(table_path("attention_kernels_h100.csv")))
    calls = [calls[0] for calls in measured.calls]
    return [
        (call, estimate_operator(call, gpu).time_s / time_s)
        for call, gpu, time_s in zip(calls, measured.gpu, measured.time_s, strict=True)
    ]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_timed_attention_is_met(ratios, kernel, direction):
    of_kind = [
        ratio for call, ratio in ratios if dict(call.options)["kernel"] == kernel and call.direction == direction
    ]
    assert len(of_kind) > 100
    assert np.median(np.abs(np.array(of_kind) - 1)) < 0.09
    assert np.median(of_kind) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_timed_attention_with_dropout_is_met(ratios, kernel, direction):
    of_kind = [
        ratio
        for call, ratio in ratios
        if dict(call.options) == {"kernel": kernel, "dropout": "yes"} and call.direction == direction
    ]
    assert len(of_kind) == 4
    assert np.median(of_kind) == pytest.approx(1, abs=0.2)


def test_long_sequences_are_met_within_a_tenth(ratios):
    """Of 16 thousand tokens and more, where attention is most of a step, with heads of 128."""
    long = [ratio for call, ratio in ratios if call.causal and call.shape[1] >= 16384 and call.shape[5:] == (128, 128)]
    assert len(long) > 40
    assert np.mean(np.abs(np.array(long) - 1) < 0.1) > 0.85
