"""A change with which a job that cannot be run would run."""

from msgspec import Struct


class Remedy(Struct, frozen=True, kw_only=True):
    """A single change with which a job that cannot be run would run."""

    field: str
    """Field of the job, or option of the plan, that changes."""
    value: int | float | str
    """What it would have to be."""
    layout: str
    """The fastest layout that it allows, in words."""
    step_s: float
    """About how long its step would be."""
    peak_bytes: float
    """Memory of the GPU that needs most."""
    chance_of_oom: float
    """That it runs out of memory all the same."""

    @property
    def change(self) -> str:
        """What to say, as in Python."""
        return f"{self.field}={self.value:g}" if isinstance(self.value, float) else f"{self.field}={self.value}"
