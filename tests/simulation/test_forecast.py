"""What a forecast says beside its step: rates, memory, interval; and what it refuses."""

import re

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from model_counts import adapter_parameters
from support import forecast
from traincast import api
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.options import LayoutOptions, SimulateOptions, StepOptions
from traincast.job.request import JobRequest
from traincast.model.counts import model_flops_per_token, token_flops
from traincast.model.load import load_model
from traincast.report.json import result_to_dict
from traincast.simulation.forecast import StepRates, above_peak
from traincast.units import format_size

H100 = load_cluster("h100")
CONTRACT = {
    "schema", "iteration_time_s", "breakdown_s", "ranks", "job", "parallel", "interval", "tokens_per_s_per_gpu",
    "tflops_per_gpu", "mfu", "hfu", "mfu_peak", "mfu_16_bit", "hfu_16_bit",
    "memory_bytes", "collectives", "stragglers", "what_if", "measured_s", "inputs",
    "cluster", "assumptions", "warnings", "run", "version",
}  # fmt: skip
BREAKDOWN = {"compute", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "exposed_dp", "bubble", "other"}
MEMORY = ("parameters", "gradients", "optimizer", "activations", "other")
TOO_LARGE = {"gpus": 8, "tp": 8, "zero": 0}


@pytest.mark.parametrize("layout", [{}, {"gpus": 16, "tp": 2, "pp": 2, "cp": 2}, {"gpus": 8, "zero": 3}])
def test_rates_are_the_step_in_other_words(layout):
    job = job_of(**layout)
    result, world = forecast(job, H100), job.parallel.world_size
    step_s = result.iteration_time_s
    flops = model_flops_per_token(job.model, job.batch.seq_length) * job.batch.tokens_per_step
    assert result.tokens_per_s_per_gpu * step_s * world == pytest.approx(job.batch.global_batch * job.batch.seq_length)
    assert result.tflops_per_gpu * 1e12 * step_s * world == pytest.approx(flops)
    peak = H100.gpu.peak_flops_per_s("bf16")
    assert result.mfu == pytest.approx(result.tflops_per_gpu * 1e12 / peak)
    assert result.hfu == pytest.approx(result.mfu)
    assert (result.mfu_peak.dtype, result.mfu_peak.flops_per_s) == ("bf16", peak)
    assert (result.mfu_16_bit, result.hfu_16_bit) == (result.mfu, result.hfu)
    assert sum(result.breakdown_s.values()) == pytest.approx(step_s)
    assert result.interval.low_s < step_s < result.interval.high_s


@pytest.mark.parametrize(
    ("precision", "cluster", "dtype"),
    [
        ("fp8", "h100", "fp8"),
        ("fp8_block", "h100", "fp8"),
        ("mxfp8", "b200", "fp8"),
        ("nvfp4", "gb200", "fp4"),
        ("tf32", "a100", "tf32"),
        ("fp16", "a100", "fp16"),
    ],
)
def test_mfu_is_of_the_peak_of_the_jobs_precision(precision, cluster, dtype):
    """In fp8, 88 % of the bf16 peak are 44 % of what the GPU can do."""
    cluster = load_cluster(cluster)
    gpu = cluster.gpu
    result = forecast(job_of(precision=precision, cluster=cluster.name, recompute="full"), cluster)
    assert (result.mfu_peak.dtype, result.mfu_peak.flops_per_s) == (dtype, gpu.peak_flops_per_s(precision))
    assert result.mfu * result.mfu_peak.flops_per_s == pytest.approx(result.tflops_per_gpu * 1e12)
    assert result.mfu_16_bit * gpu.peak_flops_per_s("bf16") == pytest.approx(result.tflops_per_gpu * 1e12)
    assert result.hfu / result.mfu == pytest.approx(result.hfu_16_bit / result.mfu_16_bit)
    assert result.mfu < 1


def rates(flops_per_s, hardware, precision="fp8", peak=2e15):
    return StepRates(
        tokens_per_s=1.0,
        flops_per_s=flops_per_s,
        hardware_flops_per_s=hardware,
        precision=precision,
        peak_dtype=precision,
        peak_flops_per_s=peak,
        peak_16_bit_flops_per_s=1e15,
    )


def test_no_share_above_100_percent_is_silent():
    assert above_peak(rates(0.8e15, 0.99e15)) == ()
    (beside,) = above_peak(rates(0.9e15, 1.2e15))
    assert "HFU 120.0 % of the dense 16-bit peak: the GEMMs run in fp8, whose peak is 2 x as high" in beside.text
    both = above_peak(rates(2.2e15, 2.2e15))
    assert [note.text.partition(" peak")[0] for note in both] == [
        "MFU 110.0 % and HFU 110.0 % of the dense fp8",
        "MFU 220.0 % and HFU 220.0 % of the dense 16-bit",
    ]
    (alone,) = above_peak(rates(1.1e15, 1.1e15, "bf16", 1e15))
    assert "no GPU does that" in alone.text


