"""The accelerators: every spelling of the data files, bounds of the datasheet values, refusals."""

import pytest
from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.cluster import INTRA_KINDS
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.dtypes import PEAK_OF_DTYPE
from traincast.hardware.gpu import (
    HOST_CPUS,
    Generation,
    Gpu,
    filled,
    find_datasheet,
    find_gpu,
    generations,
    gpu_names,
    load_gpu,
)
from traincast.shipped import SHIPPED, shipped_rows

SPELLINGS = {
    "H100-SXM-80GB": ("h100", "H100-SXM-80GB", "h100_sxm", "NVIDIA_H100_80GB_HBM3", "H100-80 HBM3", "H100 SXM5"),
    "A100-PCIe-40GB": ("A100-PCIE-40GB", "NVIDIA_A100-PCIE-40GB", "A100-PCIE-40"),
    "A100-PCIe-80GB": ("NVIDIA_A100_80GB_PCIe", "A100-PCIe"),
    "A100-SXM-40GB": ("NVIDIA_A100-SXM4-40GB",),
    "A100-SXM-80GB": ("a100", "a100_sxm"),
    "GB200-186GB": ("GB200 (per GPU)", "GB200-NVL72", "gb200"),
    "V100-SXM2-16GB": ("V100-SXM2-16GB",),
    "V100-SXM2-32GB": ("V100-SXM2",),
    "H100-96GB-HBM2e-500W": ("H100-96GB-HBM2e-500W",),
    "TPU-v6e": ("TPU-v6e (Trillium)",),
    "Ascend-910B": ("Ascend-910B (Atlas 900 A2 PODc)",),
    "MI250-GCD": ("AMD_Instinct_MI250",),
    "T4": ("Tesla_T4",),
}


@pytest.mark.parametrize(("name", "spellings"), SPELLINGS.items())
def test_spellings_of_data_files_and_drivers_are_known(name, spellings):
    assert {load_gpu(each).name for each in spellings} == {name}


def test_names_are_distinct_and_found_under_themselves():
    names = gpu_names()
    assert len(set(names)) == len(names) >= 31
    assert all(load_gpu(name).name == name for name in names)


@pytest.mark.parametrize("name", gpu_names())
def test_a_datasheet_is_plausible(name):
    gpu = load_gpu(name)
    peaks = {dtype: gpu.peak_flops_per_s(dtype) for dtype in PEAK_OF_DTYPE if gpu.has_peak(dtype)}
    assert peaks
    assert all(1e12 < peak < 2e16 for peak in peaks.values())
    assert peaks.get("fp8", 1e30) >= peaks.get("bf16", 0)
    assert peaks.get("fp4", 1e30) >= peaks.get("fp8", 0)
    assert 4e9 < gpu.hbm_bytes < 400e9
    assert 1e11 < gpu.hbm_bytes_per_s < 1e13
    # A byte of memory takes longer than a byte of arithmetic can use: a slip of a unit shows here.
    assert 5 < max(peaks.values()) / gpu.hbm_bytes_per_s < 3000
    assert find_datasheet(name).source
    assert find_datasheet(name).confidence in ("high", "medium", "low")
    assert gpu.architecture in generations()
    assert all(other in gpu_names() and other != name for other in (*gpu.kin, *filter(None, [gpu.chip])))
    assert gpu.link_kind in ("", *INTRA_KINDS)
    assert gpu.host_cpu in ("", *HOST_CPUS)


def test_an_unknown_gpu_lists_the_known_ones():
    assert find_gpu("abacus") is None
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'abacus'; known: V100-SXM2-32GB, .*H100-SXM-80GB"):
        load_gpu("abacus")


def test_a_peak_that_is_missing_is_an_error_and_names_those_there():
    with pytest.raises(ConfigError, match="A100-SXM-80GB has no known peak for fp8; it has one for bf16, fp16"):
        load_gpu("a100").peak_flops_per_s("fp8")
    with pytest.raises(UnknownNameError, match="int3"):
        load_gpu("a100").peak_flops_per_s("int3")
    assert [load_gpu("b200").has_peak(dtype) for dtype in PEAK_OF_DTYPE] == [True] * len(PEAK_OF_DTYPE)
    assert not load_gpu("b200").has_peak("int3")


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_has_an_accelerator(name):
    gpu = load_cluster(name).gpu
    assert gpu.peak_flops_per_s("bf16") == load_gpu(gpu.name).bf16_dense_flops_per_s
    assert (gpu.memory_bytes, gpu.memory_bytes_per_s) == (gpu.hbm_bytes, gpu.hbm_bytes_per_s)


def test_what_is_said_of_a_gpu_goes_before_its_datasheet():
    gpu = filled(Gpu(name="h100", bf16_dense_flops_per_s=5e14, hbm_bytes_per_s=1e12))
    assert gpu.peak_flops_per_s("bf16") == gpu.peak_flops_per_s("fp16") == 5e14
    assert gpu.hbm_bytes_per_s == 1e12
    assert gpu == replace(
        load_gpu("h100"), bf16_dense_flops_per_s=5e14, fp16_dense_flops_per_s=5e14, hbm_bytes_per_s=1e12
    )
    assert filled(gpu) == gpu
    both = filled(Gpu(name="h100", bf16_dense_flops_per_s=5e14, fp16_dense_flops_per_s=4e14))
    assert (both.bf16_dense_flops_per_s, both.fp16_dense_flops_per_s) == (5e14, 4e14)


@pytest.mark.parametrize("name", gpu_names())
def test_a_datasheet_fills_itself_and_any_cluster(name):
    assert filled(load_gpu(name)) == filled(Gpu(name=name)) == load_gpu(name)
    assert replace(load_cluster("h100"), gpu=Gpu(name=name)).gpu == load_gpu(name)


def test_of_a_gpu_without_a_datasheet_only_what_is_said_is_known():
    own = filled(Gpu(name="Abacus", bf16_dense_flops_per_s=1e15, hbm_bytes=10**11, hbm_bytes_per_s=4e12))
    assert (own.peak_flops_per_s("bf16"), own.peak_flops_per_s("fp16"), own.sms) == (1e15, 1e15, None)
    assert (own.generation, own.nccl_row, own.vendor) == (Generation(), None, "")
    blank = Gpu(name="Abacus")
    for field, ask in (
        ("hbm_bytes", lambda: blank.memory_bytes),
        ("hbm_bytes_per_s", lambda: blank.memory_bytes_per_s),
        ("bf16_dense_flops_per_s", lambda: blank.peak_flops_per_s("fp8")),
    ):
        with pytest.raises(ConfigError, match=rf"gpu\.{field}: is not known of 'Abacus'; give it"):
            ask()


@pytest.mark.parametrize("name", gpu_names())
def test_a_name_with_its_generation_behind_it_is_found(name):
    """As tables print it: ``A100-SXM (Ampere)``."""
    gpu = load_gpu(name)
    for title in (gpu.generation.title, gpu.architecture):
        assert load_gpu(f"{name} ({title})") == gpu
    assert find_gpu(f"{name} (per day)") is None


def test_every_gpu_that_a_shipped_table_names_is_known():
    named = {}
    for path in SHIPPED.rglob("*.csv"):
        rows = list(shipped_rows(path.relative_to(SHIPPED).as_posix()))
        named[path] = {row["gpu"] for row in rows if "gpu" in row} - {"", "*"}
    assert any(named.values())
    assert not {each for names in named.values() for each in names if find_gpu(each) is None}
