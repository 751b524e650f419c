"""Files of a planned layout for what runs it, each written only if its own reader makes the planned job of it.

A file says what `traincast.dialects.WRITES` can write of a layout. What is written is read back, as a user would paste
it: where step or memory of that job are not those of the plan, there is no file, and the reason is told.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from traincast.dialects import WRITES, draft_like
from traincast.dialects.writing import toml_of
from traincast.errors import ConfigError, TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.job_file import SECTIONS
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.advice import advice_of_plan
from traincast.planning.answer import Choice, Plan
from traincast.planning.several import Plans
from traincast.simulation.advised import advised_request
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting

LAYOUT_FILES: Mapping[str, str] = {
    "megatron.txt": "megatron",
    "bridge.txt": "bridge",
    "torchtitan.toml": "torchtitan",
    "job.toml": "",
}
"""End of the name of a file of a layout to the framework that it is for; empty for a job file of our own."""
_SAME = 1e-9
"""Relative difference of steps and memory below which two jobs are the same."""
_MOST_NAMED = 6


class Export(NamedTuple):
    """A file of a layout, or why there is none."""

    name: str
    text: str | None
    why_not: str = ""


def exports(plan: Plan, choice: Choice) -> Iterator[Export]:
    """Yield the files of a planned layout."""
    job = decided(plan, choice)
    for name, like in LAYOUT_FILES.items():
        text = WRITES[like](job) if like else job_toml(plan, choice)
        why_not = _unlike(plan, choice, like, text) if like else ""
        yield Export(name, None if why_not else text, why_not)


def decided(plan: Plan, choice: Choice) -> Job:
    """Return the job of a planned layout with everything decided."""
    job = resolve_job(_request(plan, choice), load_cluster(plan.asked.cluster))
    # A layout has a dispatcher, which its request leaves open where each rank has all experts.
    dispatcher = choice.layout.moe_dispatcher
    return job if dispatcher is None else job.with_values(moe_dispatcher=dispatcher)


def _request(plan: Plan, choice: Choice) -> JobRequest:
    return replace(plan.asked.request, **choice.layout.request())


def planned_job_file(plan: Plan | Plans, *, numbers: bool = False) -> str:
    """Return a job file of the layout to run with advice; what changes the numbers of a model only where asked for.

    Raises
    ------
    ConfigError
        If there are several plans.
    """
    if not isinstance(plan, Plan):
        raise ConfigError("is of one plan; plan one model on one cluster with one number of GPUs", "apply")
    advised = advised_request(_request(plan, plan.best[0]), advice_of_plan(plan), numbers=numbers)
    return _toml(plan, advised)


def job_toml(plan: Plan, choice: Choice) -> str:
    """Return a job file of the layout, for ``traincast predict``: all that was asked for, and what was decided.

    Files that it names are written with their whole path.
    """
    return _toml(plan, _request(plan, choice))


def _toml(plan: Plan, request: JobRequest) -> str:
    asked = plan.asked
    framework = request.framework if isinstance(request.framework, str) else plan.framework
    said = {each: getattr(request, each) for each in JOB_FIELDS}
    said |= {"name": _whole_path(asked.cluster), "framework": _whole_path(framework)}
    unsaid = {name: each.default for name, each in JOB_FIELDS.items()}
    tables = {
        section: {key: said[key] for key in keys if key == "name" or said[key] != unsaid.get(key)}
        for section, keys in SECTIONS.items()
    }
    return toml_of({"model": {"name": _whole_path(asked.model)}, **tables})


def _whole_path(name: str) -> str:
    """Return the whole path of a file, so that it is found from anywhere; a name as it is."""
    return str(Path(name).resolve()) if name.endswith((".toml", ".json")) and Path(name).is_file() else name


def _unlike(plan: Plan, choice: Choice, like: str, text: str) -> str:
    """Return how the job that a framework's reader makes of a text differs from the planned one; empty if not."""
    request, cluster = _request(plan, choice), load_cluster(plan.asked.cluster)
    framework = request.framework or plan.framework
    if like == "torchtitan" and "torchtitan" not in str(getattr(framework, "name", framework)):
        return f"planned for {plan.framework}; --framework torchtitan-2025 plans for torchtitan"
    try:
        planned = resolve_job(request, cluster)
        # No plan decides what computes the loss; where a framework cannot be told it, a comment of the file says so.
        given = {"gpus": plan.gpus, "framework": framework, "loss_kernel": planned.kernels.loss_kernel}
        said = Draft(model=plan.asked.model, fields=given)
        read = resolve_job(_read(like, text).under(said).request(), cluster)
        differing = list(_differences(planned, read))
        if not differing or _alike(planned, read, Setting(cluster=cluster)):
            return ""
    except TraincastError as error:
        return f"its reader refuses what can be said of it: {error}"
    more = f" and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
    return f"it cannot be told {', '.join(differing[:_MOST_NAMED])}{more}"


def _read(like: str, text: str) -> Draft:
    """Read a text as its framework's reader does (errors as `traincast.dialects.draft_like`)."""
    if like != "torchtitan":
        lines = (line for line in text.splitlines() if not line.startswith("#"))
        return draft_like(like, [word for line in lines for word in line.split()])
    with TemporaryDirectory() as folder:
        path = Path(folder, "layout.toml")
        path.write_text(text, encoding="utf-8")
        return draft_like(like, ["--job.config_file", str(path)])


def _differences(planned: object, read: object, prefix: str = "") -> Iterator[str]:
    """Yield what two jobs differ in: the field, what is planned, and what is read."""
    for name in planned.__struct_fields__:  # type: ignore[attr-defined]
        wanted, found = getattr(planned, name), getattr(read, name)
        if wanted == found or name in ("notes", "assumptions", "warnings"):
            continue
        if isinstance(wanted, msgspec.Struct) and type(wanted) is type(found):
            yield from _differences(wanted, found, f"{name}.")
        else:
            yield f"{prefix}{name} {wanted} (read as {found})"


def _alike(planned: Job, read: Job, setting: Setting) -> bool:
    """Say whether two jobs take the same time and memory."""
    wanted, found = (forecast(job, setting, allow_oom=True) for job in (planned, read))
    wanted_memory, found_memory = wanted.memory_bytes or (), found.memory_bytes or ()
    pairs = [(wanted.iteration_time_s, found.iteration_time_s)]
    pairs += [(float(a.peak), float(b.peak)) for a, b in zip(wanted_memory, found_memory, strict=False)]
    return len(wanted_memory) == len(found_memory) and all(abs(a - b) <= _SAME * a for a, b in pairs)
