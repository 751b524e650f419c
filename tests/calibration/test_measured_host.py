"""What the host of a GPU was measured to take for a launch, from a file of operators to a forecast; runs with it."""

import pytest

import traincast
from traincast.estimate.factors import CostFactors
from traincast.estimate.measured import LAUNCH_S, processor_factor, with_measured
from traincast.estimate.operators.constants import ANY, HOST_LAUNCH, FamilyConstants, write_constants
from traincast.hardware.gpu import load_gpu
from traincast.job.frameworks import load_framework
from traincast.job.options import ConstantsFile
from traincast.workload.words import CostClass

JOB = {
    "model": "llama3.2-1b",
    "framework": "transformers-2024",
    "gpus": 1,
    "seq_length": 256,
    "micro_batch": 1,
    "global_batch": 1,
}
H100 = "H100-SXM-80GB"
SIZES = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def constants(launch_s, path=None, gpu=H100):
    row = FamilyConstants(gpu=gpu, family=HOST_LAUNCH, dtype=ANY, floor_s=launch_s)
    text = write_constants([row])
    if path is not None:
        path.write_text(text)
    return ConstantsFile("mine.csv", text)


def test_launches_take_as_long_as_measured_on_that_gpu_alone():
    gpu, factors, framework = load_gpu(H100), CostFactors({"host layers": 1.5}), load_framework("megatron-core-2025")
    found = with_measured(factors, constants(2 * LAUNCH_S), gpu, framework)
    assert found.factor("host layers") == pytest.approx(1.5 * 2 / gpu.host_slowdown)
    assert found.factor("gemm bf16") == factors.factor("gemm bf16")
    other = with_measured(factors, constants(2 * LAUNCH_S), load_gpu("A100-SXM-80GB"), framework)
    assert other.factor("host layers") == 1.5
    assert with_measured(factors, None, gpu, framework).factor("host layers") == 1.5


@pytest.mark.parametrize(
    ("gpu", "framework", "factor"),
    [
        ("GB200", "megatron-core-2025", 1.3 * 1.41),
        ("GB200", "megatron-bridge-2025", 1.3),
        ("GB300", "megatron-core-2026", 1.3),
        ("GH200", "transformers-2024", 1.3),
        (H100, "megatron-core-2025", 1.0),
        ("A100-SXM-80GB", "megatron-core-2025", 1.4),
    ],
)
def test_builds_of_mid_2025_launch_more_slowly_on_grace(gpu, framework, factor):
    """Of what modules launch; what a step does once has the speed of the processor alone."""
    found = load_gpu(gpu)
    assert processor_factor(load_framework(framework), found, CostClass.HOST_LAYERS) == pytest.approx(factor)
    assert processor_factor(load_framework(framework), found, CostClass.FIXED) == found.host_slowdown
    assert processor_factor(load_framework(framework), found, CostClass.HANDOVER) == 1


def test_a_measured_host_takes_what_was_measured_whatever_was_built():
    gpu, file = load_gpu("GB200"), constants(3 * LAUNCH_S, gpu="GB200-186GB")
    for name in ("megatron-core-2025", "megatron-bridge-2025"):
        framework = load_framework(name)
        found = with_measured(CostFactors({"host layers": 1.5, "fixed": 2.0}), file, gpu, framework)
        layers, fixed = (processor_factor(framework, gpu, each) for each in (CostClass.HOST_LAYERS, CostClass.FIXED))
        assert found.factor("host layers") * layers == pytest.approx(1.5 * 3)
        assert found.factor("fixed") * fixed == pytest.approx(2.0 * 3)


def test_the_median_of_gemms_is_taken_from_a_file_of_operators(tmp_path):
    file = tmp_path / "operators.csv"
    rows = [f"gemm,{size}x{size}x{size},bf16,{2 * size**3 / 6e14:.6g},{10 + at}e-6" for at, size in enumerate(SIZES)]
    others = ["norm,8192x4096,bf16,6e-5,9e-5"]
    file.write_text("\n".join(["family,shape,dtype,time_s,host_s", *rows, *others]) + "\n")
    fitted = traincast.calibrate(file, gpu=H100)
    assert fitted.host.floor_s == pytest.approx((10 + (len(SIZES) - 1) / 2) * 1e-6)
    mine = tmp_path / "mine.csv"
    mine.write_text(fitted.profile())
    assert HOST_LAUNCH in mine.read_text()
    traincast.predict(**JOB, cluster="h100", constants=str(mine))


def test_a_step_that_launches_bind_is_longer_on_a_slow_host(tmp_path):
    file = tmp_path / "slow.csv"
    constants(3 * LAUNCH_S, file)
    usual = traincast.predict(**JOB, cluster="h100").iteration_time_s
    slow = traincast.predict(**JOB, cluster="h100", constants=str(file)).iteration_time_s
    assert slow > 1.5 * usual


def test_runs_that_are_as_constants_say_teach_nothing_more(tmp_path):
    mine = tmp_path / "mine.csv"
    constants(3 * LAUNCH_S, mine)
    step_s = traincast.predict(**JOB, cluster="h100", constants=str(mine)).iteration_time_s
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "id,model,gpu,num_gpus,seq_length,global_batch,micro_batch,tp,pp,framework,precision,step_time_s\n"
        f"a,llama3.2-1b,h100,1,256,1,1,1,1,transformers-2024,bf16,{step_s:.9g}\n"
    )
    together = traincast.calibrate_runs(runs, "h100", constants=mine)
    assert all(each.factor == pytest.approx(1, abs=1e-3) for each in together.cluster.run_factors)
    assert together.runs[0].before_s == pytest.approx(step_s)
    assert all("--constants" in each.source for each in together.cluster.run_factors)
    alone = traincast.calibrate_runs(runs, "h100")
    assert max(each.factor for each in alone.cluster.run_factors) > 1.2


def test_constants_are_for_runs_alone(tmp_path):
    with pytest.raises(traincast.errors.ConfigError, match="constants"):
        traincast.calibrate("examples/kernels_a100.csv", gpu="a100-pcie-40", constants=tmp_path / "mine.csv")
