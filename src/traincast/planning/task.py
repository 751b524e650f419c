"""What is planned: a request as it was checked, the space of its layouts, and the memory that they may need."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.memory import chance_of_oom, usable_bytes
from traincast.estimate.memory.fits import WARNED_ABOVE
from traincast.job.feasible import check_choices
from traincast.job.frameworks import Framework, framework_of_year, load_framework
from traincast.job.levels import LEVELS
from traincast.job.request import JobRequest
from traincast.planning.options import PlanOptions
from traincast.planning.screen.screen import Screen
from traincast.planning.simulator import Simulator
from traincast.planning.space import Space
from traincast.schedules.schedule import SCHEDULES
from traincast.simulation.step import Setting
from traincast.simulation.study import Study
from traincast.units import format_share, format_size


class PlanTask(Struct, frozen=True):
    """What is planned."""

    request: JobRequest
    options: PlanOptions
    level: str
    """Of effort."""
    usable_bytes: float
    """Memory of a GPU that programs can use."""
    screen: Screen

    @classmethod
    def asked(cls, request: JobRequest, setting: Setting, options: PlanOptions) -> "PlanTask":
        """Return what is to be planned for a request, with what it costs to see the space of its layouts."""
        checked = _checked(request)
        level, request = checked.tuned or options.tuned, replace(checked, tuned=None)
        usable = usable_bytes(setting.cluster.gpu.memory_bytes)
        space = _space(request, setting, options, level)
        return cls(request, options, level, usable, Screen(space, setting, _limit_bytes(usable, space, options)))

    @property
    def other_levels(self) -> list[str]:
        """Levels of effort in addition to the one that is planned."""
        return [each for each in LEVELS if each != self.level]

    def simulator(self) -> Simulator:
        """Return what simulates layouts of it."""
        return Simulator(self.request, self.screen.setting, Study(self.screen.common.networks))

    def assumptions(self) -> list[Note]:
        """Return what was assumed of it."""
        usable, limit = self.usable_bytes, self.screen.limit_bytes
        found = [
            Note(
                "memory-headroom",
                f"layouts may need {format_size(limit)} of the {format_size(usable)} usable "
                f"({format_share(1 - limit / usable)} free)",
            )
        ]
        if self.request.framework is None:
            found.append(Note("assumed-framework", f"framework is not given: {self.screen.space.framework.name}"))
        return found


def _checked(request: JobRequest) -> JobRequest:
    """Return a request with every choice in its one spelling; refuse names that no job may have, as a forecast does."""
    found = check_choices(request)
    named = framework_of(found).pipeline_schedules
    for schedule in named if found.schedule is None else (found.schedule,):
        SCHEDULES.get(schedule)
    return found


def _space(request: JobRequest, setting: Setting, options: PlanOptions, level: str) -> Space:
    return Space(
        request=request,
        framework=framework_of(request),
        cluster=setting.cluster,
        full=options.full,
        allow_offload=options.allow_offload,
        fixed=options.fixed,
        most=options.most,
        tuned=level,
    )


def framework_of(request: JobRequest) -> Framework:
    """Return the framework of a request, as its job would have it."""
    named = framework_of_year(request.year) if request.framework is None else request.framework
    return named if isinstance(named, Framework) else load_framework(named)


def safe_bytes(usable: float, framework: str) -> float:
    """Return the memory that a layout may need for running out of it to be very unlikely."""
    low, high = 0.0, usable
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance_of_oom(middle, usable, framework) <= WARNED_ABOVE else (low, middle)
    return low


def _limit_bytes(usable: float, space: Space, options: PlanOptions) -> float:
    safe = safe_bytes(usable, space.framework.name)
    return safe if options.headroom is None else usable * (1 - options.headroom)
