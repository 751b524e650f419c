"""The pipelines of a plan: schedules, virtual stages, and how layers are split over them."""

from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.layers import split_layers
from traincast.job.levels import BEST
from traincast.job.pipeline import split_of
from traincast.planning.axes import Axes
from traincast.schedules.schedule import SCHEDULES, fixed_virtual_stages, planned, usual_schedule


def pipelines_of(axes: Axes, pp: int) -> list[tuple[str, int]]:
    """Return the schedule and the virtual stages of every pipeline of that length."""
    if pp == 1:
        return [(usual_schedule(), 1)] if _split(axes, 1, 1) else []
    found = []
    for schedule in axes.among("schedule", SCHEDULES.names() if axes.full else axes.framework.pipeline_schedules):
        virtual = fixed_virtual_stages(schedule)
        usual = range(2, axes.request.model.layers // pp + 2) if virtual is None else (virtual,)
        for vpp in axes.among("vpp", usual):
            if (virtual is not None and vpp != virtual) or (virtual is None and vpp < 2):
                continue
            layers = _split(axes, pp, vpp)
            said = "vpp" in axes.fixed or axes.request.vpp is not None
            if layers and (min(layers) > 0 or axes.full) and (vpp == 1 or virtual or said or _even(axes, layers)):
                found.append((schedule, vpp))
    return found


def _even(axes: Axes, layers: tuple[int, ...]) -> bool:
    """Return whether virtual stages are as long as each other, the ends aside: others are not interleaved.

    Those who tune a pipeline leave the last one shorter, which has the LM head in addition.
    """
    if axes.tuned == BEST and len(set(layers[:-1])) == 1 and layers[-1] < layers[0]:
        return True
    return len(set(layers[1:-1])) <= 1 and abs(layers[0] - layers[1]) <= 1 and abs(layers[-1] - layers[-2]) <= 1


def _split(axes: Axes, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return the layers of each virtual stage; None where they cannot be split so."""
    request = axes.request
    if pp == 1:
        request = replace(request, first_stage_layers=None, last_stage_layers=None)
    try:
        return split_layers(split_of(request, axes.framework, pp, vpp))[0]
    except (InfeasibleError, ConfigError):
        return None


def takes_microbatches(schedule: str, pp: int, vpp: int, microbatches: int) -> bool:
    """Return whether a pipeline takes so many microbatches; Megatron-LM refuses to interleave others."""
    known = SCHEDULES.get(schedule)
    if known.length is None:
        # Its order is run, so there must be one.
        try:
            planned(known.name, pp, vpp, microbatches)
        except InfeasibleError:
            return False
    return not known.groups_of_stages or vpp == 1 or microbatches % pp == 0
