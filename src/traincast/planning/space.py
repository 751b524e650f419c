"""The space of layouts of a plan.

What each axis may be is said in the module of its kind: `traincast.planning.degrees`, `pipelines`, `sharding`,
`execution` and `recomputation`. What the last two find for one layout stands for others, so a space keeps it.
"""

from functools import cached_property

from traincast.planning.axes import Axes
from traincast.planning.execution import ExecutionAxes
from traincast.planning.recomputation import RecomputationAxes


class Space(Axes, frozen=True, kw_only=True, dict=True):
    """All layouts of what a job leaves open, on one number of GPUs of one cluster."""

    @cached_property
    def execution(self) -> ExecutionAxes:
        """The ways to execute its layouts."""
        return ExecutionAxes(self)

    @cached_property
    def recomputation(self) -> RecomputationAxes:
        """What the backward passes of its layouts may recompute."""
        return RecomputationAxes(self)
