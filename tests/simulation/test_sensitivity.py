"""How a step answers to the factors: against numeric derivatives; and how wide its interval is for it."""

import math
from collections import Counter

import pytest
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, job_of
from support import ALONE, run_job, write_cluster
from traincast.diagnostics import Note
from traincast.estimate.factors import CostFactors, Factor, FactorTable, keys_of, prior_deviation, shipped_factors
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import load_gpu
from traincast.job.options import SimulateOptions
from traincast.simulation.confidence import interval, sensitivities
from traincast.simulation.widths import (
    LEVEL,
    LONG,
    TOGETHER,
    UNMEASURED_LINK,
    basis_of,
    deviation,
    shipped_widths,
)

WIDTHS = shipped_widths()

H100 = load_cluster("h100")
PLAIN = SimulateOptions(**ALONE)
MANY = {"seq_length": 4096, "global_batch": 32, "micro_batch": 1}
JOBS = {
    "pipeline": ("llama3-8b", {"gpus": 32, "tp": 8, "pp": 4}, {}),
    "interleaved": ("llama3-8b", {"gpus": 32, "tp": 4, "pp": 4, "vpp": 4, "cp": 2}, {}),
    "alongside gradients": ("llama3-8b", {"gpus": 8, "tp": 8, "overlap_tp": False}, {"transfer tp": 1.3}),
    "sharded": ("llama3-8b", {"gpus": 16, "zero": 3, "framework": "torchtitan-2025"}, {"unhidden fsdp": 1.3}),
    "experts": ("qwen3-30b-a3b", {"gpus": 32, "ep": 8, "pp": 2}, {"transfer ep once": 1.4, "host layers": 0.5}),
    "learnt": ("llama3-8b", {"gpus": 32, "tp": 8, "pp": 4},
               {"unhidden tp": 1.5, "gemm bf16": 1.2, "compute": 1.1, "transfer pp": 2.0, "handover": 3.0}),
}  # fmt: skip


def slopes(job, cluster, base, step=1e-5):
    """Return each reported derivative beside the numeric one."""
    found = {}
    for name, slope in sensitivities(run_job(job, cluster, PLAIN, CostFactors(base))).items():
        logs = []
        for change in (step, -step):
            factors = CostFactors({**base, name: base.get(name, 1.0) * math.exp(change)})
            logs.append(math.log(run_job(job, cluster, PLAIN, factors).step_s))
        found[name] = (slope, (logs[0] - logs[1]) / (2 * step))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", list(JOBS))
def test_slopes_are_the_derivatives_of_the_step(name):
    model, layout, base = JOBS[name]
    found = slopes(job_of(model, **MANY, **layout), H100, base)
    assert len(found) >= 6
    for each, (reported, numeric) in found.items():
        assert reported == pytest.approx(numeric, rel=0.02, abs=1e-6), each


def test_what_is_hidden_shrinks_where_more_cannot_be_hidden(tmp_path):
    """On a slow network hidden transfers are on the path: moving a part of them elsewhere changes nothing."""
    slow = load_cluster(write_cluster(tmp_path / "slow.toml", inter={"bandwidth_bytes_per_s": "10GB/s"}))
    job = job_of("llama3-8b", gpus=32, zero=3, framework="torchtitan-2025", seq_length=2048, global_batch=32)
    found = slopes(job, slow, {})
    for each, (reported, numeric) in found.items():
        assert reported == pytest.approx(numeric, rel=0.02, abs=1e-6), each
    assert found["transfer dp"][0] > 0.5
    assert abs(found["unhidden fsdp"][0]) < 0.5 * found["transfer dp"][0]


def test_classes_that_cover_a_step_scale_all_of_it():
    """Computation, host, fixed work and transfers together are the whole path."""
    job = job_of("llama3-8b", gpus=32, tp=8, pp=4, **MANY)
    found = sensitivities(run_job(job, H100, PLAIN, CostFactors()))
    whole = sum(slope for name, slope in found.items() if name.split(" ")[0] in
                ("compute", "host", "fixed", "handover", "transfer"))  # fmt: skip
    assert whole == pytest.approx(1.0, abs=1e-9)
    parts = sum(slope for name, slope in found.items() if name.split(" ")[0] in
                ("gemm", "attention", "memory", "pointwise", "sums"))  # fmt: skip
    assert parts == pytest.approx(found["compute"])


