"""A file of a planned layout, pasted back, is the planned layout: the same step and memory, or there is no file."""

import pytest

import traincast
from traincast.dialects import draft_like
from traincast.job.draft import Draft
from traincast.report.exports import exports
from traincast.report.plan_files import write_plan

JOBS = {
    "dense": {
        "model": "llama3-8b",
        "cluster": "h100",
        "gpus": 32,
        "global_batch": 32,
        "seq_length": 4096,
        "grad_reduce_bytes": 2,
    },
    "fp8": {"model": "llama3-8b", "cluster": "b200", "gpus": 16, "global_batch": 64, "precision": "mxfp8"},
    "experts": {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 32, "global_batch": 128, "seq_length": 4096},
    "offload": {"model": "gpt3-13b", "cluster": "a100", "gpus": 32, "global_batch": 64, "allow_offload": True},
    "torchtitan": {
        "model": "llama3-8b",
        "cluster": "h100",
        "gpus": 32,
        "global_batch": 32,
        "framework": "torchtitan-2025",
    },
}
TITAN = {"gpus": 32, "global_batch": 128, "seq_length": 2048, "cluster": "h100", "framework": "torchtitan-2025"}
OF_TITAN = {
    "eight bits": {"model": "llama3-8b", "precision": "fp8"},
    "four times eight bits": {"model": "llama3-8b", "precision": "mxfp8", "cluster": "b200"},
    "narrow gradients": {"model": "llama3-8b", "grad_reduce_bytes": 2},
    "uneven stages": {"model": "gpt3-13b", "pp": 16, "vpp": 2, "schedule": "interleaved", "global_batch": 64},
    "experts": {"model": "qwen3-30b-a3b", "tp": 2, "ep": 8},
    "both directions": {
        "model": "qwen3-30b-a3b",
        "pp": 4,
        "schedule": "dualpipe_v",
        "framework": "torchtitan-eager-2024",
    },
    "little memory": {"model": "llama3-70b", "gpus": 16, "allow_offload": True, "global_batch": 32, "cluster": "h200"},
}
READ = {"megatron.txt": "megatron", "bridge.txt": "bridge"}
ONLY_OF_BRIDGE = "precision.fp8_attention True"
"""What Megatron Core and Megatron-Bridge have and Megatron-LM has no flag for."""


def fast(names, *few):
    """Return the names of all cases, of which all but a few are slow."""
    return [pytest.param(name, marks=() if name in few else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=fast(JOBS, "dense", "torchtitan"))
def plan(request):
    return traincast.plan(**{"seq_length": 2048, **JOBS[request.param]}, top=3)


def planned_loss(choice):
    return choice.result.job.loss_kernel


@pytest.mark.slow
def test_what_is_written_is_the_planned_job_again(plan):
    for choice in plan.shown:
        for export in exports(plan, choice):
            if export.name in READ and export.text is not None:
                words = [word for line in export.text.splitlines() if line[0] != "#" for word in line.split()]
                framework = plan.asked.request.framework or plan.framework
                given = Draft(
                    model=plan.asked.model, cluster=plan.cluster, fields={"gpus": plan.gpus, "framework": framework}
                )
                again = traincast.predict(draft_like(READ[export.name], words).under(given), allow_oom=True)
                assert again.iteration_time_s == pytest.approx(choice.result.iteration_time_s, rel=1e-9)
                # Megatron-LM cannot be told which kernel computes the loss, of which its logits depend.
                said = draft_like(READ[export.name], words).under(Draft(fields={"loss_kernel": planned_loss(choice)}))
                like = traincast.predict(said.under(given), allow_oom=True)
                assert like.peak_bytes == pytest.approx(choice.peak_bytes, rel=1e-9)


def test_megatron_and_bridge_are_written_and_torchtitan_where_it_was_planned_for(plan):
    found = {each.name: each for each in exports(plan, plan.best[0])}
    of_titan = plan.framework.startswith("torchtitan")
    assert found["job.toml"].text
    assert of_titan or found["bridge.txt"].text
    assert of_titan or found["megatron.txt"].text or ONLY_OF_BRIDGE in found["megatron.txt"].why_not
    assert bool(found["torchtitan.toml"].text) == of_titan
    assert of_titan or "planned for megatron-core" in found["torchtitan.toml"].why_not


def test_the_type_of_gradients_is_said(plan, request):
    written = next(each for each in exports(plan, plan.best[0]) if each.name == "megatron.txt")
    if written.text is None:
        assert ONLY_OF_BRIDGE in written.why_not
        return
    asked = JOBS[request.node.callspec.params["plan"]].get("grad_reduce_bytes")
    # What is not asked for is a plan's to choose.
    chosen = asked or dict(plan.best[0].layout.software).get("grad_reduce_bytes", 4)
    assert ("--grad-reduce-in-bf16" in written.text) == (chosen == 2)


def test_what_is_not_written_stands_in_a_file_with_its_reason(plan, tmp_path):
    names = {path.name for path in write_plan(plan, tmp_path / "out")}
    missing = [each for each in exports(plan, plan.best[0]) if each.text is None]
    assert names.isdisjoint(f"best.{each.name}" for each in missing)
    assert ("best.not-written.txt" in names) == bool(missing)
    for each in missing:
        assert (
            f"best.{each.name} is not written: {each.why_not}"
            in (tmp_path / "out" / "best.not-written.txt").read_text()
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", fast(OF_TITAN, "experts", "little memory"))
def test_what_is_planned_for_torchtitan_is_what_it_can_be_told(name):
    """What it has no setting for is not proposed: some layers recomputed whole, activations alone offloaded."""
    found = traincast.plan(**{**TITAN, **OF_TITAN[name]}, top=2)
    for choice in found.best:
        export = next(each for each in exports(found, choice) if each.name == "torchtitan.toml")
        assert export.text, export.why_not
        assert choice.layout.recompute_layers is None and not choice.layout.offload_activations


@pytest.mark.slow
def test_no_schedule_is_planned_that_pytorch_refuses_with_compiled_layers():
    said = {**TITAN, "model": "llama3-8b", "pp": 4}
    compiled, eager = (
        {each.layout.schedule for each in traincast.plan(**said | {"framework": name}).best}
        for name in ("torchtitan-2025", "torchtitan-eager-2024")
    )
    assert "zb_v" in eager
    assert compiled <= {"1f1b", "gpipe", "interleaved"}
