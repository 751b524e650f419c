"""Other spellings of what a job computes in and recomputes: the type of 4 bits of a chip, modules behind a colon."""

import pytest

import traincast
from traincast.errors import ConfigError, InfeasibleError, TraincastError
from traincast.hardware.clusters import cluster_for
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.job.precision import precision_on
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.model.recompute import RECOMPUTE_MODULES

JOB = {"model": load_model("llama3-8b"), "gpus": 8, "seq_length": 1024, "global_batch": 8}


@pytest.mark.parametrize("name", gpu_names())
def test_fp4_is_the_type_of_4_bits_that_a_chip_has(name):
    gpu = load_gpu(name)
    own = [each for each in gpu.generation.scaled_blocks if each.endswith("fp4")]
    if own and gpu.has_peak("fp4"):
        assert precision_on("fp4", gpu) == own[0]
        job = resolve_job(JobRequest(**JOB, precision="fp4"), cluster_for(name))
        assert job.precision.dtype == own[0]
        assert any(own[0] in note.text for note in job.assumptions if note.code == "precision-of-gpu")
        named = resolve_job(JobRequest(**JOB, precision=own[0]), cluster_for(name))
        assert "precision-of-gpu" not in {note.code for note in named.assumptions}
        return
    with pytest.raises(InfeasibleError, match=r"no matrix units for a 4-bit type.*; use (fp8|bf16)"):
        precision_on("fp4", gpu)


def test_each_vendor_has_its_own_type_of_4_bits():
    found = {precision_on("fp4", load_gpu(name)) for name in ("b200", "gb300", "mi355x")}
    assert found == {"nvfp4", "mxfp4"}
    with pytest.raises(ConfigError, match="nvfp4 or mxfp4"):
        resolve_job(JobRequest(**JOB, precision="fp4"))


@pytest.mark.parametrize("colon", [":", ": "])
@pytest.mark.parametrize("modules", [("mlp",), ("core_attn", "layernorm"), ("mlp", "core_attn")])
def test_modules_behind_selective_are_the_modules_that_are_recomputed(modules, colon):
    assert set(modules) <= set(RECOMPUTE_MODULES)
    plain = resolve_job(JobRequest(**JOB, recompute="selective", recompute_modules=modules))
    assert resolve_job(JobRequest(**JOB, recompute=f"selective{colon}{','.join(modules)}")) == plain


@pytest.mark.parametrize("wrong", ["full:mlp", "none:mlp", "selective:", "selective:mpl", "partly:mlp"])
def test_modules_that_mean_nothing_are_refused(wrong):
    with pytest.raises(TraincastError):
        resolve_job(JobRequest(**JOB, recompute=wrong))


def test_modules_that_contradict_are_refused():
    with pytest.raises(ConfigError, match="name the modules once"):
        resolve_job(JobRequest(**JOB, recompute="selective:mlp", recompute_modules=("core_attn",)))


def test_one_name_of_a_cluster_or_a_model_is_a_list_of_one():
    assert traincast.clusters("h100") == traincast.clusters(["h100"])
    assert traincast.models("llama3-8b") == traincast.models(["llama3-8b"])
