"""What the user may ask of a simulation besides the file: layout, schedule, costs; of SimAI's total, its shares."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from traincast.errors import ConfigError
from traincast.files import read_text
from traincast.hardware.cluster import OPERATIONS, Cluster
from traincast.hardware.dtypes import bytes_per_element
from traincast.job.changes import GROUP_NAMES, parse_change
from traincast.job.choices import NODE_USES
from traincast.job.fields import LAYOUT, fields
from traincast.job.training_run import RunTerms
from traincast.names import find_name, known_names
from traincast.units import (
    RANGES,
    check_given,
    checked_field,
    counted,
    parse_rate,
    parse_size,
    parse_token_count,
    quoted,
)

COMM_SOURCES = ("measured", "model")
"""Where the times of a trace's communication come from."""

NETWORKS = ("auto", "analytical", "flow")
"""How groups that communicate at the same time share links: flows where they can meet, never, or always."""

OVERLAP_CLASSES = ("compute", "memory", "small", "unknown", "communication")
"""What an operation that overlaps may be bound by, as the user names it."""

DEFAULT_SEEDS = 32
"""Simulations with jitter where nobody says how many."""

_LEAST_PP = 1e-6


class StageRoles(StrEnum):
    """Which stage runs the embedding and final rows of a file that describes one stage.

    Examples
    --------
    >>> import traincast
    >>> everywhere = traincast.simulate("examples/aicb_scaled_512gpu.txt", stage_roles=traincast.StageRoles.AS_WRITTEN)
    >>> everywhere.iteration_time_s > traincast.simulate("examples/aicb_scaled_512gpu.txt").iteration_time_s
    True
    """

    AUTO = "auto"
    """Embedding rows on the first virtual stage, final rows on the last."""
    AS_WRITTEN = "as-written"
    """Every row on every stage, in its place."""


_COUNTS = tuple(each.name for each in fields(of=LAYOUT))


class LayoutOptions(Struct, frozen=True, kw_only=True):
    """Overrides of what a file says about its layout; None leaves the file's value.

    Examples
    --------
    >>> import traincast
    >>> wider = traincast.LayoutOptions(gpus=1024)
    >>> traincast.read("examples/aicb_scaled_512gpu.txt", wider).parallel.dp
    16
    """

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
    expert_loads: tuple[float, ...] | Path | None = None
    """Relative tokens of each expert rank of an `ep` group; only their ratios count. A path is that of the rank
    traces of a run (a file, folder or pattern), whose loads `traincast.read` takes."""
    layers: int | None = None
    """Layers of the model, where the file lists fewer: its last one is repeated."""
    layer_block: str | None = None
    """Names of the first and last row of a layer, ``FIRST:LAST``, where the names do not tell."""
    dtype: str | None = None
    """Type of the elements that a file counts its sizes in (`traincast.hardware.dtypes`)."""
    forward_only: bool = False
    """Leave out the backward pass and the gradient reductions."""
    step: int | None = None
    """Number of the step to take of a trace of several; None takes a steady one."""

    def __post_init__(self) -> None:
        """Refuse degrees below one, unknown types, and a block that is not two names."""
        check_given(self, (*_COUNTS, "expert_imbalance"), least=1)
        if isinstance(self.pp_message_bytes, str):
            force_setattr(self, "pp_message_bytes", parse_size(self.pp_message_bytes))
        check_given(self, ("pp_message_bytes", "step"))
        _spell(self, "comm", COMM_SOURCES)
        _spell(self, "stage_roles", [role.value for role in StageRoles])
        if self.expert_loads is not None:
            force_setattr(self, "expert_loads", _checked_loads(self.expert_loads, self.expert_imbalance))
        if self.dtype is not None:
            bytes_per_element(self.dtype)
        if self.layer_block is not None and not all(self.block_ends):
            raise ConfigError(f"is {self.layer_block!r}; write FIRST:LAST, two names of rows", "layer_block")
        force_setattr(self, "stage_roles", StageRoles(self.stage_roles))

    @property
    def block_ends(self) -> tuple[str, str]:
        """First and last name of `layer_block`; both are empty where it is not given."""
        first, _, last = (self.layer_block or "").partition(":")
        return first.strip(), last.strip()


def _checked_loads(loads: Iterable[float] | str | Path, imbalance: float | None) -> tuple[float, ...] | Path:
    """Refuse loads that are empty, that are all zero, or that are given together with a single factor."""
    if imbalance is not None:
        raise ConfigError("cannot be combined with expert_imbalance; give one of the two", "expert_loads")
    if isinstance(loads, str | Path):
        return Path(loads)
    found = tuple(loads)
    for load in found:
        checked_field("expert_loads", load, "expert_loads")
    if not any(found):
        raise ConfigError("gives no expert rank any tokens; at least one load must be above zero", "expert_loads")
    return found


class ConstantsFile(Struct, frozen=True):
    """A file of operator constants (`traincast.estimate.operators.constants`)."""

    name: str
    """Its path."""
    text: str


