"""The space of layouts of a plan.

What each axis may be is said in the module of its kind: `traincast.planning.degrees`, `pipelines`, `sharding`,
`execution` and `recomputation`. What the last two find for one layout stands for others, so a space keeps it.
"""

from functools import cached_property

from traincast.planning.axes import Axes
from traincast.planning.execution import Execution
from traincast.planning.recomputation import Recomputation


class Space(Axes, frozen=True, kw_only=True, dict=True):
    """All layouts of what a job leaves open, on one number of GPUs of one cluster."""

    @cached_property
    def execution(self) -> Execution:
        """The ways to execute its layouts."""
        return Execution(self)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What the backward passes of its layouts may recompute."""
        return Recomputation(self)
