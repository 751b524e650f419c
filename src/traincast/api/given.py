"""What a user gave in place of a job or of files: a result, and options together with keywords."""

from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeVar

from msgspec.structs import replace

from traincast.api.results import is_result, load_result
from traincast.errors import ConfigError
from traincast.job.options import SimulateOptions, StepOptions
from traincast.job.record import RunRecord
from traincast.simulation.reproducible import record_of
from traincast.simulation.result import Result

T = TypeVar("T")


def refuse_both(options: StepOptions | None, said: Mapping[str, Any]) -> None:
    """Refuse options together with keywords."""
    if options is not None and said:
        raise ConfigError(f"give options or keywords, not both ({', '.join(sorted(said))})")


def loaded(given: T) -> T | Result:
    """Return the result that a path is of; everything else as it is."""
    return load_result(given) if isinstance(given, (str, PathLike)) and is_result(given) else given


def record_and_options(result: Result, given: object) -> tuple[RunRecord, SimulateOptions]:
    """Return what a result was made from, and the options of that run; `given` is its path, or itself."""
    record = record_of(result, "result.json" if isinstance(given, Result) else str(given))
    return record, replace(record.options, suggest=bool(result.suggestions))
