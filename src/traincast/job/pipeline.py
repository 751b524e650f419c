"""The pipeline of a job: its schedule, and which layers each virtual stage holds."""

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.decisions import Decisions, Need
from traincast.job.frameworks import Framework
from traincast.job.layers import Split, even_split, split_layers
from traincast.job.parallel import Parallel
from traincast.job.pipeline_layout import check_layout, parse_layout
from traincast.job.request import JobRequest
from traincast.schedules.schedule import SCHEDULES, fixed_virtual_stages, usual_schedule
from traincast.units import counted

NEEDS = tuple(
    Need(name, lambda _, parallel, __: parallel.pp > 1, "with pp 1")
    for name in ("overlap_p2p", "embedding_as_layer", "head_as_layer")
)
"""What its fields need to have an effect."""

_LAYOUTS = (
    ("pipeline_layout",),
    ("stage_layers",),
    ("first_stage_layers", "last_stage_layers"),
    ("embedding_as_layer", "head_as_layer"),
)
"""Fields that say where layers go, each in another way."""


class Pipeline(Struct, frozen=True, kw_only=True):
    """What runs on which stage, and in which order."""

    schedule: str
    layers_Q: tuple[int, ...]
    """Layers of each virtual stage, in model order."""
    overlap_p2p: bool
    """Whether pipeline P2P is overlapped with computation."""
    mtp_stage: int | None = None
    """Virtual stage of the MTP layers, in model order; None: the last."""

    @property
    def most_layers(self) -> int:
        """Layers of the longest virtual stage."""
        return max(self.layers_Q)

    @property
    def mtp_stage_index(self) -> int:
        """Virtual stage that the MTP layers are on, in model order."""
        return len(self.layers_Q) - 1 if self.mtp_stage is None else self.mtp_stage


def _given_layers(request: JobRequest, pp: int) -> tuple[int, ...] | None:
    """Refuse virtual stages without a pipeline, schedules that contradict them, and layouts that do not fit.

    Return the layers of every virtual stage where the request says them, else None.
    """
    _check_one_layout(request)
    if request.vpp is not None and request.vpp > 1:
        if pp == 1:
            raise InfeasibleError(f"vpp {request.vpp} needs pp above 1: virtual stages interleave a pipeline")
        if fixed_virtual_stages(request.schedule) == 1:
            raise ConfigError(
                f"is {request.schedule}, which has no virtual stages, but vpp is {request.vpp}", "schedule"
            )
    if request.pipeline_layout is not None:
        model, layout = request.model, parse_layout(request.pipeline_layout)
        check_layout(layout, name=model.name, layers=model.layers, mtp_layers=model.mtp_layers, pp=pp, vpp=request.vpp)
        if pp == 1 and len(layout.stages) > 1:
            raise InfeasibleError(
                f"pipeline_layout {layout} has {len(layout.stages)} virtual stages, which need pp above 1"
            )
        return layout.layers_Q
    given = request.stage_layers
    if given is None:
        return None
    if len(given) % pp or (request.vpp is not None and len(given) != pp * request.vpp):
        raise ConfigError(f"names {len(given)} virtual stages; pp is {pp}, vpp {request.vpp or 'open'}", "stage_layers")
    if sum(given) != request.model.layers:
        raise ConfigError(
            f"sums to {sum(given)} layers; {request.model.name} has {request.model.layers}", "stage_layers"
        )
    return given


def _check_one_layout(request: JobRequest) -> None:
    """Refuse two ways of saying where the layers go, as Megatron-LM does."""
    said = [[name for name in names if getattr(request, name)] for names in _LAYOUTS]
    said = [names for names in said if names]
    if len(said) > 1:
        raise ConfigError(f"cannot be combined with {said[1][0]}; give one of them", said[0][0])


