"""What computes the loss: by the framework's code and the job's word, and what a step takes with it."""

import pytest

from job_parts import job_of
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import LOSS_KERNELS, framework_names, load_framework
from traincast.job.share import rank_share
from traincast.model.blocks.ends import LmHead
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting

ONE = {"gpus": 1, "micro_batch": 1, "global_batch": 1, "seq_length": 2048}


def kernels(**changes):
    share = rank_share(job_of("llama3.2-1b", **{**ONE, **changes}))
    return next(part.kernels for part in LmHead().parts(share) if part.name == "loss")


@pytest.mark.parametrize("name", framework_names())
def test_a_loss_is_a_part_of_the_program_where_xla_compiles_it(name):
    framework = load_framework(name)
    assert (framework.loss_code == "xla") == (framework.kin == "xla")


@pytest.mark.parametrize(
    ("framework", "said", "kernel", "code"),
    [
        ("megatron-core-2024", None, "eager", "megatron"),
        ("megatron-core-2024", "compiled", "compiled", "megatron"),
        ("megatron-bridge-2025", None, "fused", "megatron"),
        ("megatron-bridge-2025", "unfused", "eager", "megatron"),
        ("torchtitan-2025", "compiled", "compiled", "torch"),
        ("fms-fsdp-2024", None, "eager", "torch"),
        ("maxtext-tpu-2025", None, "fused", "xla"),
        # One kernel with the gradient, whatever else the library runs kernel by kernel.
        ("transformers-2024", "fused", "fused", "torch"),
    ],
)
def test_a_loss_is_computed_by_what_job_and_framework_say(framework, said, kernel, code):
    (found,) = kernels(framework=framework, loss_kernel=said)
    assert found.family == "cross_entropy"
    assert dict(found.options) == {"kernel": kernel, "code": code}


def test_a_library_launches_its_loss_kernel_by_kernel():
    assert all(each.family == "elementwise" for each in kernels(framework="transformers-2024"))


@pytest.mark.parametrize("framework", ["megatron-core-2025", "torchtitan-2025"])
def test_fewer_passes_over_the_logits_are_never_slower(framework):
    setting = Setting(cluster=load_cluster("h100"))
    steps = [
        run_job(job_of("llama3.2-1b", framework=framework, loss_kernel=kernel, **ONE), setting).step_s
        for kernel in LOSS_KERNELS
    ]
    # Two reads and no write of PyTorch's compiled forward pass are less than a fused kernel's; Megatron's count alike.
    assert steps[0] > max(steps[1:])
    if framework == "torchtitan-2025":
        assert steps[1] < steps[2]
    else:
        assert steps[1] == steps[2]
