"""The short form of what explains a step, as a result holds it: plain values, no arrays.

`traincast.analysis.explanation` works it out, and the modules it calls say what each of them means.
"""

from typing import Any

from msgspec import Struct

from traincast.analysis.by_name import IndexedByName
from traincast.workload.words import Operation, bus_factor


class CommunicationRow(Struct, frozen=True, kw_only=True):
    """All runs of one distinct communication: kind of group, operation, size, members."""

    group: str
    op: str
    size_bytes: int
    ranks: int
    """Members of its group; 2 of a message."""
    runs: int
    """Times that it ran among the simulated ranks."""
    transfer_s: float
    """Sum of the transfers."""
    slowest_s: float
    """Longest transfer."""
    skew_s: float
    """Sum of the times between the first and the last member's readiness."""
    largest_skew_s: float
    wait_s: float
    """Sum of what its members waited, over all of them."""

    @property
    def each_s(self) -> float:
        """Mean transfer."""
        return self.transfer_s / self.runs

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """Bytes over the mean transfer; None where that takes no time."""
        return self.size_bytes / self.each_s if self.transfer_s > 0 else None

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth times the factor of the operation; None where a transfer takes no time."""
        rate = self.algbw_bytes_per_s
        return None if rate is None else rate * bus_factor(Operation[self.op.upper()], self.ranks)


class RankOverlap(Struct, frozen=True, kw_only=True):
    """How much of a rank's communication ran while it computed."""

    rank: int
    comm_s: float
    """Time in which at least one transfer ran."""
    overlapped_s: float
    """Of it while the compute stream was busy."""

    @property
    def overlap(self) -> float | None:
        """Share of the communication that is overlapped; None where there is none."""
        return self.overlapped_s / self.comm_s if self.comm_s > 0 else None


class RooflineRow(Struct, frozen=True, kw_only=True):
    """All runs of the computations of one name and phase, on the simulated rank that computes longest."""

    name: str
    phase: str
    runs: int
    time_s: float
    """Sum over its runs."""
    flops: float | None
    """FLOP in all; None where it is not known what they do."""
    bytes_moved: float | None

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s that are reached."""
        return None if self.flops is None or self.time_s <= 0 else self.flops / self.time_s

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of memory traffic a second."""
        return None if self.bytes_moved is None or self.time_s <= 0 else self.bytes_moved / self.time_s

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None where nothing is known or moved."""
        return None if self.flops is None or not self.bytes_moved else self.flops / self.bytes_moved

    def bound(self, peak_flops_per_s: float, memory_bytes_per_s: float) -> str | None:
        """Return what binds it, ``compute`` or ``memory``; None where that is not known."""
        if self.flops is None or self.bytes_moved is None:
            return None
        return "compute" if self.flops / peak_flops_per_s >= self.bytes_moved / memory_bytes_per_s else "memory"

    def of_roof(self, peak_flops_per_s: float, memory_bytes_per_s: float) -> float | None:
        """Return the least time that it could take over what it took; None where that is not known."""
        if self.flops is None or self.bytes_moved is None or self.time_s <= 0:
            return None
        return max(self.flops / peak_flops_per_s, self.bytes_moved / memory_bytes_per_s) / self.time_s


class PathShare(Struct, frozen=True, kw_only=True):
    """What the critical path spends on one stage in one kind of work."""

    stage: int
    what: str
    """Phase of a computation, kind of group of a communication, ``host``, ``copy``."""
    time_s: float


class WaitShare(Struct, frozen=True, kw_only=True):
    """What one rank waited because of another one."""

    rank: int
    other: int
    time_s: float


class KeptWaiting(Struct, frozen=True, kw_only=True):
    """What all simulated ranks together waited because of one rank that was not itself waiting."""

    rank: int
    stage: int
    time_s: float


class Analysis(Struct, frozen=True, kw_only=True):
    """The short form of an explanation, as a result holds it; of each other list the longest `MOST_TOLD` lines."""

    critical_path: tuple[PathShare, ...]
    """All of it, so that its times sum to the step."""
    waits: tuple[WaitShare, ...]
    """By the rank that arrived last."""
    kept_waiting: tuple[KeptWaiting, ...]
    """By the rank at the end of the chain."""
    communication: tuple[CommunicationRow, ...]
    overlap: tuple[RankOverlap, ...]
    roofline: tuple[RooflineRow, ...]


class Slowdowns(Struct, frozen=True, kw_only=True):
    """What the replays of some measured steps say (`traincast.analysis.slowdown`); times are means over the steps."""

    steps: int
    step_s: float
    """As it was."""
    without_pauses_s: float
    """Without pauses between operations."""
    usual_s: float
    """With the time of its type for every operation besides."""
    slowdown: float
    """S."""
    pauses: float
    """Step as it was over the one without pauses."""
    by_type: dict[str, float]
    by_stage: dict[str, float]
    by_dp_rank: dict[str, float]
    by_rank: dict[str, float]
    """S_w, of the workers whose is highest."""
    m_w: float
    m_s: float
    steps_s: dict[str, float]
    """Each step as it was, replayed, by its number."""
    steps_without_pauses_s: dict[str, float]


class Cause(Struct, frozen=True, kw_only=True):
    """Something that made measured steps slower (`traincast.analysis.diagnosis`)."""

    name: str
    saving_s: float
    """What the step that is shown would be shorter without it alone: the what-if of its `change`."""
    share: float
    """The same over the step."""
    evidence: str
    change: str = ""
    """What mends it, as ``--what-if`` takes it; empty in results of older versions."""
    mean_saving_s: float | None = None
    """What the mean step of a trace of several would be shorter; None of one step."""
    ranks: tuple[int, ...] = ()
    """The ranks that it concerns, where it is about some of them."""
    stages: tuple[int, ...] = ()


class Interval(IndexedByName, frozen=True, kw_only=True):
    """Where most steps lie: a share `level` of them between `low_s` and `high_s`."""

    level: float
    low_s: float
    high_s: float


class Ratio(IndexedByName, frozen=True, kw_only=True):
    """How many times as long one step takes as another (`traincast.simulation.differences`)."""

    level: float
    """Share of such pairs whose measured ratio lies between `low` and `high`."""
    ratio: float
    low: float
    high: float
    chance_shorter: float
    """Chance that it is shorter, 0 to 1."""

    @property
    def is_told(self) -> bool:
        """Whether the forecasts tell which of the steps is shorter."""
        return not self.low <= 1 <= self.high


class Variability(Struct, frozen=True, kw_only=True):
    """The step over some seeds, in seconds (`traincast.simulation.variability`)."""

    jitter: float
    """Standard deviation of the time of a computation, over its mean."""
    seeds: int
    mean_s: float
    deviation_s: float
    """Standard deviation; 0 of one seed."""
    min_s: float
    p05_s: float
    median_s: float
    p95_s: float
    max_s: float


class Goodput(Struct, frozen=True, kw_only=True):
    """Useful training over all the time that a long run takes (`traincast.analysis.goodput`)."""

    goodput: float
    """Share of the time."""
    mtbf_s: float
    """Mean time between failures of the job."""
    detection_s: float
    restart_s: float
    checkpoint_s: float
    interval_s: float
    """Training between two checkpoints."""
    optimal_interval_s: float
    """That of the highest goodput."""
    in_checkpoints: float
    """Share of the time that checkpoints take."""
    in_failures: float
    """Share of the time that is lost to failures: downtime, and training that is done again."""
    useful_step_s: float
    """Step over the goodput: the time from a step to the next one in the mean of the run."""


class TrainingRun(Struct, frozen=True, kw_only=True):
    """What a whole run takes (`traincast.analysis.training_run`); low and high are the ends of the step's interval."""

    tokens: float
    """Of the whole run."""
    tokens_per_step: float
    gpus: int
    goodput: float | None
    """Share of the time that is useful training; None: nothing is said of failures, and all of it is."""
    days: float
    days_low: float | None
    """None, as every low and high, of a step without an interval."""
    days_high: float | None
    gpu_hours: float
    gpu_hours_low: float | None
    gpu_hours_high: float | None
    currency: str | None
    """None where it is not specified."""
    cost: float | None
    """None without a price."""
    cost_low: float | None
    cost_high: float | None
    gpu_power_w: float | None
    """What a GPU is taken to draw; None where it is not known."""
    power_is_design: bool
    """Whether that is its thermal design power, so that energy and emissions are upper bounds of those of the GPUs."""
    pue: float
    energy_mwh: float | None
    """None where the power is not known."""
    energy_mwh_low: float | None
    energy_mwh_high: float | None
    grid_intensity: float | None
    """Grams of CO2 equivalent per kWh."""
    co2_t: float | None
    """Tonnes of CO2 equivalent; None where power or grid are not known."""
    co2_t_low: float | None
    co2_t_high: float | None


