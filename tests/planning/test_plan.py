"""Plans: the layout that is chosen, against every layout of a space simulated, and what the command says."""

import re

import pytest
from msgspec.structs import replace

from traincast import api
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning.layout import Layout
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting

H100 = load_cluster("h100")
SMALL = {"recompute": "none", "tp": (2, 4), "pp": (1, 2, 4), "micro_batch": (1, 2), "vpp": (1, 2, 4)}


def request_of(model="llama3-8b", gpus=16, batch=32, seq_length=4096):
    return JobRequest(model=load_model(model), gpus=gpus, global_batch=batch, seq_length=seq_length)


def simulated(request, layout):
    return forecast(resolve_job(replace(request, **layout.request()), H100), Setting(cluster=H100)).iteration_time_s


@pytest.fixture(scope="module")
def small():
    return api.plan(request_of(), H100, fix=SMALL)


@pytest.mark.slow
def test_the_choice_is_the_best_of_the_whole_space_simulated(small):
    request = request_of()
    steps = []
    for tp in SMALL["tp"]:
        for pp in SMALL["pp"]:
            for micro_batch in SMALL["micro_batch"]:
                for vpp in SMALL["vpp"]:
                    given = {"tp": tp, "pp": pp, "cp": 1, "micro_batch": micro_batch, "vpp": vpp, "recompute": "none"}
                    try:
                        job = resolve_job(replace(request, **given), H100)
                        steps.append(forecast(job, Setting(cluster=H100)).iteration_time_s)
                    except InfeasibleError:
                        continue
    fastest = min(each.step_s for each in small.best)
    assert len(steps) > 20
    assert fastest <= min(steps) * 1.01


def test_the_layouts_are_those_of_their_results(small):
    request = request_of()
    for choice in small.best:
        parallel = choice.result.parallel
        assert (choice.layout.tp, choice.layout.pp, choice.layout.dp) == tuple(parallel[d] for d in ("tp", "pp", "dp"))
        assert choice.step_s == simulated(request, choice.layout)
        assert choice.peak_bytes == pytest.approx(max(each.peak for each in choice.result.memory_bytes))


def test_probabilities_add_up_and_ties_are_with_the_fastest(small):
    assert sum(each.probability for each in small.best) == pytest.approx(1.0, abs=1e-9)
    fastest = min(small.best, key=lambda each: each.step_s)
    assert fastest.tied and small.best[0].tied
    assert all(each.regret >= 0 for each in small.best)
    assert fastest.probability == max(each.probability for each in small.best)


def test_layouts_are_handed_out_as_they_are_estimated_and_the_same_plan_twice_is_the_same(small):
    found = []
    plan = api.plan(request_of(), H100, fix=SMALL, estimated=found.append)
    every = {each.layout: each for some in found for each in some}
    assert len(found) > 1
    assert len(every) == sum(map(len, found)) == plan.feasible
    assert set(plan.estimated) <= set(every.values())
    assert [each.layout for each in plan.best] == [each.layout for each in small.best]
    assert [each.step_s for each in plan.best] == [each.step_s for each in small.best]


def test_who_is_handed_layouts_may_end_the_plan():
    seen = []

    def enough(some):
        seen.extend(some)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.plan(request_of(), H100, fix=SMALL, estimated=enough)
    assert 0 < len(seen) < 200


def test_no_layout_of_the_pareto_set_is_beaten(small):
    for one in small.pareto:
        for other in small.best:
            assert not (other.step_s < one.step_s and other.peak_bytes < one.peak_bytes)


def test_what_the_job_says_is_fixed():
    found = api.plan(
        Draft(model="llama3-8b", fields={"gpus": 16, "global_batch": 32, "tp": 4, "zero": 1}), H100, max_pp=2
    )
    assert {(each.layout.tp, each.layout.zero) for each in found.best if each.layout.dp > 1} == {(4, 1)}
    assert found.seq_length == 8192
    assert "assumed-seq-length" in {note.code for note in found.assumptions}


def test_what_the_job_says_of_software_in_other_words_is_fixed():
    said = {"model": "qwen3-30b-a3b", "cluster": "gb200", "gpus": 8, "global_batch": 64, "seq_length": 4096}
    found = api.plan(**said, ep=8, micro_batch=2, recompute="none", cuda_graphs=False, exp_avg_dtype="fp32", top=1)
    software = dict(found.best[0].layout.software)
    assert not {"cuda_graph_impl", "cuda_graph_scope", "exp_avg_sq_dtype"} & software.keys()
    graphs = api.plan(**said, ep=8, micro_batch=2, recompute="none", top=1)
    assert graphs.best[0].step_s < found.best[0].step_s


def test_more_headroom_needs_less_memory():
    fix = {"tp": (1, 2), "pp": 1, "micro_batch": (1, 2)}
    tight, wide = (api.plan(request_of(), H100, headroom=share, top=1, fix=fix).best[0] for share in (0.0, 0.4))
    assert wide.peak_bytes <= 0.6 * wide.usable_bytes
    assert wide.step_s >= tight.step_s