@pytest.mark.parametrize(
    ("dispatcher", "name"), [("alltoall", "transfer ep inside"), ("deepep", "transfer ep once inside")]
)
def test_factors_scale_their_class_and_no_other(dispatcher, name):
    job = job_of(TINY_EXPERTS, gpus=8, ep=4, tp=2, etp=1, pp=1, moe_dispatcher=dispatcher)
    plain = run_job(job, H100, PLAIN, CostFactors())
    twice = run_job(job, H100, PLAIN, CostFactors({name: 2.0}))

    def times(done):
        return {each.group.name: each.cost.time_s for each in done.step.costs.communications}

    before, after = times(plain), times(twice)
    assert after["EP"] == pytest.approx(2 * before["EP"])
    assert {name: time_s for name, time_s in after.items() if name != "EP"} == {
        name: time_s for name, time_s in before.items() if name != "EP"
    }
    # How often something runs is not what it costs.
    counts = [sorted((each.group.name, each.count) for each in done.step.costs.communications)
              for done in (plain, twice)]  # fmt: skip
    assert counts[0] == counts[1]


def test_a_rate_that_the_user_gives_is_not_scaled():
    job = job_of(gpus=8, tp=8)
    given = SimulateOptions(**ALONE, busbw_bytes_per_s={"tp": 1e11})
    plain = run_job(job, H100, given, CostFactors())
    assert run_job(job, H100, given, CostFactors({"transfer tp": 3.0})).step_s == plain.step_s


def _learnt(job, gpu, names, deviation_each=0.01):
    keys = {key for name in names for key in keys_of(name, gpu, job.framework.name)}
    return FactorTable.from_factors(
        Factor(level=key[0], name=key[1], cost_class=key[2], factor=1.0, deviation=deviation_each, rows=20)
        for key in sorted(keys)
    )


def of_step(done, table, slopes=None, notes=()):
    """Return the deviation of a step, or of what answers to factors in another way."""
    basis = basis_of(done.job, done.gpu, sensitivities(done) if slopes is None else slopes, notes)
    return deviation(basis, table)


def test_deviation_is_the_root_of_the_weighted_variances():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    slopes = sensitivities(done)

    def share(*words):
        return sum(slope for name, slope in slopes.items() if name.split(" ")[0] in words)

    variance = WIDTHS["step"] ** 2
    variance += (WIDTHS["transfers"] * share("transfer")) ** 2 + (WIDTHS["GEMMs"] * share("gemm")) ** 2
    variance += (WIDTHS["launches"] * share("host", "fixed", "handover")) ** 2
    variance += (WIDTHS["few microbatches"] / job.parallel.microbatches) ** 2
    variance += (WIDTHS["overlap"] * share("unhidden")) ** 2
    variance += (WIDTHS["new architecture"] * slopes["compute"]) ** 2
    variance += sum((UNMEASURED_LINK * slope) ** 2 for name, slope in slopes.items() if name.startswith("transfer"))
    shares = Counter()
    for name, slope in slopes.items():
        # GEMMs of two types share the factor of their chip.
        shares.update(dict.fromkeys(keys_of(name, done.gpu, job.framework.name), slope))
    variance += sum((share * prior_deviation(key)) ** 2 for key, share in shares.items())
    assert of_step(done, FactorTable()) == pytest.approx(math.sqrt(variance))


def test_fitted_factors_are_known_better_together_than_each():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    known = of_step(done, FactorTable(), {}) ** 2
    nothing = of_step(done, FactorTable(), {"compute": 1.0}) ** 2
    # What holds a chip's own factor at 1, and a framework's.
    chip, framework = (prior_deviation((level, "", "compute")) for level in ("chip", "framework"))
    assert nothing == pytest.approx(known + WIDTHS["new architecture"] ** 2 + 0.2**2 + framework**2 + chip**2)
    learnt = [(0.02 * (TOGETHER**2 + (1 - TOGETHER**2) * (0.02 / prior) ** 4) ** 0.5) for prior in (0.2, framework)]
    wanted = known + sum(each**2 for each in learnt) + chip**2
    found = of_step(done, _learnt(job, done.gpu, ["compute"], 0.02), {"compute": 1.0})
    assert found == pytest.approx(math.sqrt(wanted))


def test_interval_widens_where_a_choice_was_assumed():
    """Each kind of choice counts once, however many notes say so."""
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    known = of_step(done, FactorTable(), {}) ** 2
    for codes, kinds in (
        (("unknown-framework",), 1),
        (("annotation-axes", "one-microbatch"), 1),
        (("assumed-framework", "assumed-moe-dispatcher"), 2),
        (("padded-vocab",), 0),
    ):
        found = of_step(done, FactorTable(), {}, [Note(code, "") for code in codes]) ** 2
        assert found - known == pytest.approx(kinds * WIDTHS["choices"] ** 2)
    unnamed = replace(done, job=job_of("llama3-8b", gpus=8, tp=8, **{**MANY, "framework": None}))
    assert of_step(unnamed, FactorTable(), {}) ** 2 - known == pytest.approx(WIDTHS["choices"] ** 2)


