import pytest

from job_parts import TINY, job_of, slots, workload_of
from traincast.errors import ConfigError
from traincast.estimate.memory import stage_memory
from traincast.job.optimizer import OptimizerTypes
from traincast.lowering.plans import plan_of_job

BF16 = {"exp_avg": "bf16", "exp_avg_sq": "bf16"}
LAYOUT = {"gpus": 8, "zero": 1, "precision": "bf16"}


@pytest.mark.parametrize(
    ("types", "precision", "gradient_bytes", "kept", "moved"),
    [
        # Kept: main parameter and moments, and a copy of the gradient. Moved: moments, parameters, gradient.
        (OptimizerTypes(), "bf16", 4, 12, 16 + 8 + 2 + 4),
        (OptimizerTypes(), "bf16", 2, 16, 16 + 8 + 2 + 2 + 8),
        # 16 bits of the main parameter are those of the bf16 one.
        (OptimizerTypes(precision_aware=True), "bf16", 4, 10, 16 + 4 + 4 + 4),
        (OptimizerTypes(precision_aware=True), "bf16", 2, 10, 16 + 4 + 4 + 2),
        (OptimizerTypes(precision_aware=True, **BF16), "bf16", 2, 6, 8 + 4 + 4 + 2),
        (OptimizerTypes(precision_aware=True, main_params="fp16", **BF16), "bf16", 2, 6, 8 + 4 + 2 + 2),
        (OptimizerTypes(precision_aware=True, exp_avg="fp8", exp_avg_sq="fp16"), "bf16", 4, 5, 6 + 4 + 4 + 4),
        # An fp16 parameter is not the upper half of an fp32 one.
        (OptimizerTypes(precision_aware=True), "fp16", 4, 12, 16 + 8 + 2 + 4),
        # With 8-bit blocks the framework keeps fp32 main parameters, and copies gradients of 16 bits.
        (OptimizerTypes(precision_aware=True, **BF16), "mxfp8", 2, 12, 8 + 8 + 2 + 2 + 8),
        (OptimizerTypes(precision_aware=True, main_params="fp16", **BF16), "mxfp8", 2, 6, 8 + 4 + 2 + 2),
        (OptimizerTypes(), "fp32", 4, 8, 16 + 8 + 4),
    ],
)
def test_state_and_traffic_of_a_parameter(types, precision, gradient_bytes, kept, moved):
    copied = 4 if types.copies_gradients(precision) and gradient_bytes == 2 else 0
    assert types.main_parameter_bytes(precision) + types.moment_bytes + copied == kept
    assert types.step_bytes(precision, gradient_bytes) == moved


def test_parameters_in_8_bits_are_no_half_of_a_main_parameter():
    types = OptimizerTypes(precision_aware=True)
    assert types.main_parameter_bytes("fp8", 1) == 4
    assert types.step_bytes("fp8", 4, 1) == 16 + 8 + 1 + 4


def optimizer_bytes(**fields):
    job = job_of(TINY, **LAYOUT | fields)
    return stage_memory(job, plan_of_job(job))[0]


@pytest.mark.parametrize(("moments", "share"), [("fp32", 10), ("bf16", 6), ("fp16", 6), ("fp8", 4)])
def test_memory_has_the_types_asked_for(moments, share):
    usual = optimizer_bytes(main_grads_dtype="fp32")
    found = optimizer_bytes(
        precision_aware_optimizer=True, main_grads_dtype="fp32", exp_avg_dtype=moments, exp_avg_sq_dtype=moments
    )
    assert found.optimizer / usual.optimizer == pytest.approx(share / 12)
    assert (found.gradients, found.parameters) == (usual.gradients, usual.parameters)


def test_main_gradients_in_16_bits_halve_their_buffer_and_their_reduction():
    wide, narrow = (
        job_of(TINY, **LAYOUT, precision_aware_optimizer=True, main_grads_dtype=name) for name in ("fp32", "bf16")
    )
    memory = [stage_memory(job, plan_of_job(job))[0] for job in (wide, narrow)]
    assert memory[1].gradients == memory[0].gradients / 2
    assert memory[1].optimizer == memory[0].optimizer
    assert (wide.framework.grad_reduce_bytes, narrow.framework.grad_reduce_bytes) == (4, 2)


def test_the_step_of_the_optimizer_moves_those_bytes():
    def call(**fields):
        workload = workload_of(job_of(TINY, **LAYOUT | fields))
        calls = [call for row in slots(workload, "end") for call, _ in workload.ops.calls_T[row] or ()]
        return next(call for call in calls if call.family == "optimizer")

    assert call().options == ()
    found = call(main_grads_dtype="bf16", exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")
    assert dict(found.options) == {"bytes_per_parameter": "18"}
    assert found.shape == call().shape


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exp_avg_dtype": "int8"}, "unknown type of exp_avg 'int8'; known: fp32, fp16, bf16, fp8"),
        ({"precision_aware_optimizer": False, "exp_avg_dtype": "bf16"}, "can only be fp32"),
        ({"precision_aware_optimizer": True, "zero": 0}, "needs a sharded optimizer"),
        ({"main_grads_dtype": "bf16", "grad_reduce_bytes": 4}, "but grad_reduce_bytes is 4"),
    ],
)
def test_what_the_optimizer_has_not_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        job_of(TINY, **LAYOUT | fields)


def test_types_stand_for_the_optimizer_that_has_them():
    job = job_of(TINY, **LAYOUT, exp_avg_dtype="bf16")
    assert job.optimizer.precision_aware
    assert "assumed-precision-aware-optimizer" in {note.code for note in job.assumptions}
    assert not job_of(TINY, **LAYOUT, exp_avg_dtype="fp32").optimizer.precision_aware
