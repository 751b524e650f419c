"""The GPU, the cluster and the framework that the page on adding adds, each as one file and nothing else."""

import re
import shutil
from importlib import resources
from pathlib import Path

import pytest
from msgspec.structs import replace

import traincast
from traincast import tables
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.request import JobRequest
from traincast.model.load import load_model

PAGE = (Path(__file__).parents[2] / "docs" / "adding.md").read_text(encoding="utf-8")
JOB = JobRequest(model=load_model("llama3-8b"), gpus=16, tp=2, seq_length=2048, global_batch=16, micro_batch=1)


def of_page(start):
    (text,) = re.findall(rf"```toml\n({re.escape(start)}.*?)```", PAGE, re.DOTALL)
    return text


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Return a copy of the folder of data that is read, to put a file into."""
    folder = tmp_path / "data"
    for kind in ("clusters", "frameworks"):
        shutil.copytree(resources.files("traincast") / "data" / kind, folder / kind)
    monkeypatch.setattr(tables, "_DATA", folder)
    return folder


def test_a_gpu_is_one_file(tmp_path):
    file = tmp_path / "abacus.toml"
    file.write_text(of_page('[gpu]\nname = "Abacus-2"'))
    result = traincast.predict(JOB, str(file))
    assert result.cluster.gpu == "Abacus-2"
    assert result.job.attention_kernel == "cudnn"
    assert result.mfu_peak.flops_per_s == 8e14
    assert traincast.predict(replace(JOB, precision="fp8"), file).iteration_time_s < result.iteration_time_s
    slower = file.with_name("slower.toml")
    slower.write_text(file.read_text().replace("8e14", "4e14", 1))
    assert traincast.predict(JOB, slower).iteration_time_s > result.iteration_time_s


def test_a_cluster_is_one_file_and_has_its_name(shipped, tmp_path):
    text = of_page('base = "h100"')
    (shipped / "clusters" / "halved.toml").write_text(text)
    (tmp_path / "mine.toml").write_text(text)
    assert "halved" in cluster_names()
    named, own, base = (load_cluster(each) for each in ("Halved", tmp_path / "mine.toml", "h100"))
    assert named.inter == own.inter != base.inter
    assert named.intra == base.intra
    assert dict(named.sources)["inter.bandwidth_bytes_per_s"] == "our nccl-tests of May"
    assert traincast.predict(JOB, "halved").iteration_time_s > traincast.predict(JOB, "h100").iteration_time_s


def test_a_framework_is_one_file_and_has_its_name(shipped, tmp_path):
    text = of_page('base = "torchtitan-2025"')
    (shipped / "frameworks" / "ours.toml").write_text(text)
    (tmp_path / "mine.toml").write_text(text)
    assert "ours" in framework_names()
    named, own, base = (load_framework(each) for each in ("Ours", str(tmp_path / "mine.toml"), "torchtitan-2025"))
    assert replace(named, name="mine", sources=own.sources) == own
    assert (named.memory.logit_bytes, named.memory.weight_copies) == (4, base.memory.weight_copies)
    assert dict(named.sources)["memory.logit_bytes"].startswith("our fused loss")
    result = traincast.predict(replace(JOB, framework="ours"), "h100")
    assert (result.job.framework, result.job.attention_kernel, result.job.zero) == ("ours", "cudnn", 3)
    usual = traincast.predict(replace(JOB, framework="torchtitan-2025"), "h100")
    assert result.memory_bytes[0].peak < usual.memory_bytes[0].peak


def test_4_bit_types_are_those_of_the_matrix_units():
    """CDNA 4 scales blocks of 32 (MXFP4) and has no NVFP4; Blackwell takes both."""
    for gpu, taken, refused in (("MI355X", "mxfp4", "nvfp4"), ("b200", "nvfp4", None), ("b200", "mxfp4", None)):
        assert traincast.predict(replace(JOB, precision=taken), gpu).job.precision == taken
        if refused is not None:
            with pytest.raises(traincast.InfeasibleError, match=f"no matrix units for {refused}; use {taken}"):
                traincast.predict(replace(JOB, precision=refused), gpu)
