"""Switches of software: rows that mean something, needs that hold or say why not, and jobs that can be so."""

import re
from itertools import combinations

import pytest

from traincast.errors import ConfigError
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import FACTS, job_facts, machine_facts, model_facts, precision_facts
from traincast.job.fields import FIELDS, JOB
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.switches import LEVELS, SWITCHES, allowed, offered, read_switches
from traincast.model.load import load_model

ROW = {
    "name": "fused router",
    "axis": "router",
    "settings": "fused_router=true",
    "offered_by": "megatron:2025",
    "level": "usual",
    "always": "yes",
    "needs": "experts;pp=1 or vpp>1",
    "changes": "",
    "asks": "",
    "source": "a page",
}


def job(model, cluster, **said):
    request = {"gpus": 8, "global_batch": 64, "seq_length": 4096, "micro_batch": 1, "zero": 1, **said}
    return resolve_job(JobRequest(model=load_model(model), **request), load_cluster(cluster))


JOBS = [
    ("deepseek-v3", "gb200", {"gpus": 256, "pp": 4, "vpp": 4, "ep": 64, "precision": "mxfp8", "micro_batch": 1}),
    (
        "deepseek-v3",
        "h100",
        {"gpus": 1024, "tp": 2, "pp": 8, "vpp": 2, "ep": 64, "global_batch": 8192, "moe_dispatcher": "alltoall"},
    ),
    ("qwen3-30b-a3b", "gb200", {"ep": 8, "precision": "mxfp8", "moe_dispatcher": "hybridep", "te_op_fuser": True}),
    ("qwen3-30b-a3b", "b200", {"ep": 8, "moe_dispatcher": "alltoall"}),
    ("qwen3-30b-a3b", "h100", {"ep": 8, "moe_dispatcher": "alltoall", "moe_a2a_overlap": True}),
    ("llama3-8b", "h100", {"tp": 2, "precision": "fp8"}),
    ("llama3-8b", "a100", {"zero": 3}),
    ("nemotron-h-56b", "gb200", {"gpus": 64, "tp": 4}),
    ("nemotron-3-nano", "gb200", {"ep": 8}),
    ("llama3-8b", "h100", {"precision": "fp8", "bf16_first_last": True, "unfused": ("rope",), "tp": 2}),
    ("llama3-8b", "h100", {"step_checks": ("params_norm",), "gpus": 16, "task": "sft", "packed_length": 512}),
    ("llama3-8b", "h100", {"framework": "torchtitan-2025", "zero": 3, "precision": "fp8", "tp": 2}),
    ("llama3-8b", "h100", {"framework": "torchtitan-eager-2024", "zero": 3}),
    ("qwen3-30b-a3b", "h100", {"framework": "torchtitan-2025", "zero": 3, "ep": 8}),
    ("llama3-8b", "a100", {"framework": "deepspeed-2024", "zero": 2}),
    ("llama3-8b", "a100", {"framework": "transformers-2024", "zero": 3}),
    ("llama3-8b", "h100", {"framework": "nanotron-2024", "tp": 2}),
]
LATER = {"HybridEP dispatcher of torchtitan", "CUDA graphs of forward and backward pass"}
"""What no framework that is shipped has yet: torchtitan of 2026."""


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_says_what_it_is(switch):
    assert switch.level in LEVELS
    assert switch.fields
    assert all(JOB in FIELDS[name].of for name in switch.fields)
    kins = {load_framework(name).kin for name in framework_names()} | {*framework_names()}
    assert all(kin in kins and 2020 < since < 2030 for kin, since in switch.offered_by)
    assert "(" in switch.source and ("@" in switch.source or "core" in switch.source)
    assert not re.search(r"[.;]$", switch.name + switch.asks + switch.changes)


def test_names_and_settings_are_their_own():
    assert len({switch.name for switch in SWITCHES}) == len(SWITCHES)
    for name in framework_names():
        found = offered(load_framework(name))
        assert len({switch.settings for switch in found}) == len(found), name


def test_rows_of_two_axes_that_set_one_field_otherwise_exclude_each_other():
    for one, other in combinations(SWITCHES, 2):
        shared = {*one.fields} & {*other.fields}
        if one.axis == other.axis or not shared:
            continue
        alike = all(one.fields[name] == other.fields[name] for name in shared)
        both = {**other.fields, **one.fields}
        assert alike or allowed(one, both) or allowed(other, both), (one.name, other.name)


def test_what_a_switch_needs_of_another_axis_stands_above_it():
    for at, switch in enumerate(SWITCHES):
        for need in switch.needs:
            wanted = {each.name: each.values for each in need if each.sign == "=" and "false" not in each.values}
            later = [each for each in SWITCHES[at:] if each.axis != switch.axis and len(need) == 1]
            for each in later:
                met = {name for name, value in each.fields.items() if str(value).lower() in wanted.get(name, ())}
                shared = {*dict(each.offered_by)} & {*dict(switch.offered_by)}
                assert not (met and shared), (switch.name, each.name)


