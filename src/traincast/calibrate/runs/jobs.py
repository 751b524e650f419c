"""The job of a published run, with what its source does differently from its stack."""

from dataclasses import replace

from traincast.calibrate.runs.nanotron_layers import nanotron_layers
from traincast.calibrate.runs.run import RunRow
from traincast.errors import InfeasibleError
from traincast.spec.job import Job
from traincast.spec.resolve import resolve_job


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
    if run.groups["source"] == "nanotron":
        layers = nanotron_layers(request.model, request.pp or 1)
        if layers is None:
            raise InfeasibleError(f"{request.pp} stages leave one without any block")
        return replace(resolve_job(request, run.cluster), layers_Q=layers)
    if request.grad_reduce_bytes is None and run.cells.get("framework", "").startswith("Megatron-LM @"):
        # Megatron-LM itself, not a recipe: bf16 gradients are accumulated in fp32 (training/arguments.py).
        request = replace(request, grad_reduce_bytes=4)
    return resolve_job(request, run.cluster)
