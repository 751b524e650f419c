"""Which rank a trace is of: what it says, or its name, or its place among the files."""

import re
from collections.abc import Sequence
from pathlib import Path

from traincast.diagnostics import Notebook
from traincast.errors import FormatError
from traincast.formats.kineto.grammar import Document, Trace, whole

_NAMED = re.compile(r"(?<![a-z])(?:rank|worker|gpu)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
"""As files are named: ``rank-3.Jul_15_10_52_41.1074.pt.trace.json.gz``, ``trace_rank_0.json``, ``worker0.json``."""
_MOST = 10**7


def said_rank(document: Document) -> int | None:
    """Return the rank that a trace says (``distributedInfo``); None where it is silent."""
    rank = whole((document.distributed or {}).get("rank"))
    return rank if 0 <= rank < _MOST else None


def named_rank(path: Path) -> int | None:
    """Return the rank that the name of a file says; None where it is silent."""
    found = _NAMED.search(path.name)
    return int(found[1]) if found else None


def ranks_of(traces: Sequence[Trace], notes: Notebook) -> list[int]:
    """Return the rank of each of a run's files.

    Raises
    ------
    FormatError
        If two are of one rank.
    """
    said = ranks = [said_rank(trace.document) for trace in traces]
    if None in said:
        silent = [trace.path.name for trace, rank in zip(traces, said, strict=True) if rank is None]
        shown = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
        ranks = [named_rank(trace.path) if rank is None else rank for trace, rank in zip(traces, said, strict=True)]
        by = "by the names of the files"
        if None in ranks:
            ranks, by = list(range(len(traces))), "in the order of the files"
        listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        text = f"{shown} has no distributedInfo with a rank; ranks are taken {by}: {listed}"
        notes.assume("rank-not-said", text, None)
    found: dict[int, Path] = {}
    for trace, rank in zip(traces, ranks, strict=True):
        if rank in found:
            text = f"the object 'distributedInfo' or the name says rank {rank}, as those of {found[rank]} do"
            raise FormatError(f"{text}; give one trace of each rank", str(trace.path))
        found[rank or 0] = trace.path
    return [rank or 0 for rank in ranks]
