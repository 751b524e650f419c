"""What the user may ask of a simulation beside the file: layout, schedule, pricing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from traincast.errors import ConfigError
from traincast.spec.dtypes import bytes_per_element

GROUP_NAMES = ("tp", "cp", "ep", "pp", "dp", "etp", "edp", "emb", "mp", "world")
"""Communication groups as the user names them."""

COMM_SOURCES = ("measured", "model")
"""Where the times of a trace's communication come from."""


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
    comm: str | None = None
    """Times of a trace's communication: ``measured`` or ``model``; None lets the kind of trace decide."""
    expert_imbalance: float | None = None
    """Tokens of the busiest expert rank over the mean; None is 1."""
    layers: int | None = None
    """Layers of the model, where the file lists fewer: its last one is repeated."""
    layer_block: str | None = None
    """Names of the first and last row of a layer, ``FIRST:LAST``, where the names do not tell."""
    dtype: str | None = None
    """Type of the elements that a file counts its sizes in (`traincast.spec.dtypes`)."""
    forward_only: bool = False
    """Leave out the backward pass and the gradient reductions."""

    def __post_init__(self) -> None:
        """Refuse degrees below one, unknown types, and a block that is not two names."""
        for name in ("gpus", "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "microbatches", "layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"is {value}; it must be at least 1", name)
        if self.comm not in (None, *COMM_SOURCES):
            raise ConfigError(f"is {self.comm!r}; it must be one of {', '.join(COMM_SOURCES)}", "comm")
        if self.expert_imbalance is not None and not 1 <= self.expert_imbalance < float("inf"):
            raise ConfigError(f"is {self.expert_imbalance}; the busiest has at least the mean, 1", "expert_imbalance")
        if self.dtype is not None:
            bytes_per_element(self.dtype)
        if self.layer_block is not None and not all(self.block_ends):
            raise ConfigError(f"is {self.layer_block!r}; write FIRST:LAST, two names of rows", "layer_block")
        object.__setattr__(self, "stage_roles", StageRoles(self.stage_roles))

    @property
    def block_ends(self) -> tuple[str, str]:
        """First and last name of `layer_block`; both are empty where it is not given."""
        first, _, last = (self.layer_block or "").partition(":")
        return first.strip(), last.strip()


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

    def __post_init__(self) -> None:
        """Refuse groups that do not exist and rates that are none."""
        for group, rate in self.busbw_bytes_per_s.items():
            if group not in GROUP_NAMES:
                raise ConfigError(f"unknown group {group!r}; known: {', '.join(GROUP_NAMES)}", "busbw")
            if not 0 < rate < float("inf"):
                raise ConfigError(f"{rate} bytes/s is not a bandwidth", f"busbw.{group}")
        for rank, factor in self.compute_slowdown.items():
            if rank < 0 or not 0 < factor < float("inf"):
                raise ConfigError(f"rank {rank} with factor {factor}; give a rank and a positive factor", "slow")


def make_options(**values: Any) -> SimulateOptions:  # noqa: ANN401
    """Build options from the fields of `SimulateOptions` and `LayoutOptions` as flat keywords.

    Raises
    ------
    ConfigError
        If a keyword is no such field, or a value is not allowed.
    """
    of_layout = {each.name for each in fields(LayoutOptions)}
    of_simulation = {each.name for each in fields(SimulateOptions)} - {"layout"}
    unknown = sorted(set(values) - of_layout - of_simulation)
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(of_layout | of_simulation))}")
    layout = LayoutOptions(**{name: value for name, value in values.items() if name in of_layout})
    return SimulateOptions(layout=layout, **{name: value for name, value in values.items() if name in of_simulation})
