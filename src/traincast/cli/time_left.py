"""How long work still takes, as it is told: a number that falls, and rises only where work is clearly slower."""

_FROM_S = 5.0
"""Seconds of work, and the share of it, before which too little is known to tell."""
_FROM_SHARE = 0.1
_WEIGHT = 0.3
"""Of what the whole pace says now, against what was told before less the time since then."""
_SLOWER = 2.0
"""Over what was told last, in which the work is clearly slower, and a larger number is told."""


class TimeLeft:
    """Tells the time left of one piece of work from the share of it that is done.

    Shares are not an even measure of time: the pace of all that is done is taken, smoothed over what was told before.
    """

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._told: tuple[float, float] | None = None

    def at(self, now_s: float, share: float) -> float | None:
        """Return the seconds left; None where too little is done to tell, or all of it."""
        if now_s - self._begin_s < _FROM_S or not _FROM_SHARE <= share < 1:
            return None
        by_pace_s = (now_s - self._begin_s) * (1 - share) / share
        left_s = by_pace_s
        if self._told is not None:
            told_s, at_s = self._told
            expected_s = max(0.0, told_s - (now_s - at_s))
            if by_pace_s <= _SLOWER * told_s:
                left_s = min(told_s, expected_s + _WEIGHT * (by_pace_s - expected_s))
        self._told = left_s, now_s
        return left_s

    def text(self, now_s: float, share: float) -> str:
        """Return it in words, after the share that is done: ``, about 40 s left``, or nothing."""
        left_s = self.at(now_s, share)
        return "" if left_s is None else f", about {shown_time_left(left_s)} left"


def shown_time_left(left_s: float) -> str:
    """Write seconds no finer than they can be known: ``8 s``, ``40 s``, ``3 min``."""
    if left_s < 10:
        return f"{max(1, round(left_s))} s"
    if left_s < 120:
        return f"{5 * round(left_s / 5)} s"
    return f"{round(left_s / 60):,} min"