class StepOptions(RunTerms, frozen=True, kw_only=True):
    """How a step is simulated, whatever it is a step of, and of which run its length is told.

    Examples
    --------
    >>> import traincast
    >>> slow = traincast.StepOptions(compute_slowdown={3: 1.2})
    >>> job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "tp": 2, "global_batch": 64, "seq_length": 8192}
    >>> traincast.predict(options=slow, **job).iteration_time_s > traincast.predict(**job).iteration_time_s
    True
    """

    busbw_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Bus bandwidth that overrides the model, per group (``tp``) or group and operation (``tp.all_reduce``), which
    goes before that of the group."""
    unfold: bool = False
    """Simulate every rank even where ranks are alike."""
    compute_slowdown: Mapping[int, float] = field(default_factory=dict)
    """Factor on the compute times of single ranks (stragglers)."""
    overlap_slowdown: Mapping[str, float] = field(default_factory=dict)
    """How much longer work of a class takes while its rank computes and communicates at the same time, 0.1 for
    10 %; classes that are not given have the default of `traincast.estimate.contention`, 0 turns one off. A number
    alone is taken for all classes."""
    network: str = "auto"
    """How groups that communicate at the same time share links (`NETWORKS`)."""
    network_seeds: int = 1
    """Hash seeds of the fabric to simulate; the step of each beyond the first is only told as a spread."""
    gpus_used_per_node: int | str | None = None
    """GPUs of each node that ranks are placed on: a number, or one of `NODE_USES`; None: what the cluster says,
    else ``auto``."""

    constants: ConstantsFile | None = None
    """Constants of operators that go before the shipped ones; a path is that of a file of ``traincast calibrate
    --gpu``."""
    jitter: float = 0.0
    """Standard deviation of the time of every computation over its mean; the spread of the step is reported with it."""
    seeds: int = DEFAULT_SEEDS
    """Simulations with jitter."""
    tokens_per_step: float | None = None
    """Tokens that a step trains on, of a file that does not say its model; with `tokens`."""
    suggest: bool = False
    """Whether the changes that would help most are looked for, which simulates the step a few times more."""
    what_if: tuple[str, ...] = ()
    """Changes to try, each alone and all together (`traincast.job.changes`)."""

    def __post_init__(self) -> None:
        """Refuse names that do not exist and numbers that mean nothing."""
        RunTerms.__post_init__(self)
        if isinstance(self.constants, (str, Path)):
            found = ConstantsFile(str(self.constants), read_text(Path(self.constants)))
            force_setattr(self, "constants", found)
        rates = dict(_checked_rate(group, rate) for group, rate in self.busbw_bytes_per_s.items())
        force_setattr(self, "busbw_bytes_per_s", rates)
        force_setattr(self, "what_if", tuple([self.what_if] if isinstance(self.what_if, str) else self.what_if))
        for change in self.what_if:
            parse_change(change)
        for name in ("jitter", "seeds"):
            checked_field(name, getattr(self, name), name)
        self._check_tokens_per_step()
        self._check_overlap()
        check_gpus_used(self.gpus_used_per_node)
        for rank, factor in self.compute_slowdown.items():
            RANGES["rank"].checked(rank, "slow")
            RANGES["factor"].checked(factor, f"slow.{rank}")

    def _check_tokens_per_step(self) -> None:
        if isinstance(self.tokens_per_step, str):
            force_setattr(self, "tokens_per_step", parse_token_count(self.tokens_per_step))
        if self.tokens_per_step is None:
            return
        RANGES["training tokens"].checked(self.tokens_per_step, "tokens_per_step")
        if self.tokens is None:
            raise ConfigError("belongs to a whole run; give its tokens too, such as 15T", "tokens_per_step")

    def _check_overlap(self) -> None:
        if not isinstance(self.overlap_slowdown, Mapping):
            # A number alone is for all classes, as on the command line.
            try:
                share = checked_field("overlap_slowdown", self.overlap_slowdown)
            except ConfigError as error:
                text = f"{error}, or such numbers by class ({', '.join(OVERLAP_CLASSES)})"
                raise ConfigError(text, "overlap_slowdown") from None
            force_setattr(self, "overlap_slowdown", dict.fromkeys(OVERLAP_CLASSES, share))
        for name, slowdown in self.overlap_slowdown.items():
            if name not in OVERLAP_CLASSES:
                raise ConfigError(f"unknown class {name!r}; {known_names(name, OVERLAP_CLASSES)}", "overlap_slowdown")
            checked_field("overlap_slowdown", slowdown, f"overlap_slowdown.{name}")
        _spell(self, "network", NETWORKS)
        checked_field("network_seeds", self.network_seeds, "network_seeds")


class SimulateOptions(StepOptions, frozen=True, kw_only=True):
    """Everything `simulate` can be told: what to override of the files' layout, on which cluster, and how.

    Examples
    --------
    >>> import traincast
    >>> options = traincast.SimulateOptions(cluster="h100", layout=traincast.LayoutOptions(vpp=2))
    >>> traincast.simulate("examples/aicb_gpt_405b_1024gpu.txt", options).parallel.vpp
    2
    """

    layout: LayoutOptions = field(default_factory=LayoutOptions)
    cluster: str | PathLike[str] | Cluster | None = None
    """A cluster, or the name of a preset or of a GPU, or the path of a TOML; None is ``h100``, an assumption."""


def _checked_rate(typed: str, rate: float) -> tuple[str, float]:
    """Return ``TP`` or ``tp.All-Reduce`` as ``tp`` or ``tp.all_reduce``, and its rate."""
    name, dot, operation = typed.partition(".")
    group, op = find_name(name, GROUP_NAMES), find_name(operation, OPERATIONS)
    if group is None:
        raise ConfigError(f"unknown group {name!r}; {known_names(name, GROUP_NAMES)}", "busbw")
    if dot and op is None:
        raise ConfigError(f"unknown operation {operation!r}; {known_names(operation, OPERATIONS)}", "busbw")
    key = f"{group}{dot}{op or ''}"
    return key, RANGES["rate"].checked(parse_rate(rate) if isinstance(rate, str) else rate, f"busbw.{key}")


def _spell(options: Struct, name: str, known: Iterable[str]) -> None:
    """Give a field that holds a name its one spelling; refuse a name that is not one of the known ones."""
    said, names = getattr(options, name), list(known)
    if said is None:
        return
    found = find_name(str(said), names)
    if found is None:
        raise ConfigError(f"is {str(said)!r}; {known_names(str(said), names)}", name)
    force_setattr(options, name, found)


def check_gpus_used(value: object, most: int | None = None, node_of: str = "") -> None:
    """Refuse what is neither a number of GPUs of a node (at most `most`, where known) nor one of `NODE_USES`."""
    if value is None or value in NODE_USES:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        words = " or ".join(NODE_USES)
        raise ConfigError(f"is {quoted(value)}; it must be a number of GPUs, or {words}", "gpus_used_per_node")
    if most is not None and value > most:
        raise ConfigError(f"is {value}, but a node of {node_of} has {counted(most, 'GPU')}", "gpus_used_per_node")


def make_options(**values: Any) -> SimulateOptions:  # noqa: ANN401
    """Build options from the fields of `SimulateOptions` and `LayoutOptions` as flat keywords.

    Raises
    ------
    ConfigError
        If a keyword is not such a field, or a value is not allowed.
    """
    return changed_options(SimulateOptions(), **values)


def changed_options(options: SimulateOptions, **values: Any) -> SimulateOptions:  # noqa: ANN401
    """Return options with other values for some fields of `SimulateOptions` and `LayoutOptions`, as flat keywords.

    Raises
    ------
    ConfigError
        If a keyword is not such a field, or a value is not allowed.
    """
    of_layout = set(LayoutOptions.__struct_fields__)
    known = sorted(of_layout | set(SimulateOptions.__struct_fields__) - {"layout"})
    unknown = next((name for name in sorted(values) if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"unknown option {unknown!r}; {known_names(unknown, known)}")
    layout = replace(options.layout, **{name: value for name, value in values.items() if name in of_layout})
    return replace(options, layout=layout, **{name: value for name, value in values.items() if name not in of_layout})


class SimaiOverlap(Struct, frozen=True, kw_only=True):
    """Share of each group's communication that SimAI-Analytical takes as hidden, from 0 to 1.

    These are constants that its user gives; nothing in it finds out what overlaps.

    Notes
    -----
    Source: SimAI, ``dp_overlap_ratio`` and the like in ``astra-sim/system/AstraParamParse.hh``.
    """

    dp: float = 0.0
    tp: float = 0.0
    ep: float = 0.0
    """Hidden share; `dp` is that of DP_EP, too."""
    pp: float = 1.0
    """Hidden share of pipeline P2P. SimAI divides their size by it, as if it were their bandwidth in
    GiB/s; with its default of 1 they take no time."""

    def __post_init__(self) -> None:
        """Refuse what is not a share, and a pp share of zero, by which SimAI would divide."""
        for name in self.__struct_fields__:
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ConfigError(f"is {share}; it must be a share from 0 to 1", f"simai_overlap.{name}")
        if self.pp < _LEAST_PP:
            raise ConfigError(
                f"is {self.pp}, and SimAI divides by it; give a share of {_LEAST_PP} or more", "simai_overlap.pp"
            )


def parse_overlap(text: str) -> SimaiOverlap:
    """Read ``tp=0.5,dp=1,pp=0.5``.

    Raises
    ------
    ConfigError
        If it is not of that form, a group is unknown or given twice, or a share is not allowed.
    """
    known = [*SimaiOverlap.__struct_fields__]
    shares: dict[str, float] = {}
    for part in text.split(","):
        group, equals, share = (word.strip() for word in part.partition("="))
        if group not in known or not equals or group in shares:
            raise ConfigError(f"{text!r} is not of the form GROUP=SHARE,... with {', '.join(known)} each at most once")
        try:
            shares[group] = float(share)
        except ValueError:
            raise ConfigError(f"{share!r} is not a share; write one from 0 to 1, such as {group}=0.5") from None
    return SimaiOverlap(**shares)
