"""What the user may ask of SimAI's prices beside the layout: the shares that it takes as overlapped."""

from dataclasses import dataclass, fields

from traincast.errors import ConfigError

_LEAST_PP = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiOverlap:
    """Share of each group's communication that SimAI-Analytical takes as hidden, from 0 to 1.

    These are constants that its user gives; nothing in it finds out what overlaps.

    Parameters
    ----------
    dp, tp, ep : float
        Hidden share; `dp` is that of DP_EP, too.
    pp : float
        Hidden share of the messages between stages. SimAI divides their size by it, as if it were
        their bandwidth in GiB/s; with its default of 1 they take no time.

    Notes
    -----
    Source: SimAI, ``dp_overlap_ratio`` and the like in ``astra-sim/system/AstraParamParse.hh``.
    """

    dp: float = 0.0
    tp: float = 0.0
    ep: float = 0.0
    pp: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no share, and a pp share of zero, by which SimAI would divide."""
        for field in fields(self):
            share = getattr(self, field.name)
            if not 0 <= share <= 1:
                raise ConfigError(f"is {share}; it must be a share from 0 to 1", f"simai_overlap.{field.name}")
        if self.pp < _LEAST_PP:
            raise ConfigError(
                f"is {self.pp}, and SimAI divides by it; give a share of {_LEAST_PP} or more", "simai_overlap.pp"
            )


def parse_overlap(text: str) -> SimaiOverlap:
    """Read ``tp=0.5,dp=1,pp=0.5``.

    Raises
    ------
    ConfigError
        If it is not of that form, a group is unknown or given twice, or a share is not allowed.
    """
    known = [field.name for field in fields(SimaiOverlap)]
    shares: dict[str, float] = {}
    for part in text.split(","):
        group, equals, share = (word.strip() for word in part.partition("="))
        if group not in known or not equals or group in shares:
            raise ConfigError(f"{text!r} is not of the form GROUP=SHARE,... with {', '.join(known)} each at most once")
        try:
            shares[group] = float(share)
        except ValueError:
            raise ConfigError(f"{share!r} is not a share; write one from 0 to 1, such as {group}=0.5") from None
    return SimaiOverlap(**shares)
