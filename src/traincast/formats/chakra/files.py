"""Which files are one run: ``PREFIX.RANK.et`` of each rank, and perhaps the file of its groups."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from traincast.errors import FormatError
from traincast.files import read_head, unpacked_head
from traincast.formats.chakra.grammar import MOST_BYTES, Bodies, Trace, load
from traincast.formats.chakra.groups import Groups, groups_of
from traincast.formats.chakra.sniff import looks_like_groups
from traincast.progress import advanced, announce
from traincast.units import counted, format_size

_NAME = re.compile(r"(?P<prefix>.*?)\.?(?<!\d)(?P<rank>\d++)\.et(?:\.gz)?")
_HEAD_BYTES = 4096
_LONG_BYTES = 2**25
"""Bytes of traces from which reading them is announced."""
_BYTES_PER_S = 5e6
"""Read, ordered and joined on one core of a shared server: 261 MB of 2.4 million nodes in 56 s."""


class Run(Struct, frozen=True):
    """The files of a run."""

    traces: dict[int, Trace]
    """By rank, in rising order."""
    groups: Groups
    named: bool
    """Whether the ranks are in the names of the files; else there is one file, taken as rank 0."""


def is_groups_file(path: Path) -> bool:
    """Tell a comm-group file from a trace."""
    return looks_like_groups(
        unpacked_head(read_head(path, _HEAD_BYTES, MOST_BYTES), _HEAD_BYTES).decode(errors="replace")
    )


def only_run(paths: Sequence[Path]) -> Run:
    """Read the files of a run.

    Raises
    ------
    FormatError
        If one cannot be read, has no rank in its name, or is of another run than the others.
    """
    of_groups = [path for path in paths if is_groups_file(path)]
    traced = [path for path in paths if path not in of_groups]
    if not traced:
        raise FormatError("the file lists groups alone; give the traces (PREFIX.RANK.et) too", str(paths[0]))
    matches = [_NAME.fullmatch(path.name) for path in traced]
    if len(traced) == 1 and matches[0] is None:
        trace = load(traced[0])
        return Run({0: trace}, groups_of([trace], of_groups), named=False)
    by_rank: dict[int, Path] = {}
    prefixes: dict[str, Path] = {}
    for path, match in zip(traced, matches, strict=True):
        if match is None:
            raise FormatError("the file has no rank in its name; of several, each is PREFIX.RANK.et", str(path))
        rank = int(match["rank"])
        if rank in by_rank:
            raise FormatError(f"the file is rank {rank}, and so is {by_rank[rank]}; give one run", str(path))
        by_rank[rank] = path
        prefixes.setdefault(match["prefix"], path)
    if len(prefixes) > 1:
        one, other = list(prefixes.values())[:2]
        raise FormatError(f"the file is of another run than {one}: their names begin differently", str(other))
    traces = _load_all(by_rank)
    return Run(traces, groups_of(traces.values(), of_groups), named=True)


def _load_all(paths: Mapping[int, Path]) -> dict[int, Trace]:
    """Read the traces of the ranks; a long run is announced."""
    size = sum(path.stat().st_size for path in paths.values())
    if size > _LONG_BYTES:
        announce(f"reading {counted(len(paths), 'trace')}, {format_size(size)}: about {size / _BYTES_PER_S:.0f} s")
    known: Bodies = {}
    traces: dict[int, Trace] = {}
    for rank in sorted(paths):
        traces[rank] = load(paths[rank], known)
        advanced(0.5 * len(traces) / len(paths))
    return traces
