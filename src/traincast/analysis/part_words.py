"""One vocabulary for the parts of a step, whoever named them.

A forecast names parts by layers and exchanges (``layers forward``, ``tp all_reduce``), Megatron-LM's timers by their
functions (``forward_step``), a profiler's trace by passes and groups. Each name is one of the few parts that all of
them know.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

PASSES = "passes and their exchanges"
"""What timers of passes measure: all that a pass computes, launches and exchanges over tp, cp and ep."""
_LAUNCHES = "launches"
_HOST = "host"
_WORDS = (
    ("pp", re.compile(r"^(?:send|recv)_|^pp(?![a-z])")),
    (_LAUNCHES, re.compile(r"^host launches|^waits of the host")),
    (_HOST, re.compile(r"^host_gap|overhead|^get_batch")),
    ("optimizer", re.compile(r"^optimizer|^step$|^(?:world|mp)(?![a-z])|grad_norm")),
    ("tp", re.compile(r"^e?tp(?![a-z])")),
    ("cp", re.compile(r"^cp(?![a-z])")),
    ("ep", re.compile(r"^ep(?![a-z])")),
    ("dp", re.compile(r"^(?:dp|edp|exp_dp|shard|replica)(?![a-z])")),
    ("emb", re.compile(r"^emb(?![a-z])")),
    ("backward", re.compile(r"backward|weight[ _]gradient|recompute")),
    ("forward", re.compile(r"forward|loss")),
)
"""The common part that a name is of; the first that fits counts, and what fits none keeps its name."""
_TIMERS = frozenset({"forward_step", "backward_step"})
_INSIDE = frozenset({"forward", "backward", "tp", "cp", "ep", _LAUNCHES})

Seconds = Mapping[int, Mapping[str, float]]
"""Seconds by rank and part."""


def common_part(name: str, *, whole_passes: bool) -> str:
    """Return the part, in the words that all sides share, that a part of any side belongs to.

    Parameters
    ----------
    name : str
        In any side's words.
    whole_passes : bool
        Whether one of the sides times passes with all that is inside (`times_whole_passes`): they are one part then.
    """
    part = next((part for part, pattern in _WORDS if pattern.search(name)), name)
    if whole_passes and part in _INSIDE:
        return PASSES
    return _HOST if part == _LAUNCHES else part


def times_whole_passes(names: Iterable[str]) -> bool:
    """Say whether parts are those of timers around whole passes, so that their exchanges cannot be told apart."""
    return not _TIMERS.isdisjoint(names)


def in_common_words(seconds: Seconds, *, whole_passes: bool) -> dict[int, dict[str, float]]:
    """Return seconds by the parts that all sides know.

    Parameters
    ----------
    seconds : mapping
        By rank and part, in any side's words.
    whole_passes : bool
        As of `common_part`.
    """
    found: dict[int, dict[str, float]] = {}
    for rank, known in seconds.items():
        sums: dict[str, float] = defaultdict(float)
        for name, time_s in known.items():
            sums[common_part(name, whole_passes=whole_passes)] += time_s
        found[rank] = dict(sums)
    return found
