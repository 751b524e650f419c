"""Why a command failed, as the document ``traincast.error/1``."""

from msgspec import Struct

from traincast.errors import CalibrationError, ConfigError, FormatError, InfeasibleError, UnknownNameError
from traincast.planning.remedy import Remedy


class Failure(Struct, frozen=True, kw_only=True):
    """What a command that failed says of it; its fields are the keys of ``traincast.error/1`` after ``schema``."""

    code: str
    """Kind of error: that of `traincast.errors`, or ``usage``, ``system``, ``out_of_memory``, ``interrupted``,
    ``internal``."""
    message: str
    """What is wrong, where, and what to do about it, as on standard error."""
    exit_code: int
    field: str | None = None
    """Option, or field of the job, cluster or file, that is wrong."""
    place: str | None = None
    """Where it is wrong: ``FILE:LINE``, ``FILE``, or the field."""
    path: str | None = None
    line: int | None = None
    """1-based."""
    needed: float | None = None
    """What the job or the fit needs, in `unit`."""
    limit: float | None = None
    """What there is of it."""
    unit: str | None = None
    """``bytes`` of GPU memory, or ``rows`` of measurements."""
    stage: int | None = None
    """Pipeline stage that needs so much."""
    name: str | None = None
    """Name that is not known."""
    notes: tuple[str, ...] = ()
    """What may be the cause."""
    remedies: tuple[Remedy, ...] = ()
    """What would do, each alone, where no layout of a plan fits."""


def failure_of(
    error: BaseException, code: str, message: str, exit_code: int, field: str | None = None, path: str | None = None
) -> Failure:
    """Return an error with the numbers and places that it carries; `field` and `path` where it carries none itself."""
    line = None
    needed: float | None = None
    limit: float | None = None
    unit, stage, name = None, None, None
    match error:
        case FormatError():
            path, line = error.path, error.line
        case UnknownNameError():
            field, name = error.field or field, error.name
        case ConfigError():
            field = error.field or field
        case InfeasibleError() if error.needed_bytes is not None:
            needed, limit, unit, stage = error.needed_bytes, error.limit_bytes, "bytes", error.stage
        case CalibrationError() if error.needed_rows is not None:
            needed, limit, unit = error.needed_rows, error.rows, "rows"
        case _:
            pass
    place = field if path is None else path if line is None else f"{path}:{line}"
    notes = tuple(getattr(error, "__notes__", ()))
    return Failure(
        code=code,
        message=message,
        exit_code=exit_code,
        field=field,
        place=place,
        path=path,
        line=line,
        needed=needed,
        limit=limit,
        unit=unit,
        stage=stage,
        name=name,
        notes=notes,
        remedies=error.remedies if isinstance(error, InfeasibleError) else (),
    )
