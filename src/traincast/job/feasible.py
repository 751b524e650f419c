"""What the fields of a job may be: their choices and their ranges."""

from typing import Any

from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.choices import choices_of
from traincast.job.fields import JOB, fields
from traincast.job.optimizer import check_types
from traincast.job.request import JobRequest
from traincast.model.recompute import spelled_modules, split_recompute
from traincast.registry import known_name
from traincast.schedules.schedule import SCHEDULES
from traincast.units import check_given

_CHOSEN = tuple(each for each in fields(of=JOB) if each.takes in ("choice", "names"))
_NUMBERS = tuple(each for each in fields(of=JOB) if each.is_number)


def check_choices(request: JobRequest) -> JobRequest:
    """Refuse values that are not a choice, and counts below one; return the job with every choice in its one spelling.

    Raises
    ------
    ConfigError
        With the field.
    """
    request = _with_modules(request)
    spelled: dict[str, Any] = {}
    for field in _CHOSEN:
        said = getattr(request, field.name)
        if said is None:
            continue
        if field.takes == "choice":
            spelled[field.name] = known_name(field.what, str(said), choices_of(field))
        elif field.takes == "names" and field.name != "recompute_modules":
            names = (known_name(field.what, each, choices_of(field)) for each in said)
            spelled[field.name] = tuple(dict.fromkeys(names))
    if request.schedule is not None:
        spelled["schedule"] = SCHEDULES.get(request.schedule).name
    if request.recompute_modules is not None:
        spelled["recompute_modules"] = spelled_modules(request.recompute_modules)
    for field in _NUMBERS:
        check_given(request, (field.name,), least=field.least)
    longest = request.model.learned_positions
    if longest and request.seq_length > longest:
        raise InfeasibleError(
            f"{request.model.name} has {longest} learned positions; a sequence of {request.seq_length} has no others"
        )
    found = replace(request, **spelled)
    check_types(found)
    return found


def _with_modules(request: JobRequest) -> JobRequest:
    """Return a request with the modules that its recomputation names (``selective:mlp``) as such."""
    if request.recompute is None:
        return request
    kind, modules = split_recompute(request.recompute)
    if modules is None:
        return request
    said = request.recompute_modules
    if said is not None and spelled_modules(said) != modules:
        text = f"is {request.recompute}, and recompute_modules is {' '.join(said)}; name the modules once"
        raise ConfigError(text, "recompute")
    return replace(request, recompute=kind, recompute_modules=modules)
