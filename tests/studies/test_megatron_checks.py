"""What frameworks themselves say of jobs: their rules hold together, and what switches allow they accept."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import megatron_checks
import torchtitan_checks
import traincast
from traincast.errors import TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import FACTS, job_facts
from traincast.job.fields import FIELDS
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.switches import allowed, offered
from traincast.model.load import load_model

MODELS = {
    "deepseek-v3": {"gpus": 256, "global_batch": 2048},
    "qwen3-30b-a3b": {"gpus": 32, "global_batch": 256},
    "gpt-oss-120b": {"gpus": 64, "global_batch": 512},
    "nemotron-3-nano": {"gpus": 16, "global_batch": 128},
    "llama3-8b": {"gpus": 16, "global_batch": 128},
    "llama3-70b": {"gpus": 64, "global_batch": 256},
}
MACHINES = {"h100": ["bf16", "fp8"], "b200": ["bf16", "fp8", "mxfp8", "nvfp4"], "gb200": ["bf16", "mxfp8", "nvfp4"]}
needs_megatron = pytest.mark.skipif(megatron_checks.release() is None, reason="Megatron Core is not installed")
needs_torchtitan = pytest.mark.skipif(not torchtitan_checks.installed(), reason="torchtitan is not installed")


def job(model, cluster="h100", **said):
    request = {"gpus": 8, "global_batch": 64, "seq_length": 4096, "micro_batch": 1, "zero": 1, **said}
    return resolve_job(JobRequest(model=load_model(model), **request), load_cluster(cluster))


@pytest.mark.parametrize("rule", [*megatron_checks.rules(), *torchtitan_checks.rules()], ids=lambda rule: rule.says)
def test_rules_ask_of_facts_that_there_are(rule):
    facts = megatron_checks.rule_facts(job("llama3-8b"), load_cluster("h100"))
    known = {*FIELDS, *FACTS, *facts}
    assert all(each.name in known for each in (*rule.when, *rule.must))
    assert all(each.name in facts for each in rule.must)
    assert "(" in rule.source


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"overlap_param_gather": True, "overlap_grad_reduce": False}, "Must use --overlap-param-gather with"),
        ({"tp": 2, "sequence_parallel": False, "overlap_tp": True}, "only when sequence parallelism is enabled"),
        (
            {"pp": 2, "vpp": 2, "overlap_p2p": False, "gpus": 16},
            "p2p communication overlap is disabled",
        ),
        ({"pp": 4, "vpp": 2, "schedule": "zb_v", "gpus": 8}, "Megatron-LM has no other schedules"),
        ({"pp": 4, "vpp": 2, "schedule": "interleaved", "global_batch": 12}, "not divisible by pipeline-parallel size"),
    ],
)
def test_what_validate_args_refuses_is_refused(said, words):
    found = megatron_checks.refusals(job("llama3-8b", **said), load_cluster("h100"))
    assert any(words in each for each in found)


def test_dispatchers_are_refused_on_machines_that_they_do_not_run_on():
    on = {name: job("qwen3-30b-a3b", name, ep=8, moe_dispatcher="deepep") for name in ("h100", "gb200")}
    assert not megatron_checks.refusals(on["h100"], load_cluster("h100"))
    assert "DeepEP" in megatron_checks.refusals(on["gb200"], load_cluster("gb200"))[0]


@needs_megatron
@pytest.mark.parametrize(
    ("model", "said", "words"),
    [
        ("llama3-8b", {"recompute": "full", "cuda_graph_impl": "transformer_engine"}, "full recompute is only"),
        ("deepseek-v3", {"gpus": 64, "ep": 64, "moe_a2a_overlap": True, "recompute": "full"}, "full recompute"),
        ("qwen3-30b-a3b", {"ep": 8, "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("moe",)}, "moe"),
        ("llama3-8b", {"pp": 2, "vpp": 2, "offload_activations": 2}, "CPU offloading"),
    ],
)
def test_megatron_core_refuses_what_it_cannot_run(model, said, words):
    assert any(words in each for each in megatron_checks.refusals(job(model, **said), load_cluster("h100")))


def drawn(dice, framework):
    """Return the model, machine and settings of some job."""
    name, machine = dice.choice([*MODELS]), dice.choice([*MACHINES])
    model = load_model(name)
    said = {**MODELS[name], "seq_length": 4096, "micro_batch": 1, "framework": framework, "cuda_graph_impl": "none"}
    said |= {"precision": dice.choice(MACHINES[machine]), "tp": dice.choice([1, 1, 2, 4]), "pp": dice.choice([1, 2, 4])}
    said |= {"zero": dice.choice([0, 1, 1, 2, 3]), "recompute": dice.choice(["none", "none", "full", "selective"])}
    if said["pp"] > 1:
        said["vpp"] = dice.choice([1, 2, 3])
    if model.experts is not None:
        said |= {"ep": dice.choice([1, 8, 16, 64]), "etp": 1, "moe_dispatcher": dice.choice(["alltoall", "hybridep"])}
    if said["recompute"] == "selective":
        modules = [("core_attn",), ("moe_act",), ("layernorm", "mla_up_proj"), ("moe",), ("mlp",), ("shared_experts",)]
        said["recompute_modules"] = dice.choice(modules)
    return model, machine, said


def taken(dice, model, cluster, said):
    """Return switches that are allowed together on a job, at most one of each axis, and the job with them."""
    chosen, found = [], resolve_job(JobRequest(model=model, **said), cluster)
    known = offered(found.framework)
    for axis in dice.sample(sorted({each.axis for each in known}), len({each.axis for each in known})):
        for switch in dice.sample([each for each in known if each.axis == axis], 1):
            fields = {name: value for each in (*chosen, switch) for name, value in each.fields.items()}
            try:
                changed = resolve_job(JobRequest(model=model, **{**said, **fields}), cluster)
            except TraincastError:
                continue
            facts = job_facts(changed, cluster)
            if all(allowed(each, facts) is None for each in (*chosen, switch)):
                chosen, found = [*chosen, switch], changed
    return chosen, found


@needs_megatron
@pytest.mark.parametrize("seed", range(4))
def test_megatron_core_accepts_what_switches_allow_together(seed):
    dice, asked = random.Random(seed), 0  # noqa: S311 no secret hangs on it
    while asked < 25:
        model, machine, said = drawn(dice, dice.choice(["megatron-core-2025", "megatron-core-2026"]))
        cluster = load_cluster(machine)
        try:
            plain = resolve_job(JobRequest(model=model, **said), cluster)
        except TraincastError:
            continue
        if megatron_checks.refusals(plain, cluster):
            continue  # the layout itself, with no switch
        chosen, changed = taken(dice, model, cluster, said)
        assert not megatron_checks.refusals(changed, cluster), (said, [each.name for each in chosen])
        asked += 1


@needs_torchtitan
@pytest.mark.parametrize("framework", torchtitan_checks.NAMES)
def test_torchtitan_accepts_what_switches_allow_together(framework):
    dice, asked = random.Random(0), 0  # noqa: S311 no secret hangs on it
    while asked < 15:
        model, machine, said = drawn(dice, framework)
        said |= {"zero": 3, "moe_dispatcher": "alltoall" if model.experts else None}
        said.pop("recompute_modules", None)
        cluster = load_cluster(machine)
        try:
            plain = resolve_job(JobRequest(model=model, **said), cluster)
        except TraincastError:
            continue
        if torchtitan_checks.refusals(plain, cluster):
            continue
        chosen, changed = taken(dice, model, cluster, said)
        if changed.framework.name not in torchtitan_checks.NAMES:
            continue
        assert not torchtitan_checks.refusals(changed, cluster), (said, [each.name for each in chosen])
        asked += 1


@pytest.mark.slow
def test_what_a_plan_proposes_is_asked_about():
    plan = traincast.plan(model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq_length=4096, top=3)
    asked = list(megatron_checks.of_plan(plan))
    assert [text for text, _ in asked] == [each.layout.text for each in plan.best]
    assert not any(said for _, said in asked)


def test_the_rules_are_asked_without_megatron_core():
    text = (
        "import sys; sys.modules['megatron'] = None\n"
        "import megatron_checks\n"
        "assert megatron_checks.release() is None and len(megatron_checks.rules()) > 20"
    )
    here = Path(megatron_checks.__file__).parent
    subprocess.run([sys.executable, "-c", text], check=True, cwd=here)
