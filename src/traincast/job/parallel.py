"""The parallel layout: degrees, world size, microbatches."""

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.units import counted

MAX_WORLD_SIZE = 2**20
"""Largest world that group tables are built for; a damaged header must not exhaust memory."""

_MAX_STAGES = 2**10
"""Longest pipeline; every stage is simulated by itself."""

MAX_SLOTS = 2**18
"""Largest product of stages, virtual stages and microbatches that a schedule is planned for."""


class Parallel(Struct, frozen=True, kw_only=True):
    """Degrees of every kind of parallelism, those that share a node first, and the pipeline's shape.

    Ranks follow Megatron's order ``tp-cp-ep-dp-pp`` with TP fastest:
    ``rank = pp*(DP*CP*TP) + dp*(CP*TP) + cp*TP + tp``. Expert ranks divide the same
    ranks of a stage in the order ``etp-ep-edp``; before Megatron Core 0.10 the replicas alone are shared out among
    experts: ``tp-cp-ep-edp``. Source: Megatron-LM, megatron/core/parallel_state.py (RankGenerator; folded since
    commit 7f22e210cd of November 2024).
    """

    tp: int = 1
    """Tensor parallel degree."""
    cp: int = 1
    """Context parallel degree."""
    ep: int = 1
    """Expert parallel degree."""
    etp: int | None = None
    """Expert tensor parallel degree; None means the same as `tp`."""
    pp: int = 1
    """Pipeline stages."""
    vpp: int = 1
    """Virtual stages per pipeline stage."""
    dp: int = 1
    """Data parallel degree (replicas of the dense parameters)."""
    microbatches: int = 1
    """Microbatches per step and data parallel replica."""
    shard: int | None = None
    """How many of the dp x cp ranks with equal dense parameters share one copy of sharded state; None: all."""
    folded_experts: bool = True
    """Whether expert groups divide all ranks of a stage; else, where etp is tp and ep divides dp, its replicas."""
    drained_after: int | None = None
    """Microbatches after which the pipeline runs empty and is filled again; None: after all of a step."""

    def __post_init__(self) -> None:
        """Refuse degrees below one and layouts that do not divide."""
        for name in (*DEGREES, "microbatches", "drained_after"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"is {value}; it must be at least 1", f"parallel.{name}")
        if self.ranks_per_stage % (self.expert_tp * self.ep):
            raise InfeasibleError(
                f"the {counted(self.ranks_per_stage, 'rank')} of a stage (tp {self.tp} x cp {self.cp} x dp {self.dp}) "
                f"{'does' if self.ranks_per_stage == 1 else 'do'} not divide into experts of etp {self.expert_tp} x "
                f"ep {self.ep}; change ep, etp or dp"
            )
        if self.shard is not None and (self.shard < 1 or self.replicas % self.shard):
            raise InfeasibleError(
                f"state shared by {counted(self.shard, 'rank')} does not divide the {self.replicas} ranks with "
                f"equal parameters (dp {self.dp} x cp {self.cp}); change shard or dp"
            )
        if self.world_size > MAX_WORLD_SIZE:
            raise InfeasibleError(
                f"a world of {self.world_size} ranks (tp {self.tp} x cp {self.cp} x dp {self.dp} x pp {self.pp}) is "
                f"above the limit of {MAX_WORLD_SIZE}; use fewer GPUs"
            )
        if self.pp > _MAX_STAGES:
            raise InfeasibleError(
                f"a pipeline of {self.pp} stages is above the limit of {_MAX_STAGES}; use a smaller pp"
            )
        if self.pp * self.vpp * self.microbatches > MAX_SLOTS:
            raise InfeasibleError(
                f"pp {self.pp} x vpp {self.vpp} x {counted(self.microbatches, 'microbatch is', 'microbatches are')} "
                f"{self.pp * self.vpp * self.microbatches} slots to schedule, above the limit of {MAX_SLOTS}; "
                "use fewer microbatches"
            )

    @property
    def in_pipeline(self) -> int:
        """Microbatches that go through the pipeline before it runs empty."""
        return min(self.microbatches, self.drained_after or self.microbatches)

    @property
    def expert_tp(self) -> int:
        """Tensor parallel degree inside an expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def expert_stride(self) -> int:
        """Ranks from one member of an `ep` group to the next."""
        tp, cp, dp, ep, etp = self.tp, self.cp, self.dp, self.ep, self.expert_tp
        return expert_stride(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, folded=self.folded_experts)

    @property
    def expert_ranks(self) -> int:
        """Consecutive ranks that have all experts of a layer: etp x ep, and of each expert cp where not folded."""
        return self.expert_stride * self.ep

    @property
    def replicas(self) -> int:
        """Ranks with equal dense parameters, which reduce gradients with each other: dp x cp."""
        return self.dp * self.cp

    @property
    def sharing(self) -> int:
        """Ranks that share one copy of sharded state."""
        return self.replicas if self.shard is None else self.shard

    @property
    def ranks_per_stage(self) -> int:
        """Ranks that hold one pipeline stage."""
        return self.tp * self.replicas

    @property
    def edp(self) -> int:
        """Expert data parallel degree: replicas of one expert."""
        return self.ranks_per_stage // (self.expert_tp * self.ep)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.ranks_per_stage * self.pp


def divides_replicas(*, tp: int, etp: int, dp: int, ep: int) -> bool:
    """Return whether replicas of a layer can be shared out among its experts, as groups are that are not folded."""
    return etp == tp and dp % ep == 0


def expert_stride(*, tp: int, cp: int, dp: int, ep: int, etp: int, folded: bool) -> int:
    """Return the ranks from one member of an `ep` group to the next: `etp`, or those of a replica if not folded."""
    return tp * cp if not folded and divides_replicas(tp=tp, etp=etp, dp=dp, ep=ep) else etp


_NO_DEGREES = ("microbatches", "shard", "folded_experts", "drained_after")
DEGREES = tuple(name for name in Parallel.__struct_fields__ if name not in _NO_DEGREES)
"""Degrees of parallelism as people name them, those that share a node first."""
