"""Offloading: what the memory of the host keeps instead of the GPU's, and what is on its way.

What the host updates it keeps as an fp32 copy of the parameters, both moments and gradients (Ren et al. 2021,
arXiv 2101.06840); what that leaves on the GPU say those who keep it (`RankState.updated_here`). Activations wait there
layer by layer, or as the inputs of some modules of every layer (`traincast.job.offload`).
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.offload import OFFLOAD_MODULES
from traincast.mechanisms.layers import Kept, Spared, StageLayers, kinds, most
from traincast.mechanisms.mechanism import Lasting, Mechanism, Update
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Part
from traincast.model.numbers import Number, rounded

GRADIENT_BYTES = 4
"""Of a gradient on its way to the host: it is cast to fp32 before it leaves. Sources: DeepSpeed,
runtime/zero/stage_1_and_2.py (async_inplace_copy_grad_to_fp32_buffer_from_gpu); Megatron-LM, hybrid_optimizer.py
(cpu_copy_map_grad, in the type of the fp32 copy)."""

PARAMETER_BYTES = 2
"""Of an updated parameter on its way back: it is cast to the type of the GPU's before it leaves."""

ADAM_BYTES = 30
"""Of host memory that Adam there reads and writes for each parameter: two fp32 moments and the fp32 parameter both ways
(24), the fp32 gradient (4), the 16-bit parameter (2)."""

HELD_BYTES = 16
"""Of host memory for each parameter that is updated there: its fp32 copy, both moments, its gradient."""

IN_TRAVEL = 2
"""Offloaded layers whose activations are on the GPU at a time: one that runs, one on its way (Transformer Engine,
pytorch/cpu_offload.py)."""


def on_host(job: Job, parameters: Number) -> Number:
    """Return how many of the parameters that a rank updates its host updates."""
    return rounded(job.offload.optimizer * parameters)


def update_bytes(job: Job, parameters: Number) -> tuple[Number, Number, Number]:
    """Return the bytes that go out, through the memory of the host, and come back where so many are updated there."""
    count = on_host(job, parameters)
    out = 0 if job.offloads_gradients else GRADIENT_BYTES * count
    return out, ADAM_BYTES * count, 0 if job.offload.parameters else PARAMETER_BYTES * count


class HostMemory(Mechanism):
    """The memory of the host."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return the state of what the host updates."""
        share = rank.job.offload.optimizer
        if share > 0:
            yield Lasting("optimizer of the host", share * HELD_BYTES * rank.trained_share, Where.HOST)

    def spared(self, job: Job, parts: Sequence[Part]) -> Iterator[Spared]:
        """Return the inputs of offloaded modules, but those that are recomputed."""
        found = {part.counts_as for part in parts}
        kind = "attention" if "attention" in found else "mlp" if found & {"mlp", "experts"} else ""
        names = {name for of, name in map(OFFLOAD_MODULES.__getitem__, job.offload.modules) if of == kind}
        recomputed = set(job.recompute.recomputed_modules)
        for part in parts if names else ():
            for name, size in part.saved.items():
                if name in names and not recomputed & set(part.drops.get(name, ())):
                    yield Spared(name, size, to_host=True)

    def kept(self, job: Job, stage: StageLayers) -> StageLayers:
        """Return the layers with the first ones in the memory of the host, and what is on its way there or back."""
        if job.offload.modules:
            moving = IN_TRAVEL * most(each.away for each, _ in kinds(stage.layers))
            return replace(stage, moving=stage.moving + moving, pieces=sum(len(each.layers) for each in stage.layers))
        return _on_host(stage, job.offload.activations) if job.offload.activations else stage

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


def _on_host(stage: StageLayers, count: int) -> StageLayers:
    """Return the layers of a virtual stage with the first ones in the memory of the host."""
    layers, begun, gone = list(stage.layers), 0, dict[int, Kept]()
    for place, each in enumerate(stage.layers):
        if begun >= count:
            break
        if id(each) not in gone:
            gone[id(each)] = replace(each, saved={}, away=sum(each.saved.values()))
        layers[place] = gone[id(each)]
        begun += len(each.layers)
    pieces = min(count, begun)
    # A layer's activations are there while it runs, and those of the one whose copies are on their way.
    moving = min(pieces, IN_TRAVEL) * most(each.away for each in gone.values() if not each.recomputed)
    return replace(stage, layers=tuple(layers), moving=stage.moving + moving, pieces=pieces)
