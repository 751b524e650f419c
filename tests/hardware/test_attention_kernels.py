"""Which GPU runs which attention kernel: refused where it has none, replaced where nobody asked for it."""

import pytest

from job_parts import job_of
from traincast.errors import InfeasibleError
from traincast.hardware.attention_kernels import (
    ATTENTION_KERNELS,
    TITLES,
    check_kernel,
    kernel_instead,
    runs_kernel,
)
from traincast.hardware.clusters import cluster_for
from traincast.hardware.gpu import Gpu, generations, gpu_names, load_gpu
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model

GPUS = [load_gpu(name) for name in gpu_names()]


def test_every_kernel_has_its_row_and_every_row_known_architectures():
    run = {kernel for each in generations().values() for kernel in each.attention}
    assert run == set(TITLES) == set(ATTENTION_KERNELS) - {"unfused"}
    architectures = {gpu.architecture for gpu in GPUS}
    assert architectures == set(generations())


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kernel", ATTENTION_KERNELS)
def test_a_kernel_runs_or_is_refused_and_what_replaces_it_runs(gpu, kernel):
    if runs_kernel(kernel, gpu):
        check_kernel(kernel, gpu)
    else:
        with pytest.raises(InfeasibleError, match=gpu.name) as refused:
            check_kernel(kernel, gpu)
        # What the message proposes must run.
        for each in str(refused.value).rpartition("use ")[2].replace(" or ", ", ").split(", "):
            check_kernel(each, gpu)
    instead, why = kernel_instead(kernel, gpu)
    assert runs_kernel(instead, gpu)
    assert (why is None) == (instead == kernel)


@pytest.mark.parametrize("name", ["v100", "t4", "a100", "l40s", "b200", "mi300x", "tpu-v5p"])
def test_flash_attention_3_is_hoppers_alone(name):
    with pytest.raises(InfeasibleError, match="flash attention 3 needs Hopper; "):
        check_kernel("fa3", load_gpu(name))
    check_kernel("fa3", load_gpu("h200"))


def test_a_job_on_volta_cannot_ask_for_flash_attention():
    volta = cluster_for("V100-SXM2-32GB")
    request = JobRequest(model=load_model("llama3-8b"), gpus=8, seq_length=1024, global_batch=8, attention_kernel="fa3")
    with pytest.raises(InfeasibleError, match="V100-SXM2-32GB is volta: use unfused"):
        resolve_job(request, volta)
    assert job_of(attention_kernel="fa3").kernels.attention == "fa3"


def test_of_an_unknown_gpu_nothing_is_refused_and_little_is_assumed():
    unknown = Gpu(name="Abacus", hbm_bytes=8e10, hbm_bytes_per_s=2e12)
    check_kernel("fa3", unknown)
    assert kernel_instead("cudnn", unknown)[0] == "fa2"
    for kernel in ("unfused", "fa2"):
        assert kernel_instead(kernel, unknown) == (kernel, None)