def test_facts_have_other_names_than_fields():
    assert not {*FACTS} & {*FIELDS}


@pytest.mark.parametrize(("model", "cluster", "said"), JOBS)
def test_what_is_allowed_can_be_resolved_and_is_then_so(model, cluster, said):
    plain = job(model, cluster, **said)
    facts, framework = job_facts(plain, load_cluster(cluster)), plain.framework
    taken = [each for each in offered(framework) if allowed(each, facts) is None]
    assert taken
    for switch in taken:
        changed = job(model, cluster, **{**said, **switch.fields})
        assert not any(note.code.endswith("-unused") for note in changed.assumptions), switch.name
        found = job_facts(changed, load_cluster(cluster))
        for name, value in switch.fields.items():
            assert found[name] == value, switch.name


def test_every_switch_is_allowed_on_some_job():
    found = set()
    for model, cluster, said in JOBS:
        plain = job(model, cluster, **said)
        facts = job_facts(plain, load_cluster(cluster))
        found |= {each.name for each in offered(plain.framework) if allowed(each, facts) is None}
    # One hides what another overlaps, and has no effect without.
    hidden = {"weight gradients that hide exchanges with experts, too"} - found
    assert {each.name for each in SWITCHES} - found == LATER | hidden


def test_frameworks_have_what_their_release_has():
    names = {name: {each.name for each in offered(load_framework(name))} for name in framework_names()}
    assert "experts in few fused kernels" in names["megatron-core-2026"]
    assert "experts in few fused kernels" not in names["megatron-core-2025"]
    assert "fused router" in names["megatron-core-2025"]
    assert "fused router" not in names["megatron-core-2024"]


def test_what_is_known_of_model_and_machine_leaves_out_what_cannot_be():
    framework = load_framework("megatron-core-2026")
    dense = model_facts(load_model("llama3-8b")) | machine_facts(load_cluster("h100")) | precision_facts("bf16")
    assert not {"router", "dispatcher", "exchanges", "gathers"} & {each.axis for each in offered(framework, dense)}
    moe = model_facts(load_model("qwen3-30b-a3b")) | machine_facts(load_cluster("gb200")) | precision_facts("mxfp8")
    dispatchers = {each.fields["moe_dispatcher"] for each in offered(framework, moe) if each.axis == "dispatcher"}
    assert dispatchers == {"alltoall", "hybridep"}


@pytest.mark.parametrize(
    ("needs", "facts", "reason"),
    [
        ("experts", {"experts": False}, "needs a model with experts"),
        ("experts=false", {"experts": True}, "cannot be combined with a model with experts"),
        ("ep>1", {"ep": 1}, "needs ep > 1, not 1"),
        ("precision=mxfp8|nvfp4", {"precision": "bf16"}, "needs precision mxfp8 or nvfp4, not bf16"),
        ("recompute!=full", {"recompute": "full"}, "cannot be combined with recompute full"),
        ("pp=1 or vpp>1", {"pp": 4, "vpp": 1}, "needs pp 1, not 4 or needs vpp > 1, not 1"),
        ("capability>=8", {"capability": None}, "needs the compute capability of the GPU >= 8, not unknown"),
        ("pp=1 or vpp>1", {"pp": 4}, None),
        ("pp=1 or vpp>1", {"pp": 4, "vpp": 2}, None),
        ("ep>1", {}, None),
    ],
)
def test_reasons_are_in_words(needs, facts, reason):
    (switch,) = read_switches([ROW | {"needs": needs}])
    assert allowed(switch, facts) == reason


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("settings", "fused_rooter=true", "settings: is 'fused_rooter=true'; write a field of a job and its value"),
        ("settings", "fused_router=maybe", "settings.fused_router: is 'maybe'; it must be true or false"),
        ("settings", "moe_dispatcher=mail", "settings.moe_dispatcher: is 'mail'"),
        ("offered_by", "megatron", "offered_by: is 'megatron'; write a kin and its first year"),
        ("level", "sometimes", "level: is 'sometimes'; it must be usual or best"),
        ("needs", "exports", "needs: is 'exports'; exports is neither a field of a job nor a known fact"),
        ("needs", "ep>many", "needs: is 'ep>many'; 'many' is not a number"),
    ],
)
def test_a_malformed_row_is_refused_with_its_name(column, cell, message):
    with pytest.raises(ConfigError) as raised:
        read_switches([ROW | {column: cell}])
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith("(row 'fused router' of job/switches.csv)")
