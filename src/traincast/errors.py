"""Every error that traincast raises on purpose.

::

    TraincastError
    |-- FormatError          a file is not what its format says          (path, line)
    |-- ConfigError          a description of the job or cluster is wrong (field path)
    |   `-- UnknownNameError a name that no registry entry has            (the known ones)
    |-- InfeasibleError      the job is understood but cannot be run      (bytes needed and usable, stage)
    |-- ProgramError         a program breaks its own rules               (the ops)
    |   `-- DeadlockError    operations wait for each other for ever      (the ops)
    |-- CalibrationError     measurements that cannot be fitted           (rows there are and needed)
    `-- MeasurementError     this machine can measure nothing

A message says what is wrong, where, and what to do about it. The command line
prints it alone, without a traceback, and ends with ``exit_code``.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

from traincast.names import known_names


class TraincastError(Exception):
    """Any error that traincast raises on purpose; ``exit_code`` and ``code`` are the shell's view of it.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.predict("job_that_is_not_there.toml")
    ... except traincast.TraincastError as error:
    ...     print(error)
    job_that_is_not_there.toml: cannot be read: No such file or directory
    """

    exit_code = 1
    code = "run"
    """Its kind, as the document ``traincast.error/1`` has it."""
    flags: Mapping[str, str] = MappingProxyType({})
    """Words of Python in the message, such as ``allow_oom=True``, to what is typed in a shell: ``--allow-oom``."""

    def typed(self, **flags: str) -> Self:
        """Return this error, whose words of Python, such as ``allow_oom=True``, are these flags on the command line."""
        words = [(each[0], each[1], each[2]) for each in re.finditer(r"\b(\w+)=([^\s;,):]+)", str(self))]
        self.flags = {
            word: flags[name] if value in ("True", "...") else f"{flags[name]} {value}"
            for word, name, value in words
            if name in flags
        }
        return self

    @property
    def in_shell(self) -> str:
        """The message as the command line prints it."""
        text = str(self)
        for word, flag in self.flags.items():
            text = text.replace(word, flag)
        return text


class FormatError(TraincastError):
    """A file that cannot be read as what it claims to be.

    Parameters
    ----------
    message : str
        What is wrong and what to do.
    path : str
        The file.
    line : int, optional
        1-based line in it; None where the whole file is meant.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.simulate("examples/kernels_a100.csv")
    ... except traincast.FormatError as error:
    ...     print(error.path)
    examples/kernels_a100.csv
    """

    code = "format"

    def __init__(self, message: str, path: str, line: int | None = None) -> None:
        self.message, self.path, self.line = message, path, line
        place = path if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {message}")


class ConfigError(TraincastError):
    """A wrong value in a description of the job or the cluster; ``field`` says which.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.predict("examples/llama3_70b_512gpu.toml", tp="eight")
    ... except traincast.ConfigError as error:
    ...     print(error, "|", error.field)
    tp: is 'eight'; it must be a whole number | tp
    """

    code = "config"

    def __init__(self, message: str, field: str | None = None) -> None:
        self.field = field
        super().__init__(message if field is None else f"{field}: {message}")


class UnknownNameError(ConfigError):
    """A name that is in no registry; the message lists the known ones and those near it.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.clusters(["h10"])
    ... except traincast.UnknownNameError as error:
    ...     print(error.name, "h100" in error.known)
    h10 True
    """

    code = "unknown_name"

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"unknown {kind} {name!r}; {known_names(name, self.known)}")


class InfeasibleError(TraincastError):
    """A job that is understood but cannot run: it does not divide or does not fit.

    Parameters
    ----------
    message : str
        The rule that it breaks, by how much, and what to change.
    needed_bytes, limit_bytes : float, optional
        Where memory refuses it: what the stage that needs most would take of a GPU, and what programs can use of one.
    stage : int, optional
        That pipeline stage.
    remedies : sequence, optional
        What would do, each alone, of a plan in which no layout fits (`traincast.planning.remedy.Remedy`).

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.predict(model="llama3-70b", cluster="h100", gpus=8, tp=8, global_batch=8)
    ... except traincast.TraincastError as error:
    ...     print(type(error).__name__)
    ConfigError
    >>> try:
    ...     traincast.predict(model="llama3-70b", cluster="h100", gpus=8, tp=8, global_batch=8, seq_length=8192)
    ... except traincast.InfeasibleError as error:
    ...     print(error.needed_bytes > error.limit_bytes)
    True
    """

    exit_code = 3
    code = "infeasible"

    def __init__(
        self,
        message: str,
        *,
        needed_bytes: float | None = None,
        limit_bytes: float | None = None,
        stage: int | None = None,
        remedies: Iterable[Any] = (),
    ) -> None:
        self.needed_bytes, self.limit_bytes, self.stage = needed_bytes, limit_bytes, stage
        self.remedies: tuple[Any, ...] = tuple(remedies)
        super().__init__(message)


class ProgramError(TraincastError):
    """A program that breaks its own rules, such as a send without its receive.

    Examples
    --------
    >>> from msgspec.structs import replace
    >>> import traincast
    >>> from traincast.schedules.check import check_plan
    >>> from traincast.schedules.schedule import planned
    >>> plan = planned("1f1b", 2, 1, 2)
    >>> try:
    ...     check_plan(replace(plan, slots=(plan.slots[0], plan.slots[1][1:])), 2, 1, 2)
    ... except traincast.ProgramError as error:
    ...     print(error)
    plan 1f1b lacks 1 parts: F of virtual stage 1, microbatch 0
    """

    code = "program"


class DeadlockError(ProgramError):
    """Operations that wait for each other for ever; ``ops`` are their indices.

    Examples
    --------
    >>> from msgspec.structs import replace
    >>> import traincast
    >>> from traincast.schedules.check import check_plan
    >>> from traincast.schedules.schedule import planned
    >>> plan = planned("1f1b", 2, 1, 2)
    >>> try:
    ...     check_plan(replace(plan, slots=(plan.slots[0], plan.slots[1][::-1])), 2, 1, 2)
    ... except traincast.DeadlockError as error:
    ...     print(error.ops)
    (2, 4)
    """

    code = "deadlock"

    def __init__(self, message: str, ops: Iterable[int] = ()) -> None:
        self.ops = tuple(ops)
        super().__init__(message)


class CalibrationError(TraincastError):
    r"""Measurements of which none can be used, or that cannot be fitted.

    Parameters
    ----------
    message : str
        Why, and what is needed.
    rows, needed_rows : int, optional
        Where there are too few: the rows that can be used, and how many a fit needs.

    Examples
    --------
    >>> from pathlib import Path
    >>> import traincast
    >>> _ = Path("few.csv").write_text("gpus,nodes,size_bytes,time_us\n4,1,4096,12.5\n")
    >>> try:
    ...     traincast.api.compare_collectives("few.csv", "examples/all_reduce_a100.csv")
    ... except traincast.CalibrationError as error:
    ...     print(error.rows, error.needed_rows)
    0 1
    """

    code = "calibration"

    def __init__(self, message: str, *, rows: int | None = None, needed_rows: int | None = None) -> None:
        self.rows, self.needed_rows = rows, needed_rows
        super().__init__(message)


class MeasurementError(TraincastError):
    """Nothing can be measured on this machine, or not into this file; the message says what to do.

    Examples
    --------
    >>> import traincast
    >>> try:
    ...     traincast.measure("examples/llama3_70b_512gpu.toml", "no_such_folder/operators.csv")
    ... except traincast.MeasurementError:
    ...     print("no GPU here, no PyTorch, or no such folder")
    no GPU here, no PyTorch, or no such folder
    """

    code = "measurement"
