"""What-ifs as a user writes them: how long some work takes, or the value of a field of the run.

::

    tp_comm*0.5                  communication over tp groups takes half as long
    rank7.compute=peers          rank 7 computes as long as the others of its stage
    rank3,7.own=peers            ranks 3 and 7 do all of their own work as fast as the others of their stages
    stage3.backward*0.9          backward computations of stage 3 take 90 % of their time
    compute=even                 a computation takes as long in every microbatch of its rank
    compute=balanced             a computation takes as long on every rank of its stage
    comm=usual                   no transfer takes longer than the median of those of its name
    op:attn_fwd*0.8              an operation by its name
    nic_bandwidth=800Gb/s        another network card; or any field of a cluster, such as inter.hop_latency_s=3us
    cluster=h200                 another cluster
    overlap_grad_reduce=true     any field of the job, of the layout of files, or of the simulation
"""

import re

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.units import is_number, quoted

PEERS, EVEN, BALANCED, USUAL = "peers", "even", "balanced", "usual"
"""Values of work that is to take as long as other work: on like ranks, in the mean of its rank, in the mean of its
stage, at most in the median of its name."""
LIKE = (PEERS, EVEN, BALANCED, USUAL)
OPERATION = "op:"
"""What stands before the name of an operation."""
KINDS_OF_WORK = ("compute", "host", "copy", "own", "comm")
"""Computations; pauses of the host; copies; the three together; all communication."""
PHASES = ("forward", "backward", "weight_gradient", "recompute", "step")
"""Computations of one phase."""
EXPOSED = ("tp", "cp", "ep", "pp", "dp")
"""Groups whose exposed communication a step is divided into."""
GROUP_NAMES = (*EXPOSED, "etp", "edp", "emb", "mp", "world", "shard", "replica")
"""Communication groups as the user names them."""
GROUPS = (*GROUP_NAMES, "copy")
WORK = (*KINDS_OF_WORK, *PHASES, *(f"{group}_comm" for group in GROUPS))
"""Names of work whose time can be changed."""
MOST = 1e6
"""Largest factor on a time."""

_PLACE = re.compile(r"(rank|stage)(\d{1,9}(?:,\d{1,9}){0,99})\.(.+)", re.IGNORECASE)


class WorkEdit(Struct, frozen=True, kw_only=True):
    """How the time of some work changes."""

    work: str
    """One of `WORK`, or `OPERATION` and the name of an operation."""
    ranks: tuple[int, ...] = ()
    """The ranks whose work changes, including their communication with others; empty: all ranks."""
    stages: tuple[int, ...] = ()
    """The stages whose work changes; empty: all stages."""
    factor: float = 1.0
    """What its time is multiplied with."""
    like: str = ""
    """One of `LIKE`, instead of a factor."""

    @property
    def shown(self) -> str:
        """What it is of, for messages."""
        where = "".join(
            f"{what}{','.join(map(str, numbers))}."
            for what, numbers in (("rank", self.ranks), ("stage", self.stages))
            if numbers
        )
        return where + self.work


class FieldEdit(Struct, frozen=True):
    """Another value of a field of the run."""

    name: str
    value: str
    """As it was written."""


def parse_change(text: str) -> WorkEdit | FieldEdit:
    """Return what a what-if asks for.

    Raises
    ------
    ConfigError
        If it is of no such form, or names work that there is not.
    """
    name, equals, value = (each.strip() for each in text.rpartition("="))
    like = value.lower() if equals and name else ""
    if like == PEERS or (like in LIKE and _work(_placed(name)[1]) is not None):
        return _as_like(text, name, like)
    if equals and name and value:
        return FieldEdit(name, value)
    name, star, factor = (each.strip() for each in text.rpartition("*"))
    if not star or not name:
        known = "WORK*FACTOR, rankN.WORK=peers, or FIELD=VALUE, such as tp_comm*0.5"
        raise ConfigError(f"{quoted(text)} is not a change; write {known}", "what_if")
    if not is_number(factor) or not 0 <= float(factor) <= MOST:
        raise ConfigError(f"{quoted(factor)} in {quoted(text)} is not a factor from 0 to {MOST:g}", "what_if")
    return _work_edit(text, name, float(factor))


def _as_like(text: str, name: str, like: str) -> WorkEdit:
    edit = _work_edit(text, name, 1.0, like)
    is_comm = edit.work.endswith("comm")
    if like == PEERS and (is_comm or not (edit.ranks or edit.stages)):
        raise ConfigError(
            f"{quoted(text)}: only work of some ranks or stages can be as on peers, such as rank7.compute=peers",
            "what_if",
        )
    if like != PEERS and is_comm != (like == USUAL):
        what = "communication, such as comm" if like == USUAL else "own work, such as compute"
        raise ConfigError(f"{quoted(text)}: what is {like} is {what}={like}", "what_if")
    return edit


def _placed(name: str) -> tuple[re.Match[str] | None, str]:
    """Return where work is, if that is said, and its name."""
    placed = _PLACE.fullmatch(name)
    return placed, name if placed is None else placed[3]


def _work(name: str) -> str | None:
    return name if name.startswith(OPERATION) else find_name(name, WORK)


def _work_edit(text: str, name: str, factor: float, like: str = "") -> WorkEdit:
    placed, name = _placed(name)
    numbers = () if placed is None else tuple(sorted(set(map(int, placed[2].split(",")))))
    work = _work(name)
    if work is None:
        raise ConfigError(
            f"{quoted(name)} in {quoted(text)} does not name any work; {known_names(name, WORK)}, or op:NAME", "what_if"
        )
    of_ranks = placed is not None and placed[1].lower() == "rank"
    return WorkEdit(
        work=work, ranks=numbers if of_ranks else (), stages=() if of_ranks else numbers, factor=factor, like=like
    )
