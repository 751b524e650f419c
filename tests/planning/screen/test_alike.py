"""Kinds of virtual stages that are worked out together take what each of them takes alone, to the last bit."""

import numpy as np
import pytest

from traincast.estimate.memory import usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.chunks import ChunkTable, TimedChunk
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.simulation.step import Setting

RECOMPUTED = (Recompute(), Recompute("selective"), Recompute("full", 1), Recompute("full"))


def tables_of(model, gpus, batch, framework, **fixed):
    machine, known = load_cluster("h100"), load_framework(framework)
    request = JobRequest(model=load_model(model), gpus=gpus, global_batch=batch, seq_length=4096, framework=framework)
    fixed = {name: value if isinstance(value, tuple) else (value,) for name, value in fixed.items()}
    space = Space(request=request, framework=known, cluster=machine, fixed=fixed, tuned="usual")
    screen = Screen(space, Setting(cluster=machine), usable_bytes(machine.gpu.memory_bytes))
    return [
        (each.tables, [shape for pp in each.stages for shape in each.tables.shapes(pp)]) for each in screen.families
    ]


def table(tables, expected):
    """Return a table of the shares of a family that knows nothing yet."""
    emit = tables.chunks.emit
    return ChunkTable(tables.costs, MomentEmitter(tables.job, emit.share, emit.rates, emit.overlap_tp, {}), expected)


@pytest.mark.parametrize(
    "said",
    [
        {"model": "llama3-8b", "gpus": 16, "batch": 64, "tp": (1, 2), "cp": (1, 2)},
        {"model": "deepseek-v3", "gpus": 128, "batch": 512, "tp": (1, 2), "cp": 1, "pp": (4, 8), "ep": (8, 16)},
        {"model": "nemotron-h-8b", "gpus": 16, "batch": 64, "tp": (1, 2), "cp": 1},
        {"model": "qwen3-30b-a3b", "gpus": 16, "batch": 64, "tp": 1, "cp": 1, "ep": 8, "moe_a2a_overlap": True},
    ],
    ids=lambda said: said["model"],
)
def test_what_is_worked_out_together_takes_what_it_takes_alone(said):
    seen = 0
    for tables, shapes in tables_of(framework="megatron-bridge-2026", **said):
        splits = [(chunk, shape.plan.splits_backward) for shape in shapes for chunk in shape.chunks]
        wanted = list(dict.fromkeys(TimedChunk(chunk, RECOMPUTED, split) for chunk, split in splits))
        together, alone = table(tables, wanted), table(tables, ())
        for each in wanted:
            one, other = together.times(each), alone.times(each)
            for name in one.__struct_fields__:
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert set(together.emit._known) == set(alone.emit._known)
        for key, rows in alone.emit._known.items():
            assert [row.stream for row in together.emit._known[key]] == [row.stream for row in rows]
        seen += len(wanted) - len({each.alike for each in wanted})
    assert seen > 3  # else nothing was worked out together
