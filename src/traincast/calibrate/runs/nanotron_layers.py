"""How nanotron lays a model's layers over its pipeline stages: by the cost of their products, head included."""

from itertools import accumulate

from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.structure import layer_blocks, parts_of


def nanotron_layers(model: Model, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each stage, None where a stage gets no block at all.

    Blocks go to a stage until their cost passes its share of the whole; the block that passes it stays. So the first
    stages get more than their share, and the last ones, with the head, fewer or none.

    Parameters
    ----------
    model : Model
        A dense model.
    pp : int
        Stages.

    Returns
    -------
    tuple of int or None
        Layers by stage; 0 on a stage with the head alone.

    Notes
    -----
    Source: nanotron, src/nanotron/models/base.py (build_model) and models/llama.py (get_block_compute_costs).
    """
    parts = parts_of(layer_blocks(model, 0), Share(model=model, seq_length=1))
    layer = sum(gemm.elements for part in parts for gemm in part.gemms)
    # Embedding, layers, final norm, head, cast to fp32 and loss; those without products cost nothing.
    costs = [0, *[layer] * model.layers, 0, model.vocab * model.hidden, 0, 0]
    total = sum(costs)
    of_stage = [0] * pp
    blocks = [0] * pp
    stage = 0
    for block, cost in enumerate(accumulate(costs)):
        of_stage[stage] += 1 <= block <= model.layers
        blocks[stage] += 1
        if cost * pp > total * (stage + 1) and stage + 1 < pp:
            stage += 1
    return tuple(of_stage) if all(blocks) else None