def test_what_cannot_fit_says_so_with_its_numbers():
    with pytest.raises(InfeasibleError, match=r"none of .* layouts of llama3-70b on 8 GPUs") as refused:
        api.plan(request_of("llama3-70b", 8, 16), H100, fix={"tp": (4, 8)})
    text, needed = str(refused.value), refused.value.needed_bytes
    nearest = re.findall(r"(TP\d PP\d) \S[^;]* needs ([\d.]+) GiB, over by ([\d.]+) GiB", text)
    assert len(nearest) == len({degrees for degrees, *_ in nearest}) == 3
    assert float(nearest[0][1]) == pytest.approx(needed / 2**30, rel=1e-3)
    assert [float(peak) for _, peak, _ in nearest] == sorted(float(peak) for _, peak, _ in nearest)
    for _, peak, over in nearest:
        assert float(peak) - float(over) == pytest.approx(refused.value.limit_bytes / 2**30, abs=0.6)
    with pytest.raises(InfeasibleError, match=r"no layout .* 16 GPUs"):
        api.plan(request_of(), H100, fix={"tp": 3})


@pytest.mark.parametrize("fixed", [{"cp": 2, "ep": 8, "tp": 1, "pp": 1}, {"tp": 2, "etp": 1}])
def test_experts_that_cannot_divide_the_replicas_are_named_where_no_layout_is_left(fixed):
    with pytest.raises(InfeasibleError, match=r"with megatron-core-2024 ep divides dp, and etp is tp"):
        api.plan(request_of("mixtral-8x7b", 8, 64, 8192), H100, framework="megatron-core-2024", fix=fixed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fix": {"tpp": 1}}, "tpp"),
        ({"space": "huge"}, "huge"),
        ({"headroom": 1.0}, "below 1"),
        ({"top": 0}, "least 1"),
        ({"fix": {"tp": 0}}, r"fix\.tp: is 0; it must be a whole number from 1"),
        ({"fix": {"micro_batch": (1, "x")}}, r"fix\.micro_batch: is 'x'"),
        ({"fix": {"schedule": "1f2b"}}, r"fix\.schedule: unknown schedule '1f2b'"),
        ({"fix": {"recompute_modules": "mlp+foo"}}, r"fix\.recompute_modules: unknown module to recompute 'foo'"),
        ({"most": {"zero": 7}}, r"most\.zero: is 7"),
        ({"explain": ({"tp": 0},)}, r"explain\.tp: is 0"),
        ({"explain": ({"tp": (1, 2)},)}, r"explain\.tp: .*one value at a time"),
    ],
)
def test_wrong_options_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        api.plan(request_of(), H100, **given)


def test_a_layout_says_itself_as_fields_of_a_job():
    layout = Layout(
        gpus=16,
        tp=2,
        pp=2,
        vpp=1,
        cp=1,
        dp=4,
        ep=1,
        etp=2,
        micro_batch=1,
        microbatches=8,
        schedule="1f1b",
        sequence_parallel=True,
        zero=1,
        shard=4,
        recompute="none",
    )
    job = resolve_job(replace(request_of(), **layout.request()), H100)
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp, job.sharding.zero) == (2, 2, 4, 1)
    assert layout.text == "TP2 PP2 DP4, micro batch 1, 1f1b, ZeRO-1"


def test_a_run_with_a_budget_of_tokens_is_routed_as_trained():
    job = Draft(
        model="qwen3-30b-a3b",
        fields={"gpus": 16, "global_batch": 32, "seq_length": 4096, "ep": 8, "pp": 1, "micro_batch": 1},
    )
    timed, trained = (api.plan(job, "h100", max_tp=1, top=1, **more) for more in ({}, {"tokens": "1T"}))
    assert trained.asked.request.moe_routing == "trained"
    assert trained.best[0].step_s > timed.best[0].step_s
    said = {each.text for each in trained.assumptions if each.code == "assumed-moe-routing"}
    assert any("trained" in text for text in said)
    own = api.plan(job, "h100", max_tp=1, top=1, tokens="1T", moe_routing="balanced")
    assert own.best[0].step_s == timed.best[0].step_s


@pytest.mark.parametrize("routing", ["trained", "natural"])
def test_the_screen_knows_the_busiest_rank_of_every_share(routing):
    """A layout of more expert ranks is as much longer on arrays as it is when it is simulated."""
    job = Draft(model="qwen3-30b-a3b", fields={"gpus": 16, "global_batch": 64, "seq_length": 4096, "pp": 1, "zero": 1})
    found = api.plan(job, "h100", max_tp=1, top=16, moe_routing=routing)
    ratio = [each.step_s / each.screened_s for each in found.best]
    assert len({each.layout.ep for each in found.best}) > 1 or len({each.layout.micro_batch for each in found.best}) > 1
    assert max(ratio) / min(ratio) < 1.02
