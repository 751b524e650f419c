"""Offloading: what the memory of the host keeps instead of the GPU's, and what is on its way.

What the host updates it keeps as an fp32 copy of the parameters, both moments and gradients (Ren et al. 2021,
arXiv 2101.06840); what that leaves on the GPU say those who keep it (`RankState.updated_here`). Activations wait there
layer by layer, or as the inputs of some modules of every layer (`traincast.job.offload`).
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.offload import offloaded_tensors
from traincast.mechanisms.layers import Kept, Spared, StageLayers, kinds, most
from traincast.mechanisms.mechanism import Lasting, Mechanism, Update
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Part

HELD_BYTES = 16
"""Of host memory for each parameter that is updated there: its fp32 copy, both moments, its gradient."""

IN_TRAVEL = 2
"""Offloaded layers whose activations are on the GPU at a time: one that runs, one on its way (Transformer Engine,
pytorch/cpu_offload.py)."""


def on_host(job: Job, parameters: int) -> int:
    """Return how many of the parameters that a rank updates its host updates."""
    return round(job.offload.optimizer * parameters)


class HostMemory(Mechanism):
    """The memory of the host."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return the state of what the host updates."""
        share = rank.job.offload.optimizer
        if share > 0:
            yield Lasting("optimizer of the host", share * HELD_BYTES * rank.trained_share, Where.HOST)

    def spared(self, job: Job, parts: Sequence[Part]) -> Iterator[Spared]:
        """Return the inputs of offloaded modules."""
        if job.offload.modules:
            for name, size in offloaded_tensors(parts, job.offload.modules, job.recompute.recomputed_modules):
                yield Spared(name, size, to_host=True)

    def kept(self, job: Job, stage: StageLayers) -> StageLayers:
        """Return the layers with the first ones in the memory of the host, and what is on its way there or back."""
        if job.offload.modules:
            moving = most(each.away for each, _ in kinds(stage.layers))
            return replace(stage, moving=stage.moving + IN_TRAVEL * moving)
        count, whole = job.offload.activations, dict[int, Kept]()
        if not count:
            return stage
        layers, begun, gone = list(stage.layers), 0, 0
        for place, each in enumerate(stage.layers):
            if begun >= count:
                break
            layers[place] = whole.setdefault(id(each), replace(each, saved={}, away=sum(each.saved.values())))
            begun += len(each.layers)
        gone = min(count, begun)
        # A layer's activations are there while it runs, and those of the one whose copies are on their way.
        moving = min(gone, IN_TRAVEL) * most(each.away for each in whole.values() if not each.recomputed)
        return replace(stage, layers=tuple(layers), moving=stage.moving + moving)

    def update(self, job: Job, update: Update) -> Update:
        """Return what the host leaves to update."""
        return replace(update, parameters=update.parameters - on_host(job, update.parameters))

    def host_remedies(self, job: Job) -> Iterator[tuple[str, Job]]:
        """Return what the host may keep as far as it does not: optimizer states, activations of all layers.

        Activations that are recomputed whole are small, and stay. Those of modules go with their layers.
        """
        layers, state = job.pipeline.most_layers, job.with_values(offload_optimizer=1.0)
        changed = {"offload_optimizer 1": state} if job.offload.optimizer < 1 else {}
        if job.offload.activations < layers and not job.recompute.whole_layers:
            changed[f"offload_activations {layers}"] = _with_layers(job, layers)
        yield from changed.items()
        if len(changed) > 1:
            yield " with ".join(changed), _with_layers(state, layers)


def _with_layers(job: Job, layers: int) -> Job:
    return job.with_values(offload_activations=layers, offload_modules=())
