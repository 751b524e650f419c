"""What went wrong, as every endpoint says it: what, where, and what to do; no path of the server."""

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from traincast import report
from traincast.errors import InfeasibleError, TraincastError
from traincast.shipped import SHIPPED

WRONG, INFEASIBLE, BROKEN = 400, 409, 500
"""HTTP statuses of what is asked wrongly, of what cannot run, and of faults of ours."""
_STATUS = {"infeasible": INFEASIBLE, "internal": BROKEN, "out_of_memory": 503, "stopped": 503}


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why there is no answer."""

    kind: str
    """A code of `traincast.errors`, or ``internal``, ``out_of_memory``, ``cancelled``, ``superseded``, ``refused``,
    ``stopped``."""
    what: str
    where: str = ""
    """Field of the job, or place in a text."""
    message: str
    """What, where and what to do, in a line."""
    hint: str = ""
    """What to do about it."""
    needed: float | None = None
    limit: float | None = None
    over: float | None = None
    """By how much `needed` is above `limit`, in `unit`."""
    unit: str | None = None
    stage: int | None = None
    notes: tuple[str, ...] = ()
    remedies: tuple[dict[str, object], ...] = ()
    """What would do, each alone."""

    @property
    def status(self) -> int:
        """HTTP status."""
        return _STATUS.get(self.kind, WRONG)

    @staticmethod
    def simple(kind: str, message: str, where: str = "") -> "Problem":
        """Return a problem of a message that has a hint after its last semicolon."""
        what, _, hint = message.rpartition("; ") if "; " in message else (message, "", "")
        return Problem(kind=kind, what=what, where=where, message=message, hint=hint)


def problem_of(error: Exception, folder: str = "") -> Problem:
    """Return an error as a problem, without the folder of its task and other paths of ours."""
    if not isinstance(error, TraincastError):
        return Problem.simple("request", f"the request is not as this endpoint takes it: {error}")
    message = without_paths(str(error), folder)
    said = report.failure_of(error, error.code, message, error.exit_code)
    simple = Problem.simple(error.code, message)
    where = said.field or without_paths(said.place or "", folder)
    over = said.needed - said.limit if said.needed is not None and said.limit is not None else None
    return Problem(
        kind=error.code,
        what=simple.what.removeprefix(f"{where}: "),
        where=where,
        message=message,
        hint=simple.hint,
        needed=said.needed,
        limit=said.limit,
        over=over if isinstance(error, InfeasibleError) else None,
        unit=said.unit,
        stage=said.stage,
        notes=said.notes,
        remedies=tuple(msgspec.to_builtins(each) for each in said.remedies),
    )


def without_paths(text: str, folder: str = "") -> str:
    """Return a message in which files are named as the page named them: without folders of this machine.

    Examples
    --------
    >>> without_paths("/tmp/traincast-x/7/rank0.txt:3: has no time", "/tmp/traincast-x/7")
    'rank0.txt:3: has no time'
    """
    for each in filter(None, (folder, str(SHIPPED), str(SHIPPED.parent), str(Path.home()), str(Path.cwd()))):
        if each != "/":
            text = re.sub(rf"{re.escape(each)}(/files)?/?", "", text)
    return text
