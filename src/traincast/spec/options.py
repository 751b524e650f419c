"""What the user may ask of a simulation beside the file: layout, schedule, pricing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from traincast.errors import ConfigError

GROUP_NAMES = ("tp", "cp", "ep", "pp", "dp", "etp", "edp", "emb", "mp", "world")
"""Communication groups as the user names them."""


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

    def __post_init__(self) -> None:
        """Refuse degrees below one."""
        for name in ("gpus", "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "microbatches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"is {value}; it must be at least 1", name)
        object.__setattr__(self, "stage_roles", StageRoles(self.stage_roles))


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