def test_interval_widens_with_the_distance_from_what_was_measured():
    """By the logarithm of how long a sequence is, and by how few microbatches share what comes once a step."""
    like = {"gpus": 8, "tp": 8, **MANY}
    usual = of_step(run_job(job_of("llama3-8b", **like), H100, PLAIN), FactorTable(), {}) ** 2
    assert usual == pytest.approx(WIDTHS["step"] ** 2 + (WIDTHS["few microbatches"] / 32) ** 2)
    few = of_step(run_job(job_of("llama3-8b", **{**like, "global_batch": 2}), H100, PLAIN), FactorTable(), {}) ** 2
    assert few == pytest.approx(WIDTHS["step"] ** 2 + (WIDTHS["few microbatches"] / 2) ** 2)
    long = job_of("llama3-8b", **{**like, "seq_length": 4 * LONG})
    found = of_step(run_job(long, H100, PLAIN), FactorTable(), {}) ** 2
    assert found - usual == pytest.approx((WIDTHS["context"] * math.log(4)) ** 2)


def test_own_transfers_were_timed_as_the_framework_hides_them():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    own = (
        Factor(level="own", name=job.framework.name, cost_class=name, factor=1.1, deviation=0.0)
        for name in ("compute", "transfer tp")
    )
    compute, transfer = map(FactorTable.from_factors, zip(own, strict=False))
    hidden, exposed = {"compute": 0.5, "transfer tp": 0.5}, {"compute": 0.5, "transfer tp": 0.5, "unhidden tp": 0.2}
    assert of_step(done, compute, exposed) > of_step(done, compute, hidden)
    assert of_step(done, transfer, exposed) == of_step(done, transfer, hidden)


def test_runs_on_a_machine_leave_repeats_and_what_their_factor_leaves():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    own = Factor(level="own", name=job.framework.name, cost_class="compute", factor=1.1, deviation=0.02)
    found = of_step(done, FactorTable.from_factors([own]), {"compute": 0.5, "gemm bf16": 0.4}) ** 2
    assert found == pytest.approx(WIDTHS["step"] ** 2 + (0.5 * 0.02) ** 2)


def on_gpu(done, name):
    """Return a step as it was, said to be of another GPU."""
    layout = done.step.layout
    setting = replace(layout.setting, cluster=replace(layout.setting.cluster, gpu=load_gpu(name)))
    return replace(done, step=replace(done.step, layout=replace(layout, setting=setting)))


def test_interval_is_wider_for_a_framework_and_a_gpu_that_no_run_was_seen_of():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    table = _learnt(job, done.gpu, sensitivities(done))
    known = of_step(done, table)
    other_framework = replace(done, job=replace(job, framework=replace(job.framework, name="my-own-framework")))
    other_gpu = on_gpu(done, "mi300x")
    same_chip = on_gpu(done, "h200")
    same_architecture = on_gpu(done, "h20")
    assert of_step(other_framework, table) > known
    assert of_step(same_chip, table) == known
    assert of_step(other_gpu, table) > of_step(same_architecture, table) > known
    assert of_step(done, FactorTable()) > of_step(other_gpu, table)


def test_interval_reaches_as_many_deviations_to_each_side_as_errors_did():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN)
    found, spread = interval(done, shipped_factors()), of_step(done, shipped_factors())
    assert found.level == LEVEL
    assert math.log(done.step_s / found.low_s) == pytest.approx(WIDTHS["below"] * spread)
    assert math.log(found.high_s / done.step_s) == pytest.approx(WIDTHS["above"] * spread)


def test_a_chip_without_runs_in_the_fit_is_none_that_was_seen():
    job = job_of("llama3-8b", gpus=8, tp=8, **MANY)
    done = run_job(job, H100, PLAIN, CostFactors())
    seen = _learnt(job, done.gpu, ["compute"])
    unseen = FactorTable.from_factors(
        replace(each, rows=0) if each.level == "chip" else each for each in seen.factors.values()
    )
    wider = of_step(done, unseen, {"compute": 1.0}) ** 2 - of_step(done, seen, {"compute": 1.0}) ** 2
    assert wider == pytest.approx(WIDTHS["new architecture"] ** 2)


def test_what_depends_on_more_than_a_factor_is_less_sure():
    job = job_of(TINY_EXPERTS, gpus=8, ep=8, micro_batch=1, moe_dispatcher="alltoall")
    done = run_job(job, H100, PLAIN, CostFactors())
    table = _learnt(done.job, done.gpu, ["gemm bf16", "grouped_gemm bf16", "transfer ep"])
    plain, grouped, sent = (
        of_step(done, table, {name: 0.5}) ** 2 for name in ("gemm bf16", "grouped_gemm bf16", "transfer ep")
    )
    # Both terms are fitted; which is the wider one is for them to say.
    more = 0.25 * (WIDTHS["grouped GEMMs"] ** 2 - WIDTHS["GEMMs"] ** 2)
    assert grouped - plain >= min(0.9 * more, 1.1 * more)
    assert sent - plain >= 0.9 * 0.25 * (WIDTHS["transfers"] ** 2 - WIDTHS["GEMMs"] ** 2)
