"""How the layers of a model are split over the virtual stages of a pipeline, as frameworks do it.

Virtual stage q runs on stage ``q % pp``; counts are in model order.
Sources: Megatron-LM, megatron/core/transformer/transformer_block.py (get_num_layers_to_build) and
pipeline_parallel_layer_layout.py; DeepSpeed, runtime/pipe/module.py (partition_balanced).
"""

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.units import counted


class Split(Struct, frozen=True, kw_only=True):
    """What decides the split of a model's layers."""

    layers: int
    """Layers of the model."""
    pp: int
    vpp: int
    """Pipeline stages and virtual stages on each."""
    uneven: str = "short_last"
    """One of `traincast.job.frameworks.UNEVEN_SPLITS`, for layers that do not divide."""
    counts_embedding: bool = False
    """Embedding and head may count as a layer each where that makes the layers divide."""
    first: int | None = None
    last: int | None = None
    """Layers of the first and last stage over all their virtual stages."""
    embedding: bool = False
    head: bool = False
    """The embedding, or the head, counts as a layer."""

    @property
    def chunks(self) -> int:
        """Virtual stages in all."""
        return self.pp * self.vpp


def split_layers(split: Split) -> tuple[tuple[int, ...], str]:
    """Return the layers of each virtual stage in model order, and the rule that gave them, with its arithmetic.

    Raises
    ------
    ConfigError
        If the first and last stage are given in a way that cannot be.
    InfeasibleError
        If there are fewer layers than virtual stages, or they do not divide as asked.
    """
    if split.first is not None or split.last is not None:
        return _given_ends(split)
    if split.embedding or split.head:
        found = _counted_ends(split, embedding=split.embedding, head=split.head)
        if found is None:
            raise InfeasibleError(
                f"{counted(split.layers, 'layer')} with "
                f"{' and '.join(['the embedding'] * split.embedding + ['the head'] * split.head)} counted as one each "
                f"do not divide into pp {split.pp} x vpp {split.vpp} = {split.chunks} virtual stages; change pp or vpp"
            )
        return found
    return even_split(split) or _uneven(split)


def even_split(split: Split) -> tuple[tuple[int, ...], str] | None:
    """Return the split where the layers divide, alone or with embedding and head; None where they do not."""
    if split.embedding or split.head:
        return _counted_ends(split, embedding=split.embedding, head=split.head)
    if split.layers % split.chunks == 0:
        each = split.layers // split.chunks
        return (each,) * split.chunks, f"{split.layers} layers / {split.chunks} virtual stages = {each} each"
    if not split.counts_embedding:
        return None
    return _counted_ends(split, embedding=True, head=True)


def _counted_ends(split: Split, *, embedding: bool, head: bool) -> tuple[tuple[int, ...], str] | None:
    """Return the split with embedding or head counted as a layer; None where they do not divide."""
    total = split.layers + embedding + head
    each = total // split.chunks
    if total % split.chunks or (split.chunks == 1 and embedding + head >= each) or each < 1:
        return None
    layers = [each] * split.chunks
    layers[0] -= embedding
    layers[-1] -= head
    ends = " + ".join(["the embedding"] * embedding + ["the head"] * head)
    return tuple(layers), f"{split.layers} layers + {ends} = {total}, / {split.chunks} virtual stages = {each} each"


def _given_ends(split: Split) -> tuple[tuple[int, ...], str]:
    """Split with the first or last stage given, the other layers evenly over the stages between."""
    if split.pp == 1:
        named = "last_stage_layers" if split.first is None else "first_stage_layers"
        raise ConfigError("has a meaning only with pp above 1", named)
    ends = [each for each in (split.first, split.last) if each is not None]
    middle, stages = split.layers - sum(ends), split.pp - len(ends)
    if min(ends) < 1 or middle < 0 or (stages == 0 and middle) or (stages and (middle % stages or not middle)):
        raise InfeasibleError(
            f"{counted(split.layers, 'layer')} less {' and '.join(map(str, ends))} of the first or last stage leave "
            f"{middle}, which do not divide over the other {counted(stages, 'stage')}; change first_stage_layers or "
            "last_stage_layers"
        )
    of_stage = [middle // stages if stages else 0] * split.pp
    if split.first is not None:
        of_stage[0] = split.first
    if split.last is not None:
        of_stage[-1] = split.last
    odd = next((layers for layers in of_stage if layers % split.vpp), None)
    if odd is not None:
        raise InfeasibleError(f"the {odd} layers of a stage do not divide into vpp {split.vpp} virtual stages")
    chunks = tuple(of_stage[index % split.pp] // split.vpp for index in range(split.chunks))
    return chunks, f"first and last stage as given, {of_stage[len(of_stage) // 2]} layers on those between"


def _uneven(split: Split) -> tuple[tuple[int, ...], str]:
    """Split layers that do not divide."""
    if split.layers < split.chunks:
        raise InfeasibleError(
            f"{counted(split.layers, 'layer')} cannot fill pp {split.pp} x vpp {split.vpp} = {split.chunks} virtual "
            "stages; use a smaller pp or vpp"
        )
    up = -(-split.layers // split.chunks)
    full = split.layers // up
    if split.uneven == "short_last" and full + 1 >= split.chunks:
        layers = [up] * full + [split.layers - up * full] * (split.chunks - full)
        return tuple(layers), (
            f"{split.layers} layers / {split.chunks} virtual stages, rounded up: {up} each and {layers[-1]} on the last"
        )
    rest = split.layers % split.chunks
    down = split.layers // split.chunks
    return (down + 1,) * rest + (down,) * (split.chunks - rest), (
        f"{split.layers} layers / {split.chunks} virtual stages: {down + 1} on the first {rest}, {down} on the others"
    )
