"""What the user may ask of a simulation beside the file: layout, schedule, pricing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StageRoles(StrEnum):
    """Which stage runs the embedding and final rows of a file that describes one stage."""

    AUTO = "auto"
    """Embedding rows on the first virtual stage, final rows on the last."""
    AS_WRITTEN = "as-written"
    """Every row on every stage, in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Overrides of what a file says about its layout; None leaves the file's value."""

    gpus: int | None = None
    """World size; changes `dp`, never the number of microbatches."""
    tp: int | None = None
    cp: int | None = None
    dp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    etp: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    stage_roles: StageRoles = StageRoles.AUTO
    overlap_grad_reduce: bool = False
    """Reduce gradients while the last microbatch's backward still runs."""
    pp_message_bytes: int | None = None
    """Size of one activation message between pipeline stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Everything `simulate` can be told."""

    layout: LayoutOptions = field(default_factory=LayoutOptions)
    cluster: str | None = None
    """Name of a preset or path of a TOML; None is ``h100``, an assumption."""
    busbw_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Bus bandwidth that overrides the model, per group."""
    unfold: bool = False
    """Simulate every rank even where ranks are alike."""
    compute_slowdown: Mapping[int, float] = field(default_factory=dict)
    """Factor on the compute times of single ranks (stragglers)."""