class OtherLayout(Struct, frozen=True, kw_only=True):
    """Another layout that the files of a run allow, which do not say how it was laid out."""

    tp: int
    dp: int
    pp: int
    ep: int
    microbatches: int
    gpus: int
    iteration_time_s: float
    """The step, if that was it."""


class Suggestion(Struct, frozen=True, kw_only=True):
    """A change that would make a step shorter (`traincast.simulation.suggestions`)."""

    change: str
    """As ``--what-if`` takes it."""
    saving_s: float
    low_s: float
    high_s: float
    """Between these it lies in 90 of 100 cases, as far as that is known; both are `saving_s` of measured work."""


class Advice(Struct, frozen=True, kw_only=True):
    """A change of a job that would make its step shorter (`traincast.simulation.advice`).

    Several are in the order to make them, each over the ones before it.
    """

    name: str
    """What it is, in plain words."""
    taken: bool
    """Whether it is one of those to make, in order; others save by themselves, and nothing after these, or may not fit
    into memory: they come last."""
    fields: dict[str, Any]
    """Fields of the job with their new values, as job files have them."""
    spelled: str
    """As the framework is told, after the changes before it."""
    words_of: str
    """Whose words these are: ``Megatron-LM``, ``torchtitan``, ``job file`` for our own."""
    saving_s: float
    """What it saves after the changes before it; of all they sum to what all save together. 0 of one not taken."""
    saving_low_s: float
    saving_high_s: float
    """Between these that lies in 90 of 100 cases."""
    chance_faster: float
    """Chance that it saves anything then, 0 to 1."""
    alone_s: float
    """What it saves by itself."""
    iteration_time_s: float
    """The step with it and the changes before it."""
    more_bytes: float
    """What it adds by itself to the GPU that needs most; below 0 it frees some."""
    peak_bytes: int | float
    """What that GPU needs with it and the changes before it."""
    chance_of_oom: float
    """Chance of running out of memory then, 0 to 1."""
    needs: str
    """What it takes of a user besides, in words; empty: nothing."""
    numbers: str
    """What it changes in the numbers that a model learns from, in words; empty: nothing."""
    same_numbers: bool
    """Whether the model learns from the same numbers; what changes them comes after all that does not."""
    usual: bool
    """Whether published recipes do it where it is allowed; else the framework can, though few do."""
    source: str
    """Where what it needs is said, in the framework's code or pages; empty where it is plain."""
