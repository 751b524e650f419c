"""A workload: what every rank does in a step, before it is tiled over microbatches and ranks, or as it was recorded.

Letters: T template operations, P stages, Q virtual stages in model order, M microbatches, W ranks.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.files import InputFile
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.ops import FloatArray, IntArray, OpTable
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group


class MeasuredStep(Struct, frozen=True):
    """A measured step, to be shown next to the simulated one."""

    step_s: float
    """From the first start to the last end over all ranks."""
    end_s: dict[int, float]
    """End of each measured rank, in seconds from the first start of any."""
    part_s: dict[int, dict[str, float]]
    """Per measured rank: seconds in each part of the step (`Op.part`)."""
    wait_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Of them waiting for other ranks, as far as the measurement shows it."""


class Template(Struct, frozen=True, kw_only=True):
    """What a rank does; numbers are indices into `Workload.segments`, -1 for nothing.

    A rank of stage s runs ``start_P[s]``, then the slots of its pipeline schedule, then
    ``end_P[s]``; ``after_forward_P[s]`` follows the work of its last forward, before its message leaves.
    """

    forward_QM: IntArray
    backward_QM: IntArray
    """Recompute, input gradient and weight gradient; schedules that split them do it by phase."""
    start_P: IntArray
    after_forward_P: IntArray
    end_P: IntArray
    message_s_DQM: FloatArray | None = None
    """Transfer of the message over the boundary after each virtual stage, forward (0) and backward (1), in
    seconds; NaN where it is to be estimated, None where all are."""
    before_recv_DQM: IntArray | None = None
    """Segment that precedes the receive of the message over each boundary (a host's gap), -1 for none."""


class Workload(Struct, frozen=True, kw_only=True):
    """One training (or forward-only) step in the intermediate form."""

    name: str
    parallel: Parallel
    schedule: str
    forward_only: bool
    ops: OpTable
    segments: tuple[IntArray, ...]
    """Rows of the op table in program order; the pieces that templates are made of."""
    templates: tuple[Template, ...]
    template_W: IntArray
    """Template of each rank."""
    message_bytes_Q: IntArray
    """Bytes of the activation message that leaves each virtual stage (and of its gradient back)."""
    inputs: tuple[InputFile, ...]
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    measured: "MeasuredStep | None" = None
    """What the input measured, where it is a measured run."""
    expert_load_W: FloatArray | None = None
    """Tokens of each rank's experts over the mean (`traincast.workload.experts`); None where they are balanced."""
    compute_is_in_situ: bool = False
    """Whether the times that the input gives were measured inside a running step, so that they contain what
    overlap with communication costs (`traincast.estimate.contention`); False for kernels timed alone."""
    exchange_sms: int = 0
    """Multiprocessors that an exchange with experts takes from what is computed meanwhile."""
    pairs_passes: bool = False
    """Whether a forward and a backward pass run as one, so that each hides what the other exchanges with experts."""
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    """What its files were read with."""
    other_layouts: tuple[Mapping[str, int], ...] = ()
    """Other layouts that its files allow, as fields of `LayoutOptions`, the likeliest first; none where they say it."""
    table_stages: tuple[int, ...] = ()
    """Stages with a copy of the embedding's table, whose gradients are summed; none: the first and the last."""
    in_network: frozenset[Group] = frozenset()
    """Kinds of groups whose collectives the switches between nodes reduce (SHARP)."""
    transfer_factor: Mapping[Group, float] = field(default_factory=dict)
    """Time of communication over a group of a kind, over its estimate; 1 for kinds that are not in it."""
    program: Program | None = None
    """Every operation of every rank, where they were recorded one by one (`traincast.workload.recorder`): it runs as
    it is, without schedule and symmetry reduction, and there are no templates."""
    timeline: Timeline | None = None
    """When the operations of `program` ran, where that was measured."""
    steps: "Iterable[tuple[int, Workload]] | None" = None
    """All steps of a trace of several, this one among them, by their number; they are read one after the other."""

    def __repr__(self) -> str:
        """Say what workload this is, in a line."""
        return f"<Workload: {self.name}, {counted(self.parallel.world_size, 'rank')}, schedule {self.schedule}>"
