"""How replicas share state and exchange it: ZeRO and FSDP, their overlaps, and what gathers move."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.dtypes import EIGHT_BIT
from traincast.job.decisions import Decisions, Need
from traincast.job.degrees import divisors
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.units import counted

NEEDS = (
    Need(
        "overlap_grad_reduce",
        lambda _, parallel, __: max(parallel.replicas, parallel.edp) > 1,
        "with dp 1 and cp 1: no gradients are reduced",
    ),
    Need("overlap_param_gather", lambda _, __, zero: zero > 0, "with zero {zero}: no parameters are gathered"),
    Need("zero", lambda _, parallel, __: parallel.replicas > 1, "with dp 1 and cp 1: no ranks share state"),
)
"""What its fields need to have an effect."""


class Sharding(Struct, frozen=True, kw_only=True):
    """What replicas share of their state, and when they exchange it; how many share one copy says `Parallel.shard`."""

    zero: int
    """Stage of ZeRO: 0 nothing, 1 optimizer, 2 gradients, 3 parameters (FSDP) are sharded."""
    overlap_grad_reduce: bool
    """Whether reductions of gradients are overlapped with the backward pass."""
    overlap_param_gather: bool
    """Whether gathers of updated parameters are overlapped with the forward pass."""
    reshard_after_forward: bool = True
    """Whether FSDP (zero 3) frees gathered parameters after the forward pass and gathers them again."""
    param_gather_bytes: int = 2
    """Bytes of a GEMM weight's element as sharded ranks gather it: 2, or 1 where GEMMs read 8 bits."""

    @property
    def gathered_weight_bytes(self) -> int:
        """Bytes of an element of a GEMM's weight as it is gathered for every pass; 0: ranks have them whole."""
        return self.param_gather_bytes if self.zero == 3 else 0


def decide_zero(request: JobRequest, decided: Decisions, parallel: Parallel) -> tuple[int, Parallel]:
    """Decide the stage of ZeRO; return it, and the degrees with the ranks that share one copy of the state.

    Raises
    ------
    ConfigError, InfeasibleError
        If the group of ranks that share a copy cannot be.
    """
    replicas = parallel.replicas
    framework = decided.framework
    usual = 3 if framework.fsdp else 1 if framework.distributed_optimizer else 0
    zero = decided.by_framework("zero", request.zero, usual) if replicas > 1 else request.zero or 0
    _check_shard(request, zero, replicas)
    if zero > 1 and parallel.pp > 1 and not (zero == 3 and framework.pipelined_fsdp):
        decided.note(
            "zero-with-pipeline",
            f"zero {zero} with pp {parallel.pp}: {'parameters are gathered' if zero == 3 else 'gradients are reduced'} "
            "again for every microbatch; frameworks refuse or discourage it",
        )
    if zero == 0 or replicas == 1:
        return 0, parallel
    shared = request.shard is not None and request.shard < replicas
    return zero, replace(parallel, shard=request.shard) if shared else parallel


def _check_shard(request: JobRequest, zero: int, replicas: int) -> None:
    """Refuse a sharding group that does not divide the replicas."""
    shard = request.shard
    if shard is None:
        return
    if zero == 0 and shard > 1:
        raise ConfigError(f"is {shard}, but zero is 0: nothing is sharded", "shard")
    if replicas % shard:
        raise InfeasibleError(
            f"shard {shard} does not divide the {replicas} ranks (dp x cp) that hold equal parameters; use "
            f"{divisors(replicas)}"
        )


def decide_reshard(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> bool:
    """Return whether FSDP frees parameters after the forward pass: unless stages of a pipeline keep them whole.

    Source: torchtitan, torchtitan/distributed/fsdp.py (fsdp_reshard_after_forward "default": off with pipeline
    parallelism, to spare a gather in every microbatch).
    """
    said = request.reshard_after_forward
    if zero < 3:
        if said is not None:
            decided.note("reshard-unused", f"reshard_after_forward has no effect with zero {zero}")
        return True
    whole = parallel.pp > 1 and decided.framework.pipelined_fsdp
    if whole:
        passes = counted(parallel.microbatches, "microbatch", "microbatches")
        decided.note(
            "fsdp-with-pipeline",
            f"zero 3 with pp {parallel.pp}: gradients are kept whole over {passes} and reduced once, after a stage's "
            "last backward pass, as PyTorch's pipeline schedules do",
        )
    if said is not None:
        return said
    if whole:
        text = f"off with pp {parallel.pp}: gathered parameters stay whole from a stage's first pass to its last"
        decided.note("assumed-reshard-after-forward", f"reshard_after_forward is not given: {text}")
    return not whole


def decide_data_overlaps(
    request: JobRequest, decided: Decisions, parallel: Parallel, zero: int, *, reshard: bool
) -> Sharding:
    """Decide whether reductions of gradients and gathers of parameters are overlapped with computation.

    They go with the stage of ZeRO and `reshard`, which were decided before; in which type parameters are gathered is
    decided later.
    """
    said, usual = request, decided.framework
    reduces, gathers = parallel.replicas > 1, zero > 0
    reduced, gathered = "overlap_grad_reduce", "overlap_param_gather"
    return Sharding(
        zero=zero,
        overlap_grad_reduce=decided.overlap(
            reduced, said.overlap_grad_reduce, usual.overlap_grad_reduce, matters=reduces
        ),
        overlap_param_gather=decided.overlap(
            gathered, said.overlap_param_gather, usual.overlap_param_gather, matters=gathers
        ),
        reshard_after_forward=reshard,
    )


def decide_param_gather(request: JobRequest, decided: Decisions, zero: int, precision: str) -> int:
    """Return the bytes of a weight's element as it is gathered: 1 where GEMMs in 8 bits are to get it, else 2 or 4.

    Without sharded parameters those are gathered that the optimizer wrote, in 16 bits.
    """
    said = request.param_gather_bytes
    if said is None or zero == 0:
        if said is not None:
            decided.note("param-gather-unused", "param_gather_bytes has no effect with zero 0: nothing is gathered")
        return 4 if zero == 3 and decided.framework.gathers_main_weights else 2
    if said == 1 and precision not in EIGHT_BIT:
        raise ConfigError(
            f"is 1, but GEMMs run in {precision}; 8-bit weights need {', '.join(EIGHT_BIT)}", "param_gather_bytes"
        )
    if said not in (1, 2, 4):
        raise ConfigError(f"is {said}; it must be 1, 2 or 4", "param_gather_bytes")
    return said
