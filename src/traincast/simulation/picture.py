"""A result as a picture of matplotlib: where the time of each stage goes."""

from typing import TYPE_CHECKING, Any

from traincast.errors import ConfigError
from traincast.simulation.notebook import colour_of
from traincast.units import format_time

if TYPE_CHECKING:
    from traincast.simulation.result import Result


def draw_stages(result: "Result", axes: Any = None) -> Any:  # noqa: ANN401 matplotlib need not be there
    """Draw a bar for the rank of each stage that ends last, split into the parts of its step; return the axes.

    Parameters
    ----------
    result : Result
    axes : matplotlib.axes.Axes, optional
        Where to draw; axes of a new figure by default.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigError("a picture needs matplotlib: pip install matplotlib") from None
        axes = pyplot.subplots(layout="constrained")[1]
    last = {}
    for rank in sorted(result.ranks, key=lambda each: each.end_s):
        last[rank.stage] = rank
    stages = [str(stage) for stage in sorted(last)]
    ranks = [last[stage] for stage in sorted(last)]
    left_s = [0.0] * len(ranks)
    for part in ranks[0].breakdown_s:
        width_s = [rank.breakdown_s[part] for rank in ranks]
        if any(width_s):
            axes.barh(stages, width_s, left=left_s, color=colour_of(part), label=part.replace("_", " "))
            left_s = [left + width for left, width in zip(left_s, width_s, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("s")
    axes.set_ylabel("stage")
    axes.set_title(f"Step {format_time(result.iteration_time_s)}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, frameon=False)
    return axes
