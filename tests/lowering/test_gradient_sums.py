"""What adds the gradients of a microbatch to those of the step, where the GEMMs that make them do not."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from traincast.estimate.operators import work_of
from traincast.lowering.stage import stages_of
from traincast.model.structure import FIRST_BLOCKS
from traincast.workload.words import Phase


def calls_of(how, model=TINY, **layout):
    """Return the calls of the backward passes of all stages, and the weights of a rank of each."""
    job = job_of(model, **layout)
    job = replace(job, framework=replace(job.framework, gradient_sum=how))
    calls, elements = [], 0
    for stage in stages_of(job, 8):
        elements += stage.weights().trained
        lookup = {FIRST_BLOCKS: 1} if stage.first else {}
        for blocks in (stage.kinds, stage.ends, lookup):
            calls += stage.total(blocks, Phase.BACKWARD, Phase.WEIGHT_GRADIENT).calls.items()
    return calls, elements


@pytest.mark.parametrize("layout", [{}, {"gpus": 4, "tp": 2, "pp": 2}])
@pytest.mark.parametrize("model", [TINY, TINY_EXPERTS])
def test_every_weight_is_added_once_in_a_microbatch(model, layout):
    """All but norms and biases, which are too small to count."""
    calls, elements = calls_of("kernel", model, **layout)
    added = sum(call.shape[0] * often for call, often in calls if call.family == "accumulate")
    assert 0.97 * elements < added <= elements


@pytest.mark.parametrize(("how", "bytes_each"), [("kernel", 10), ("cast", 18), ("autograd", 6)])
def test_a_sum_moves_the_bytes_that_its_kernels_read_and_write(how, bytes_each):
    """A gradient in 16 bits and the sum in fp32, read and written; by way of a copy in fp32 that is both, too.

    Autograd's sum is in 16 bits as the gradient is.
    """
    calls, _ = calls_of(how)
    call = next(call for call, _ in calls if call.family == "accumulate")
    assert work_of(call).bytes_moved == bytes_each * call.shape[0]


def test_a_gemm_that_adds_writes_in_fp32_and_others_in_16_bits():
    def written(how):
        return {call.options for call, _ in calls_of(how)[0] if call.direction == "wgrad"}

    assert written("gemm") == {()}
    assert written("kernel") == written("autograd") == {(("accumulate", "none"),)}
    assert not [call for call, _ in calls_of("gemm")[0] if call.family == "accumulate"]