def test_a_forecast_hands_the_warning_on(monkeypatch):
    monkeypatch.setattr("traincast.simulation.forecast.rates_of", lambda _: rates(1.1e15, 1.1e15, "bf16", 1e15))
    assert "above-peak" in {note.code for note in forecast(job_of(), H100).warnings}


def test_what_was_forecast_is_told():
    job = job_of(gpus=16, tp=2, pp=2, precision="fp8", seq_length=2048)
    facts = forecast(job, H100).job
    assert (facts.model, facts.framework, facts.precision) == ("tiny", "megatron-core-2025", "fp8")
    assert (facts.seq_length, facts.global_batch, facts.micro_batch) == (2048, 8, 1)
    assert sum(facts.stage_layers) == job.model.layers


@pytest.mark.parametrize(
    ("fields", "again"),
    [
        ({"recompute": "full"}, lambda flops: flops.forward - flops.head),
        ({"recompute": "full", "recompute_layers": 2}, lambda flops: (flops.forward - flops.head) / 4),
        ({"recompute": "full", "recompute_layers": 6, "gpus": 2, "pp": 2, "stage_layers": (7, 1), "vpp": None},
         lambda flops: (flops.forward - flops.head) * 7 / 8),
        ({"recompute": "selective"}, lambda flops: flops.attention_core),
        ({"recompute": "selective", "framework": "torchtitan-2025", "gpus": 2},
         lambda flops: (flops.forward - flops.head) / 2),
    ],
)  # fmt: skip
def test_hardware_flops_count_what_is_computed_again(fields, again):
    job = job_of(**fields)
    result, flops = forecast(job, H100), token_flops(job.model, job.batch.seq_length)
    whole = 3 * flops.forward
    assert result.hfu / result.mfu == pytest.approx((whole + again(flops)) / whole)


def test_memory_adds_up_on_every_stage():
    result = forecast(job_of(TINY_EXPERTS, gpus=16, tp=2, pp=4, ep=2, zero=1), H100)
    assert len(result.memory_bytes) == 4
    for stage in result.memory_bytes:
        assert set(stage) == {*MEMORY, "peak", "usable", "chance_of_oom"}
        assert sum(getattr(stage, name) for name in MEMORY) == pytest.approx(stage.peak)
        assert min(stage.values()) >= 0
        assert stage.parameters > 0


def test_json_has_the_keys_of_the_contract():
    written = result_to_dict(forecast(job_of(gpus=8, tp=2, pp=2), H100))
    assert set(written) >= CONTRACT
    assert written["schema"] == "traincast.result/1"
    assert set(written["breakdown_s"]) == BREAKDOWN
    assert set(written["interval"]) == {"level", "low_s", "high_s"}
    assert set(written["memory_bytes"][0]) == {*MEMORY, "peak", "usable", "chance_of_oom"}
    assert set(written["parallel"]) >= {"world_size", "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatches",
                                        "schedule"}  # fmt: skip


def test_a_job_that_does_not_fit_is_refused_with_what_is_missing():
    job = job_of("llama3-70b", **TOO_LARGE, seq_length=8192)
    with pytest.raises(InfeasibleError, match="allow_oom=True simulates all the same") as refused:
        forecast(job, H100)
    assert re.search(r"[\d.]+ [GT]iB", str(refused.value))
    allowed = forecast(job, H100, allow_oom=True)
    assert "out-of-memory" in {note.code for note in allowed.warnings}
    assert allowed.iteration_time_s > 0
    assert "out-of-memory" not in {note.code for note in forecast(job_of(), H100).warnings}


def test_a_job_that_does_not_fit_is_not_simulated(monkeypatch):
    def ran(*_, **__):
        raise AssertionError("simulated")

    monkeypatch.setattr("traincast.simulation.forecast.run_job", ran)
    with pytest.raises(InfeasibleError):
        forecast(job_of("llama3-70b", **TOO_LARGE), H100)


@pytest.mark.parametrize("options", [SimulateOptions(), SimulateOptions(compute_slowdown={3: 1.2})])
def test_unfolded_and_engines_agree_bit_for_bit(options):
    job = job_of(gpus=16, tp=2, pp=2, cp=2, vpp=2)
    reference = forecast(job, H100, options, engine="reference")
    kernel = forecast(job, H100, options, engine="kernel")
    unfolded = forecast(job, H100, replace(options, unfold=True), engine="kernel")
    assert result_to_dict(reference) == result_to_dict(kernel)
    assert unfolded.iteration_time_s == reference.iteration_time_s
    assert unfolded.breakdown_s == reference.breakdown_s
    assert unfolded.interval == reference.interval
    assert unfolded.mfu == reference.mfu


def test_a_faster_gpu_is_not_slowed_down_more_because_most_of_its_kernels_change_sides():
    """Of this job the backward work of a layer is bound by compute on an H100, most of it by memory on a faster one."""
    layout = {"gpus": 32, "pp": 4, "cp": 2, "zero": 1, "seq_length": 2048, "framework": "eager", "vpp": None}
    job = job_of("mixtral-8x7b", **layout)
    faster = replace(H100, gpu=replace(H100.gpu, bf16_dense_flops_per_s=1.1 * H100.gpu.bf16_dense_flops_per_s))
    before, after = (forecast(job, cluster, allow_oom=True).iteration_time_s for cluster in (H100, faster))
    assert after < before


