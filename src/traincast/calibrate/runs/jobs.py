"""The job of a measured run, with its layers laid over stages as the row says."""

from dataclasses import replace
from itertools import accumulate

from traincast.calibrate.runs.run import RunRow
from traincast.errors import ConfigError, InfeasibleError
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.structure import layer_blocks, parts_of
from traincast.spec.job import Job
from traincast.spec.resolve import resolve_job

BY_COST = "by-cost"
"""What the column ``stage_layers`` says of `layers_by_cost`."""


def job_of_run(run: RunRow) -> Job:
    """Return the job of a run.

    Raises
    ------
    InfeasibleError
        If its layout cannot be run.
    TraincastError
        If it cannot be described.
    """
    request = run.request
    if not run.stage_layers:
        return resolve_job(request, run.cluster)
    if run.stage_layers != BY_COST:
        return resolve_job(replace(request, stage_layers=_listed(run.stage_layers)), run.cluster)
    layers = layers_by_cost(request.model, request.pp or 1)
    if layers is None:
        raise InfeasibleError(f"{request.pp} stages leave one without any block")
    return replace(resolve_job(request, run.cluster), layers_Q=layers)


def _listed(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split())
    except ValueError:
        message = f"is {text!r}; write the layers of each stage like 3 3 2, or {BY_COST}"
        raise ConfigError(message, "stage_layers") from None


def layers_by_cost(model: Model, pp: int) -> tuple[int, ...] | None:
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
