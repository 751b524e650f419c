"""Recomputation: what of the activations is dropped after the forward pass and made again for the backward pass.

Of layers that are recomputed whole, a few together, the input of the first is kept. Modules that are recomputed by
themselves drop some tensors of each layer (`traincast.model.recompute`).
"""

from collections.abc import Iterator, Sequence

from traincast.job.job import Job
from traincast.mechanisms.layers import Kept, LayerBytes, Spared, StageLayers, most
from traincast.mechanisms.mechanism import Mechanism
from traincast.model.blocks.part import Part
from traincast.model.numbers import Number, larger
from traincast.model.recompute import DISCARDING_MODULES, RECOMPUTE_KEEPS, available_modules, known_modules


class Recomputing(Mechanism):
    """Recomputation of modules, or of layers whole."""

    def spared(self, job: Job, parts: Sequence[Part]) -> Iterator[Spared]:
        """Return the saved tensors that recomputed modules drop."""
        modules = set(job.recompute.recomputed_modules)
        if not modules:
            return
        for part in parts:
            for name, size in part.saved.items():
                if modules & set(part.drops.get(name, ())):
                    yield Spared(name, size, to_host=False)

    def kept(self, job: Job, stage: StageLayers) -> StageLayers:
        """Return the layers with the first ones in groups that are recomputed; an MTP layer is one of its own."""
        if not job.recompute.whole_layers:
            return stage
        if job.recompute.by_operators:
            layers = tuple(_of_operators(stage.layers))
            return StageLayers(layers=layers, extra=tuple(_of_operators(stage.extra)))
        again = job.recompute.layers_of(len(stage.layers))
        keeps = job.recompute.keeps
        groups = _grouped(stage.layers[:again], job.recompute.group, keeps)
        return StageLayers(layers=(*groups, *stage.layers[again:]), extra=tuple(_grouped(stage.extra, 1, keeps)))

    def remedies(self, job: Job) -> Iterator[tuple[str, Job]]:
        """Return recomputation of scores, of one more module or all cheap ones, and of whole layers."""
        recompute = job.recompute
        if recompute.granularity == "none" and job.kernels.attention == "unfused":
            yield "recompute selective", job.with_values(recompute="selective")
        yield from _more_modules(job)
        if not recompute.all_layers:
            yield "recompute full", job.with_values(recompute="full", recompute_layers=None, recompute_group=1)


def _of_operators(layers: Sequence[Kept]) -> Iterator[Kept]:
    """Yield layers that keep their input, the outputs of attention and of every other GEMM; equal ones are one object.

    Source: torchtitan, distributed/activation_checkpoint.py (_save_list; of aten.mm every second is recomputed).
    """
    found: dict[int, Kept] = {}
    for kept in layers:
        if id(kept) not in found:
            (layer,) = kept.layers
            saved = {
                "layer inputs": layer.input_bytes,
                "attention outputs": layer.core,
                "outputs of GEMMs": layer.outputs / 2,
            }
            again = larger(0.0, layer.all_bytes - sum(saved.values()))
            backward = layer.backward + again
            found[id(kept)] = Kept(
                layers=kept.layers, saved=saved, forward=layer.forward, backward=backward, recomputed=True
            )
        yield found[id(kept)]


def _grouped(layers: Sequence[Kept], count: int, keeps: Sequence[str]) -> Iterator[Kept]:
    """Yield layers that are recomputed so many together from their first input; equal groups are one object.

    The backward pass of a group has gradients of one layer, and all that the group saves.
    """
    found: dict[tuple[int, ...], Kept] = {}
    for first in range(0, len(layers), count):
        group = layers[first : first + count]
        key = tuple(map(id, group))
        if key not in found:
            members = [layer for each in group for layer in each.layers]
            start = members[0].input_bytes
            outputs = sum(_outputs(each, keeps) for each in members)
            found[key] = Kept(
                layers=tuple(members),
                saved={"layer inputs": start} | ({"kept outputs": outputs} if keeps else {}),
                forward=most(layer.forward for layer in members),
                backward=most(layer.backward for layer in members) + (sum(each.all_bytes for each in members) - start),
                recomputed=True,
            )
        yield found[key]


def _outputs(layer: LayerBytes, keeps: Sequence[str]) -> Number:
    """Return the bytes of the outputs that a layer keeps; of one that nothing needs there is none to keep."""
    total: Number = 0.0
    for name in keeps:
        tensor = RECOMPUTE_KEEPS[name]
        if name == "linear_fc1":
            # The GEMM's output alone: the activation function is made again from it.
            total = total + layer.written.get(name, 0.0)
        elif name != "linear_fc2":
            total = total + (layer.tensors.get(tensor, 0.0) if tensor else layer.input_bytes)
    return total


def _more_modules(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the recomputation of one more module, and of all cheap ones together.

    Only where the framework knows modules and layers are not recomputed whole. Fused attention saves next to nothing
    that recomputing it would free.
    """
    if job.recompute.whole_layers or not job.framework.recomputes_modules:
        return
    chosen = job.recompute.recomputed_modules
    more = [name for name in available_modules(job.model) if name not in (*chosen, "core_attn")]
    cheap = [name for name in more if name in DISCARDING_MODULES]
    for names in (*([name] for name in more), *([cheap] if len(cheap) > 1 else [])):
        modules = tuple(each for each in known_modules() if each in (*chosen, *names))
        yield f"recompute {' '.join(names)}", job.with_values(recompute="selective", recompute_modules=modules)
