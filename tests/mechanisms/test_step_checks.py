"""What is computed in a step to be logged, counted by hand."""

import pytest

from job_parts import TINY, job_of
from traincast.hardware.clusters import load_cluster
from traincast.mechanisms import all as mechanisms
from traincast.model.blocks.part import Elements
from traincast.model.counts import parameters
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting


def runs(**fields):
    weights = Elements(dense=parameters(TINY).total)
    return mechanisms.updated(job_of(gpus=1, **fields), weights, weights.dense // 2).runs


def test_checks_read_parameters_and_gradients_and_leave_the_optimizer_as_it_is():
    total, (adam,) = parameters(TINY).total, runs()
    norm, zeros, last = runs(step_checks=("zeros_in_grad", "params_norm"))
    assert last == adam
    assert (norm.what.shape, zeros.what.shape) == ((total, 1), (total // 2, 1))
    moved = [sum(int(count) for _, count in each.what.options) * 2 for each in (norm, zeros)]
    assert moved == [2 + 4 + 4, 4]
    assert runs(step_checks=("params_norm",)) == (norm, adam)


@pytest.mark.parametrize("layout", [{"gpus": 1}, {"gpus": 8, "tp": 2, "pp": 2}, {"gpus": 8, "zero": 3}])
def test_a_step_with_checks_is_longer(layout):
    setting = Setting(cluster=load_cluster("h100"))
    plain, one, both = (
        run_job(job_of(**layout, step_checks=checks), setting).step_s
        for checks in ((), ("params_norm",), ("params_norm", "zeros_in_grad"))
    )
    assert plain < one < both < 2 * plain
