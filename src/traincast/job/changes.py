"""What-ifs as a user writes them: how long some work takes, or the value of a field of the run.

::

    tp_comm*0.5                  communication over tp groups takes half as long
    rank7.compute=peers          rank 7 computes as long as the others of its stage
    stage3.backward*0.9          backward computations of stage 3 take 90 % of their time
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

PEERS = "peers"
"""Value of work that is to take as long as on like ranks."""
OPERATION = "op:"
"""What stands before the name of an operation."""
KINDS_OF_WORK = ("compute", "host", "copy", "own", "comm")
"""Computations; pauses of the host; copies; the three together; all communication."""
PHASES = ("forward", "backward", "weight_gradient", "recompute", "step")
"""Computations of one phase."""
GROUPS = ("tp", "cp", "ep", "pp", "dp", "etp", "edp", "emb", "mp", "world", "shard", "replica", "copy")
WORK = (*KINDS_OF_WORK, *PHASES, *(f"{group}_comm" for group in GROUPS))
"""Names of work whose time can be changed."""
MOST = 1e6
"""Largest factor on a time."""

_PLACE = re.compile(r"(rank|stage)(\d{1,9})\.(.+)", re.IGNORECASE)


class WorkEdit(Struct, frozen=True, kw_only=True):
    """How the time of some work changes."""

    work: str
    """One of `WORK`, or `OPERATION` and the name of an operation."""
    rank: int | None = None
    """Of this rank alone; of its communications those with others too."""
    stage: int | None = None
    """Of this stage alone."""
    factor: float | None = None
    """What its time is multiplied with; None: as on peers."""

    @property
    def shown(self) -> str:
        """What it is of, for messages."""
        where = f"rank{self.rank}." if self.rank is not None else "" if self.stage is None else f"stage{self.stage}."
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
    if equals and name and value and value.lower() != PEERS:
        return FieldEdit(name, value)
    if equals and name and value:
        return _work_edit(text, name, None)
    name, star, factor = (each.strip() for each in text.rpartition("*"))
    if not star or not name:
        known = "WORK*FACTOR, rankN.WORK=peers, or FIELD=VALUE, such as tp_comm*0.5"
        raise ConfigError(f"{quoted(text)} is no change; write {known}", "what_if")
    if not is_number(factor) or not 0 <= float(factor) <= MOST:
        raise ConfigError(f"{quoted(factor)} in {quoted(text)} is no factor from 0 to {MOST:g}", "what_if")
    return _work_edit(text, name, float(factor))


def _work_edit(text: str, name: str, factor: float | None) -> WorkEdit:
    placed = _PLACE.fullmatch(name)
    rank = stage = None
    if placed is not None:
        number, name = int(placed[2]), placed[3]
        rank, stage = (number, None) if placed[1].lower() == "rank" else (None, number)
    work = name if name.startswith(OPERATION) else find_name(name, WORK)
    if work is None:
        raise ConfigError(
            f"{quoted(name)} in {quoted(text)} is no work; {known_names(name, WORK)}, or op:NAME", "what_if"
        )
    if factor is None and (placed is None or work.endswith("comm")):
        raise ConfigError(
            f"{quoted(text)}: what is as on peers is the own work of one rank or stage, such as rank7.compute=peers",
            "what_if",
        )
    return WorkEdit(work=work, rank=rank, stage=stage, factor=factor)
