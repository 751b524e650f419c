"""What fine-tuning decides of a job: adapters beside frozen weights, and sequences that are packed into one."""

from typing import Any

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.decide import Decisions
from traincast.job.job import JobRequest
from traincast.units import counted


def decide_finetuning(request: JobRequest, decided: Decisions) -> dict[str, Any]:
    """Return rank and targets of adapters, and the tokens of what is packed; what is open is as the framework does.

    Raises
    ------
    ConfigError
        If adapters are described for a task that has none, or stand beside nothing.
    InfeasibleError
        If packed sequences are longer than what they are packed into.
    """
    packed = request.packed_length
    if packed is not None and packed > request.seq_length:
        raise InfeasibleError(f"sequences of {packed} tokens cannot be packed into {request.seq_length}")
    if request.task != "lora":
        for name in ("lora_rank", "lora_targets"):
            said = getattr(request, name)
            if said is not None:
                shown = " ".join(said) if isinstance(said, tuple) else said
                raise ConfigError(f"is {shown}, but the task is {request.task}; it needs task lora", name)
        return {"packed_length": packed}
    rank = decided.by_framework("lora_rank", request.lora_rank, decided.framework.lora_rank)
    targets = request.lora_targets
    if targets is None:
        targets = decided.framework.lora_targets
        decided.note(
            "assumed-lora-targets", f"lora_targets is not given: {' '.join(targets)}, as {decided.framework.name} does"
        )
    elif not targets:
        raise ConfigError("is empty; adapters stand beside one kind of linear layer at least", "lora_targets")
    experts = request.model.experts
    if experts is not None and {"linear_fc1", "linear_fc2"} & set(targets):
        shown = counted(experts.experts, "routed expert")
        decided.note("lora-experts", f"experts have no adapters here, neither the {shown} nor shared ones")
    return {"lora_rank": rank, "lora_targets": targets, "packed_length": packed}
