"""What the layers of a virtual stage keep of one microbatch from the forward to the backward pass, on one rank.

A layer begins as what its blocks save (`LayerBytes`). Mechanisms change that: tensors leave it (`Spared`), and layers
of a virtual stage are recomputed together or wait in the memory of the host (`StageLayers`). Every size is a number or
an array.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.model.numbers import Number, larger


class Spared(NamedTuple):
    """A saved tensor that does not stay on the GPU."""

    name: str
    size_bytes: Number
    to_host: bool
    """Whether it waits in the memory of the host; else it is dropped, and made again in the backward pass."""


class LayerBytes(Struct, frozen=True, dict=True):
    """What one layer keeps of one microbatch, and what passes while it runs."""

    tensors: Mapping[str, Number]
    """Bytes saved with nothing recomputed, by part."""
    dropped: Mapping[str, Number]
    """The part of them that is dropped and made again."""
    away: Mapping[str, Number]
    """The part of them that waits in the memory of the host."""
    recomputed: Number
    """Most of the dropped bytes that are there again at a time while its backward pass runs: those of one block."""
    input_bytes: Number
    """The layer's input, all that is kept of it where it is recomputed whole."""
    forward: Number
    """Gathered inputs while the layer runs."""
    backward: Number
    """Gathered inputs and gradients of the widest part."""
    core: Number = 0.0
    """What attention's core saves, its outputs among them."""
    outputs: Number = 0.0
    """What all GEMMs write."""
    written: Mapping[str, Number] = MappingProxyType({})
    """The same of each module that can keep its output though its layer is recomputed."""

    @property
    def all_bytes(self) -> Number:
        """Everything that is saved with nothing recomputed."""
        return sum(self.tensors.values())

    @cached_property
    def saved(self) -> Mapping[str, Number]:
        """What stays on the GPU by part."""
        kept = {name: size - self.dropped.get(name, 0.0) for name, size in self.tensors.items()}
        kept |= {name: kept[name] - size for name, size in self.away.items()}
        return {name: size for name, size in kept.items() if isinstance(size, np.ndarray) or size}

    @cached_property
    def alone(self) -> "Kept":
        """What it keeps where nothing is done to the layer as a whole."""
        return Kept(
            layers=(self,),
            saved=self.saved,
            away=sum(self.away.values()),
            forward=self.forward,
            backward=self.backward + self.recomputed,
        )


class Kept(Struct, frozen=True, kw_only=True):
    """What one layer keeps of one microbatch, or a few that are recomputed together; equal ones are one object."""

    layers: tuple[LayerBytes, ...]
    saved: Mapping[str, Number]
    """On the GPU, by part."""
    away: Number = 0.0
    """In the memory of the host."""
    forward: Number
    """What passes while the forward pass runs."""
    backward: Number
    recomputed: bool = False
    """Whether its layers are recomputed whole."""


class StageLayers(Struct, frozen=True, kw_only=True):
    """The layers of a virtual stage."""

    layers: tuple[Kept, ...]
    """In their order."""
    extra: tuple[Kept, ...] = ()
    """MTP layers, which no number of layers counts."""
    moving: Number = 0.0
    """Bytes on their way between GPU and host, in each pass."""
    pieces: int = 0
    """In how many pieces, one after another, what is for the host leaves."""

    @property
    def away(self) -> Number:
        """What the host keeps of them."""
        return sum(each.away * count for each, count in kinds(self.layers))


def kinds(kept: Iterable[Kept]) -> Sequence[tuple[Kept, int]]:
    """Return those that differ, with how many there are of each."""
    found: dict[int, tuple[Kept, int]] = {}
    for each in kept:
        _, count = found.get(id(each), (each, 0))
        found[id(each)] = each, count + 1
    return list(found.values())


def most(values: Iterable[Number]) -> Number:
    """Return the largest of some sizes; 0 of none."""
    return reduce(larger, values, 0.0)
