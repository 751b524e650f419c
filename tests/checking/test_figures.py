"""FLOP/s and memory of a log: in the meaning of its framework, against the forecast of the same meaning."""

import pytest

from traincast.checking.expected import by_forecast
from traincast.checking.figures import flops_figure, memory_figure
from traincast.formats.training_log.contract import MemoryDefinition


def meaning(kind):
    return MemoryDefinition(text=f"what is {kind}", source="a test", kind=kind)


def test_memory_is_held_against_the_forecast_of_its_own_meaning(base):
    peak = base.result.peak_bytes
    found = {kind: memory_figure(peak, meaning(kind), base) for kind in ("allocated", "reserved", "device")}
    assert found["allocated"].expected < found["reserved"].expected <= found["device"].expected
    assert found["device"].expected == pytest.approx(peak)
    assert (found["device"].word, found["device"].definition) == ("as expected", "what is device")
    assert memory_figure(2 * peak, meaning("device"), base).word == "more"
    assert memory_figure(peak / 2, meaning("device"), base).word == "less"


def test_flops_of_the_forecast_are_as_expected_and_shrink_as_the_step_grows(base):
    known, flops = by_forecast(base), 1e12 * base.result.tflops_per_gpu
    same = flops_figure(flops, base, known, base.step_s)
    assert same.expected == pytest.approx(flops, rel=1e-6)
    longer = 1.05 * known.high_s / base.step_s
    assert flops_figure(flops / longer, base, known, longer * base.step_s).word == "less"


def test_attention_in_full_is_another_count(base):
    known = by_forecast(base)
    half = flops_figure(1e12 * base.result.tflops_per_gpu, base, known, base.step_s)
    found = flops_figure(1.08 * half.measured, base, known, base.step_s)
    assert half.definition == "causal attention counted half"
    assert found.definition != half.definition
