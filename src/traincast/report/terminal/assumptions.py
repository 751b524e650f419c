"""Which assumptions of a result cannot move its step by much, and may stay behind ``--verbose``.

An assumption about how communication over a kind of group is done can move the step by no more than all of that
communication takes on a rank, overlapped or not; what only does arithmetic with what was given moves nothing.
"""

import re
from collections.abc import Mapping, Sequence

from traincast.diagnostics import Note
from traincast.simulation.result import Result

MINOR = 0.01
"""Share of the step below which an assumption may stay unsaid."""
_DATA = ("dp", "edp", "shard", "replica")
_ABOUT: Mapping[str, Sequence[str]] = {
    "assumed-overlap-grad-reduce": _DATA,
    "assumed-overlap-param-gather": _DATA,
    "assumed-zero": _DATA,
    "assumed-overlap-tp": ("tp", "etp"),
    "assumed-overlap-p2p": ("pp",),
    "assumed-moe-dispatcher": ("ep",),
    "node-limited-routing": ("ep",),
    "message-size": ("pp",),
    "pp-comm-absent": ("pp",),
}
"""Codes of assumptions about communication, and the kinds of groups that it is over."""
_ARITHMETIC = frozenset({"dp-from-gpus", "microbatches-from-batch", "measured-otherwise", "overlap-p2p-unused"})
_NAMED = re.compile(r"\b([a-z]+(?:(?:, | and )[a-z]+)*) groups\b")
"""Kinds of groups that a note of shared links names: ``pp, dp and emb groups``."""


def parted(result: Result) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Return the assumptions that may move the step, and those that move it by less than `MINOR`."""
    of_group: dict[str, float] = {}
    for each in result.collectives:
        of_group[each.group] = of_group.get(each.group, 0.0) + each.count * each.time_s
    minor = [_is_minor(note, of_group, result.iteration_time_s) for note in result.assumptions]
    told = tuple(zip(result.assumptions, minor, strict=True))
    return tuple(note for note, small in told if not small), tuple(note for note, small in told if small)


def _is_minor(note: Note, of_group: Mapping[str, float], step_s: float) -> bool:
    if note.code in _ARITHMETIC:
        return True
    if note.effect is not None:
        return abs(note.effect) < MINOR
    groups = _ABOUT.get(note.code)
    if note.code == "shared-links":
        groups = [word for words in _NAMED.findall(note.text) for word in re.split(r", | and ", words)]
    if not groups or not of_group:
        return False
    return sum(of_group.get(group, 0.0) for group in groups) < MINOR * step_s
