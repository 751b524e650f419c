"""A layout: everything of a job that is not what is trained, on what, and how much of it."""

from typing import Any

from msgspec import Struct

from traincast.units import format_share


class Layout(Struct, frozen=True, kw_only=True):
    """How a job is laid out and executed; the fields are those of `traincast.job.request.JobRequest`, all decided."""

    gpus: int
    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int
    ep: int
    etp: int
    micro_batch: int
    microbatches: int
    schedule: str
    sequence_parallel: bool
    zero: int
    shard: int
    recompute: str
    recompute_layers: int | None = None
    recompute_method: str | None = None
    recompute_modules: tuple[str, ...] | None = None
    reshard_after_forward: bool = True
    """Without meaning where parameters are not sharded (below ZeRO-3)."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_tp: bool = False
    precision: str = "bf16"
    cp_kind: str = "ring"
    moe_dispatcher: str | None = None
    """None where the model has no experts."""
    moe_a2a_overlap: bool = False
    offload_optimizer: float = 0.0
    offload_activations: int = 0

    def request(self) -> dict[str, Any]:
        """Return it as fields of a `JobRequest`; what has no effect on this layout is left out."""
        found = {each: getattr(self, each) for each in self.__struct_fields__ if each not in _FOLLOWS}
        if self.moe_dispatcher is None:
            found |= {"ep": None, "etp": None}
        if self.dp * self.cp == 1:
            found |= {"zero": None, "shard": None, "overlap_grad_reduce": None}
        elif self.zero == 0:
            found["shard"] = None
        found |= {name: found[name] or None for name in ("offload_optimizer", "offload_activations")}
        for name, matters in (
            ("overlap_param_gather", self.zero > 0),
            ("reshard_after_forward", self.zero == 3),
            ("overlap_tp", self.tp > 1),
            ("sequence_parallel", self.tp > 1),
            ("cp_kind", self.cp > 1),
            ("moe_dispatcher", self.ep > 1),
            ("moe_a2a_overlap", self.ep > 1),
            ("schedule", self.pp > 1),
        ):
            if not matters:
                found[name] = None
        return found

    @property
    def replicas(self) -> int:
        """Ranks with equal dense parameters: dp x cp."""
        return self.dp * self.cp

    @property
    def text(self) -> str:
        """The layout in a line, degrees first, what is usual left out."""
        degrees = [f"TP{self.tp}", f"PP{self.pp}"]
        degrees += [f"VPP{self.vpp}"] if self.vpp > 1 else []
        degrees += [f"CP{self.cp}"] if self.cp > 1 else []
        degrees += [f"EP{self.ep}"] if self.ep > 1 else []
        degrees += [f"ETP{self.etp}"] if self.moe_dispatcher is not None and self.etp > 1 else []
        degrees += [f"DP{self.dp}"]
        more = [" ".join(degrees), f"micro batch {self.micro_batch}"]
        more += [self.schedule] if self.pp > 1 else []
        more += ["exchanges with experts overlapped"] if self.moe_a2a_overlap else []
        more += [self.recomputed] if self.recompute != "none" else []
        more += [f"optimizer offloaded {format_share(self.offload_optimizer, None)}"] if self.offload_optimizer else []
        more += [f"activations of {self.offload_activations} layers offloaded"] if self.offload_activations else []
        more += [
            f"ZeRO-{self.zero}" + (f" over {self.shard}" if self.zero > 0 and self.shard < self.dp * self.cp else "")
        ]
        more += ["parameters gathered once"] if self.zero == 3 and not self.reshard_after_forward else []
        return ", ".join(more)

    @property
    def recomputed(self) -> str:
        """What is recomputed, in words."""
        if self.recompute == "selective":
            return f"recompute {' '.join(self.recompute_modules or ('core_attn',))}"
        if self.recompute == "none":
            return "no recompute"
        if self.recompute_method == "uniform":
            return f"recompute full, groups of {self.recompute_layers}"
        return "recompute full" + (f", {self.recompute_layers} layers" if self.recompute_layers else "")


_FOLLOWS = ("dp", "microbatches")
"""What the other fields decide."""


def said(value: object) -> str:
    """Return a value of a field in words."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "all" if value is None else ("on" if value else "off") if isinstance(value, bool) else str(value)
