"""The ways to execute layouts: what is found for some degrees stands for others that decide it alike."""

import pytest
from msgspec.structs import replace

from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.levels import LEVELS
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