def test_a_slow_rank_makes_the_step_longer():
    job = job_of("llama3-8b", gpus=16, tp=4, pp=2, seq_length=16384)
    plain = forecast(job, H100)
    slow = forecast(job, H100, SimulateOptions(compute_slowdown={5: 1.3}))
    assert 1.05 < slow.iteration_time_s / plain.iteration_time_s < 1.3


def test_adapters_are_faster_to_train_and_hold_less():
    whole = forecast(job_of("llama3-8b", gpus=8, tp=2, seq_length=8192), H100)
    adapters = forecast(job_of("llama3-8b", gpus=8, tp=2, seq_length=8192, task="lora"), H100)
    assert adapters.iteration_time_s < whole.iteration_time_s
    assert adapters.memory_bytes[0].optimizer < 0.05 * whole.memory_bytes[0].optimizer
    assert adapter_parameters(load_model("llama3-8b"), 16) < 0.01 * 8e9


def test_assumptions_of_the_job_are_those_of_the_result():
    job = job_of(gpus=8, tp=2)
    codes = {note.code for note in job.assumptions}
    assert codes
    assert codes <= {note.code for note in forecast(job, H100).assumptions}


def test_facade_takes_a_request_a_job_and_a_file(tmp_path):
    request = JobRequest(model=load_model("llama3-8b"), gpus=8, tp=8, seq_length=4096, global_batch=8)
    asked = api.predict(request, cluster="h200")
    assert asked.cluster.name == "h200"
    file = tmp_path / "job.toml"
    file.write_text(
        '[model]\nname = "llama3-8b"\n[parallel]\ntp = 8\n[batch]\nseq_length = 4096\nglobal_batch = 8\n'
        '[cluster]\nname = "h200"\ngpus = 8\n'
    )
    assert api.predict(file).iteration_time_s == asked.iteration_time_s
    assert api.predict(file, cluster="a100").iteration_time_s > asked.iteration_time_s
    unnamed = api.predict(request)
    assert "cluster-default" in {note.code for note in unnamed.warnings}


def test_a_cluster_without_a_known_gpu_is_refused():
    other = replace(H100, gpu=replace(H100.gpu, name="abacus", bf16_dense_flops_per_s=None))
    with pytest.raises(ConfigError, match="abacus"):
        forecast(job_of(TINY), other)


def test_a_refusal_for_memory_carries_its_numbers():
    request = JobRequest(model=load_model("llama3-70b"), seq_length=8192, global_batch=8, **TOO_LARGE)
    with pytest.raises(InfeasibleError) as refused:
        api.predict(request, "h100")
    error = refused.value
    allowed = api.predict(request, "h100", allow_oom=True).memory_bytes[error.stage]
    assert (error.needed_bytes, error.limit_bytes) == (allowed.peak, allowed.usable)
    assert f"over by {(error.needed_bytes - error.limit_bytes) / 2**30:.1f} GiB" in str(error)
    with pytest.raises(InfeasibleError, match="do not divide") as refused:
        api.predict(replace(request, gpus=9), "h100")
    assert (refused.value.needed_bytes, refused.value.limit_bytes, refused.value.stage) == (None, None, None)


def test_what_says_the_layout_of_files_is_refused_beside_a_job():
    job, options = job_of(), StepOptions(compute_slowdown={0: 1.5})
    with pytest.raises(ConfigError, match="layout: applies to files; a job says its degrees and its schedule itself"):
        api.predict(job, H100, options=SimulateOptions(layout=LayoutOptions(tp=2)))
    given = [api.predict(job, H100, options=each) for each in (options, SimulateOptions(compute_slowdown={0: 1.5}))]
    assert given[0].iteration_time_s == given[1].iteration_time_s > api.predict(job, H100).iteration_time_s


@pytest.mark.parametrize("framework", ["megatron-core-2026", "megatron-core-2024", "torchtitan-2025", "deepspeed-2024"])
def test_types_of_gradients_and_states_are_assumed_aloud_with_their_bytes(framework):
    job = {"model": "llama3-8b", "cluster": "h100", "gpus": 64, "global_batch": 64, "seq_length": 4096}
    result = api.predict(Draft(**_as_draft(job)), framework=framework, allow_oom=True)
    said = {note.code: note.text for note in result.assumptions}
    assert "main parameters and both moments in fp32: " in said["assumed-state-types"]
    if "assumed-gradient-type" in said:
        text = said["assumed-gradient-type"]
        now = 2 if "in 2 bytes" in text else 4
        other = api.predict(Draft(**_as_draft(job)), framework=framework, grad_reduce_bytes=6 - now, allow_oom=True)
        peak = max(stage.peak for stage in other.memory_bytes)
        assert f"which would be {format_size(peak)} with {6 - now} bytes" in text
        assert "assumed-gradient-type" not in {note.code for note in other.assumptions}


def _as_draft(job):
    fields = dict(job)
    return {"model": fields.pop("model"), "cluster": fields.pop("cluster"), "fields": fields}
