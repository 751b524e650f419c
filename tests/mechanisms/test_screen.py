"""The screen of a plan sums what mechanisms keep, whichever there are, as the memory of single jobs does."""

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import TINY
from traincast.estimate.memory import JobMemory, usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.mechanisms import all as mechanisms
from traincast.mechanisms.layers import StageLayers
from traincast.mechanisms.mechanism import Lasting, Mechanism
from traincast.mechanisms.rank import Where
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.simulation.step import Setting

H100 = load_cluster("h100")


class Foreign(Mechanism):
    """One that nobody knows: state on the GPU, in the update and on the host, and twice of what passes."""

    def lasting(self, rank):
        yield Lasting("foreign state", 1e3 * rank.trained_share)
        yield Lasting("foreign update", 1e4 * rank.trained_share, Where.UPDATE)
        yield Lasting("foreign state of the host", 8 * rank.trained_share, Where.HOST)

    def kept(self, _job, stage):
        layers = tuple(replace(each, forward=2 * each.forward, backward=2 * each.backward) for each in stage.layers)
        return StageLayers(layers=layers, extra=stage.extra, moving=stage.moving)


def screen_of(**given):
    fixed = {name: (given.pop(name),) for name in ("precision", "zero", "pp", "tp") if name in given}
    request = JobRequest(model=TINY, gpus=8, global_batch=16, seq_length=2048, framework="megatron-core-2025", **given)
    space = Space(request=request, framework=load_framework(request.framework), cluster=H100, full=True, fixed=fixed)
    return Screen(space, Setting(cluster=H100), usable_bytes(H100.gpu.memory_bytes))


def compared(screen, every):
    """Return how many layouts of a screen have the memory of their jobs."""
    count = found = 0
    for block in screen.blocks():
        for part in block.parts():
            for place in range(part.step_s.size):
                count += 1
                if count % every == 0:
                    layout = block.layout(part, place)
                    job = resolve_job(replace(screen.space.request, **layout.request()), H100)
                    peak = part.peak_bytes.reshape(-1)[place % part.peak_bytes.size]
                    assert peak == pytest.approx(JobMemory(job).peak, rel=1e-9), layout.text
                    found += 1
    return found


@pytest.mark.slow
def test_a_plan_knows_what_a_foreign_mechanism_keeps(monkeypatch):
    plain = screen_of(precision="bf16", zero=1, tp=2)
    before = [part.peak_bytes for block in plain.blocks() for part in block.parts()]
    monkeypatch.setattr(mechanisms, "MECHANISMS", (*mechanisms.MECHANISMS, Foreign()))
    screen = screen_of(precision="bf16", zero=1, tp=2)
    after = [part.peak_bytes for block in screen.blocks() for part in block.parts()]
    assert all(np.all(one > other) for one, other in zip(after, before, strict=True))
    assert compared(screen, every=41) > 5
    poor = replace(H100, gpu=replace(H100.gpu, host_memory_bytes=1e6))
    screen = Screen(replace(screen.space, cluster=poor), Setting(cluster=poor), screen.limit_bytes)
    assert all(np.isinf(part.peak_bytes).all() for block in screen.blocks() for part in block.parts())


@pytest.mark.slow
def test_frozen_weights_in_8_bits_are_planned_in_shares():
    """With adapters and zero 3 the screen used to ask for the truth of an array."""
    assert compared(screen_of(task="lora", precision="fp8", zero=3, pp=1), every=23) > 5
