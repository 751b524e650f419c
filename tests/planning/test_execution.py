"""The ways to execute layouts: what is found for some degrees stands for others that decide it alike."""

import pytest
from msgspec.structs import replace

from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.levels import LEVELS
from traincast.job.parallel import divides_replicas
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.planning.degrees import degrees_of
from traincast.planning.execution import precisions_of
from traincast.planning.space import Space


@pytest.mark.parametrize(
    ("model", "framework", "cluster"),
    [
        ("deepseek-v3", "megatron-core-2026", "gb200"),
        ("mixtral-8x7b", "mlperf-2026", "gb200"),
        ("llama3-8b", "megatron-core-2026", "b200"),
        ("llama3-8b", "torchtitan-2025", "h100"),
    ],
)
def test_degrees_that_decide_alike_have_the_settings_and_ways_that_each_would_have_alone(model, framework, cluster):
    request = JobRequest(model=load_model(model), gpus=64, seq_length=8192, global_batch=128)
    for level in LEVELS:
        space = Space(request=request, framework=load_framework(framework), cluster=load_cluster(cluster), tuned=level)
        assert not vars(replace(space))
        execution, every = space.execution, list(degrees_of(space))
        assert len(every) > 10
        for degrees in every:
            execution.variants(degrees)
        for degrees in every[::7]:
            alone = replace(space).execution
            for precision in (None, *precisions_of(space)):
                assert execution.usual.settings(degrees, precision) == alone.usual.settings(degrees, precision)
            assert execution.variants(degrees) == alone.variants(degrees)


@pytest.mark.parametrize("full", [False, True])
def test_experts_divide_the_replicas_in_every_layout_of_a_framework_that_has_no_others(full):
    request = JobRequest(model=load_model("mixtral-8x7b"), gpus=32, seq_length=8192, global_batch=64)
    cluster = load_cluster("h100")
    folded, divided = (
        [*degrees_of(Space(request=request, framework=load_framework(name), cluster=cluster, full=full))]
        for name in ("megatron-core-2025", "megatron-core-2024")
    )

    def divides(each):
        return divides_replicas(tp=each.tp, etp=each.etp, dp=each.dp, ep=each.ep)

    assert {each.tp for each in divided if each.ep > 1} > {1}
    assert all(map(divides, divided))
    assert not all(map(divides, folded))