def decide_pipeline(request: JobRequest, decided: Decisions, pp: int, microbatches: int) -> Pipeline:
    """Decide schedule, layers and place of MTP layers; whether P2P is overlapped is decided with other overlaps.

    Raises
    ------
    ConfigError, InfeasibleError
        If virtual stages, schedule and layout contradict each other, or layers do not fall on the stages.
    """
    given, mtp_stage = _given_layers(request, pp), None
    if given is not None:
        vpp = len(given) // pp
        mtp_stage = None if request.pipeline_layout is None else parse_layout(request.pipeline_layout).mtp_stage
    else:
        vpp = request.vpp or _default_vpp(request, decided, pp, microbatches)
    schedule = request.schedule
    if schedule is None:
        schedule = usual_schedule(vpp)
    if pp == 1 and fixed_virtual_stages(schedule) is not None and not SCHEDULES.get(schedule).orders_one_stage:
        schedule = usual_schedule()
    if given is None:
        given, rule = split_layers(split_of(request, decided.framework, pp, vpp))
        if len(set(given)) > 1 and request.first_stage_layers is None and request.last_stage_layers is None:
            decided.note("uneven-layers", rule)
    # What is on the last virtual stage is where it always is: equal jobs are equal.
    mtp_stage = None if mtp_stage == len(given) - 1 else mtp_stage
    return Pipeline(schedule=schedule, layers_Q=given, mtp_stage=mtp_stage, overlap_p2p=bool(request.overlap_p2p))


def split_of(request: JobRequest, framework: Framework, pp: int, vpp: int) -> Split:
    """Return how a request and its framework split layers among virtual stages."""
    return Split(
        layers=request.model.layers,
        pp=pp,
        vpp=vpp,
        uneven=framework.uneven_split,
        counts_embedding=framework.counts_embedding
        and request.embedding_as_layer is None
        and request.head_as_layer is None,
        first=request.first_stage_layers,
        last=request.last_stage_layers,
        embedding=bool(request.embedding_as_layer),
        head=bool(request.head_as_layer),
    )


def _default_vpp(request: JobRequest, decided: Decisions, pp: int, microbatches: int) -> int:
    """Interleave as far as the framework does, where layers and microbatches allow it."""
    framework, fixed = decided.framework, fixed_virtual_stages(request.schedule)
    if pp == 1:
        return 1
    if fixed is not None and fixed > 1:
        decided.note("assumed-vpp", f"vpp is not given: {fixed}, as schedule {request.schedule} has it")
        return fixed
    ends = (request.first_stage_layers, request.last_stage_layers)
    why = None
    if not framework.interleave or request.schedule not in (None, usual_schedule(2)):
        why = f"{framework.name} does not interleave by itself"
    elif microbatches % pp:
        why = f"{microbatches} microbatches are not a multiple of pp {pp}"
    elif ends != (None, None):
        why = "the first or last stage has its own number of layers"
    if why is not None:
        decided.note("assumed-vpp", f"vpp is not given: 1, as {why}")
        return 1
    most = (request.model.layers + 2) // (pp * framework.layers_per_chunk)
    for vpp in range(most, 1, -1):
        found = even_split(split_of(request, framework, pp, vpp))
        if found is not None:
            decided.note(
                "assumed-vpp",
                f"vpp is not given: {vpp} ({found[1]}; {framework.name} interleaves down to "
                f"{counted(framework.layers_per_chunk, 'layer')})",
                brief=f"vpp is not given: {vpp} ({found[1]})",
            )
            return vpp
    decided.note("assumed-vpp", f"vpp is not given: 1, as the layers do not divide into smaller pieces over pp {pp}")
    return 1


def decide_overlap_p2p(request: JobRequest, decided: Decisions, parallel: Parallel) -> bool:
    """Decide whether pipeline P2P is overlapped with computation."""
    default = decided.framework.overlap_p2p
    return decided.overlap("overlap_p2p", request.overlap_p2p, default, matters=parallel.pp > 1)


def note_unused_schedule(request: JobRequest, decided: Decisions, parallel: Parallel) -> None:
    """Note a schedule of a job without a pipeline."""
    if request.schedule and parallel.pp == 1 and not SCHEDULES.get(request.schedule).orders_one_stage:
        text = f"schedule {request.schedule} has no effect with pp 1: there is no pipeline"
        decided.note("schedule-unused", text)
