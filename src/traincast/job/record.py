"""All that is needed to run a result again, as a table of a result (key ``run``) and back.

The table of a forecast holds the job as a job file says it, with the model in full; both commands hold the cluster in
full as a cluster file says it, and the options. Values that are as their default are left out.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.files import InputFile
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_from_table, cluster_table
from traincast.job.draft import Draft, Setting
from traincast.job.frameworks import Framework, framework_from_table, framework_names, load_framework
from traincast.job.job import DECIDED, GROUPS, Job
from traincast.job.job_file import SECTIONS, draft_of_table
from traincast.job.optimizer import PLAIN
from traincast.job.options import LayoutOptions, SimulateOptions, make_options
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.model.table import model_from_table
from traincast.tables import as_table, is_said

COMMANDS = ("predict", "simulate")


class RunRecord(Struct, frozen=True, kw_only=True):
    """What a result was made from."""

    command: str
    """One of `COMMANDS`."""
    cluster: Cluster
    """What it ran on, with every override."""
    cluster_assumed: bool = False
    """Whether nobody named it."""
    options: SimulateOptions
    """Options of the simulation, without its cluster."""
    job: JobRequest | Job | None = None
    """What was forecast: as it was said, or with everything decided; None for a workload."""
    notes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    """What reading the job brought up."""
    settings: tuple[Setting, ...] = ()
    """What became of each setting of the framework's flags and files that it was read from."""
    allow_oom: bool = False
    """Whether it runs even where it does not fit into memory."""
    inputs: tuple[InputFile, ...] = ()
    """The files that it was read from."""

    def draft(self) -> Draft | Job:
        """Return the job that was forecast, so that options can win over it where it was not all decided.

        Raises
        ------
        ConfigError
            If the result is not a forecast.
        """
        if isinstance(self.job, Job):
            return self.job
        if self.job is None:
            raise ConfigError(
                "is the result of a file, which does not describe a job; run traincast simulate on it", "run.command"
            )
        return Draft(
            model=self.job.model,
            cluster=self.cluster,
            cluster_assumed=self.cluster_assumed,
            fields=_fields_said(self.job),
            notes=self.notes,
            warnings=self.warnings,
            settings=self.settings,
            inputs=self.inputs,
        )


def record_to_table(record: RunRecord) -> dict[str, object]:
    """Return a record as a table of plain values; the inputs stand next to it in the result."""
    table: dict[str, object] = {"command": record.command}
    if isinstance(record.job, Job):
        table["decided_job"] = _decided_table(record.job)
    elif record.job is not None:
        table |= _job_table(record.job)
    if record.command == "predict":
        table |= {"notes": as_table(record.notes), "warnings": as_table(record.warnings), "allow_oom": record.allow_oom}
        table |= {"settings": as_table(record.settings)} if record.settings else {}
    return {
        **table,
        "cluster": cluster_table(record.cluster),
        "cluster_assumed": record.cluster_assumed,
        "options": as_table(record.options, leave_out=("cluster",)),
    }


def record_from_table(table: Mapping[str, Any], inputs: tuple[InputFile, ...], shown: str) -> RunRecord:
    """Return the record that the key ``run`` of a result holds, with the inputs of the same result.

    Raises
    ------
    FormatError
        If a value is missing or of another kind; the message names its path.
    ConfigError, UnknownNameError
        If a value of the job or the cluster is not allowed.
    """
    head = _convert({name: table[name] for name in _HEAD if name in table}, _Head, "run", shown)
    if head.command not in COMMANDS:
        raise FormatError(f"was made by {head.command!r} at $.run.command; known: {', '.join(COMMANDS)}", shown)
    return RunRecord(
        command=head.command,
        cluster=cluster_from_table(head.cluster, shown),
        cluster_assumed=head.cluster_assumed,
        options=_options_of_table(head.options, shown),
        job=_job_of_table(table, shown) if head.command == "predict" else None,
        notes=head.notes,
        warnings=head.warnings,
        settings=head.settings,
        allow_oom=head.allow_oom,
        inputs=inputs,
    )


class _Head(msgspec.Struct, kw_only=True):
    """What every record has."""

    command: str
    cluster: dict[str, Any]
    cluster_assumed: bool = False
    options: dict[str, Any] = {}
    notes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    settings: tuple[Setting, ...] = ()
    allow_oom: bool = False


_HEAD = _Head.__struct_fields__


def _options_of_table(table: Mapping[str, Any], shown: str) -> SimulateOptions:
    layout = _convert(table.get("layout", {}), dict[str, Any], "run.options.layout", shown)
    own = {name: value for name, value in table.items() if name != "layout"}
    said: dict[str, Any] = {}
    for kind, found, place in ((SimulateOptions, own, "run.options"), (LayoutOptions, layout, "run.options.layout")):
        _refuse_unknown(found, kind, place, shown)
        types = {each.name: each.type for each in fields(kind)} | _WRITTEN_AS
        said |= {name: _convert(value, types[name], f"{place}.{name}", shown) for name, value in found.items()}
    return make_options(**said)


_WRITTEN_AS: dict[str, Any] = {"expert_loads": tuple[float, ...] | str}
"""Types of options that JSON says in another form: loads may be the path of the traces that show them."""


def _fields_said(job: JobRequest) -> dict[str, Any]:
    """Return the fields of a job, except the model, that differ from their default."""
    return {name: getattr(job, name) for name, each in JOB_FIELDS.items() if name != "model" and is_said(job, each)}


def _job_table(job: JobRequest) -> dict[str, object]:
    """Return a job as the sections of a job file; a framework that no name leads to is given too in full."""
    said = _fields_said(job)
    framework = said.pop("framework", None)
    software = {} if framework is None or isinstance(framework, Framework) else {"framework": framework}
    sections: dict[str, object] = {"model": as_table(job.model, leave_out=("notes",))}
    for section, keys in SECTIONS.items():
        found = {key: as_table(said[key]) for key in keys if key in said}
        sections[section] = found | (software if section == "software" else {})
    table: dict[str, object] = {"job": sections, "model_notes": as_table(job.model.notes)}
    if isinstance(framework, Framework):
        table["framework"] = as_table(framework, leave_out=("sources",))
    return table


def _job_of_table(table: Mapping[str, Any], shown: str) -> JobRequest | Job:
    if "decided_job" in table:
        said = _convert(table["decided_job"], dict[str, Any], "run.decided_job", shown)
        return _decided_job(said, shown)
    sections = dict(_convert(table.get("job"), dict[str, dict[str, Any]], "run.job", shown))
    notes = _convert(table.get("model_notes", ()), tuple[Note, ...], "run.model_notes", shown)
    model = model_from_table(sections.pop("model", {}), shown, notes)
    said = dict(draft_of_table(sections, shown).fields)
    if "framework" in table:
        own = _convert(_whole_framework(table["framework"]), dict[str, Any], "run.framework", shown)
        said["framework"] = framework_from_table(own, shown)
    return Draft(model=model, fields=said).request()


_DECIDED_WHOLE = {"model": "model", "framework": "framework", "parallel": "parallel", "optimizer": "optimizer_types"}
"""Parts of a decided job that have a table of their own in a result, and its name; of the other groups the fields
stand side by side, by their names in a request."""


def _decided_table(job: Job) -> dict[str, object]:
    """Return a job with everything decided, as results hold it."""
    table: dict[str, object] = {}
    for group, kind in GROUPS.items():
        if group not in _DECIDED_WHOLE:
            values = getattr(job, group)
            said = (each for each in fields(kind) if is_said(values, each))
            table |= {each.encode_name: as_table(getattr(values, each.name)) for each in said}
    for part, name in _DECIDED_WHOLE.items():
        value = getattr(job, part)
        if value != PLAIN:
            # What levels of effort set was decided.
            table[name] = as_table(value, leave_out=("out_of_the_box", "habits"))
    table["shard"] = job.sharing
    if job.assumptions:
        table["assumptions"] = as_table(job.assumptions)
    return table


def _decided_job(said: dict[str, Any], shown: str) -> Job:
    """Return the job that such a table holds."""
    place = "run.decided_job"
    known = {*DECIDED, *_DECIDED_WHOLE.values(), "assumptions"}
    unknown = sorted(set(said) - known)
    if unknown:
        raise FormatError(f"cannot be run again by this version: $.{place}.{unknown[0]} is not known", shown)
    said["framework"] = _whole_framework(said.get("framework"))
    types = {each.name: each.type for each in fields(Job)}
    parts = {group: _typed(said, kind, place, shown) for group, kind in GROUPS.items() if group not in _DECIDED_WHOLE}
    for part, name in _DECIDED_WHOLE.items():
        parts[part] = _typed(said.get(name, {}), types[part], f"{place}.{name}", shown)
    assumptions = _typed(said.get("assumptions", ()), types["assumptions"], f"{place}.assumptions", shown)
    return Job(**parts, assumptions=assumptions)


def _whole_framework(table: Any) -> Any:  # noqa: ANN401
    """Return a framework with what it keeps in memory, which results did not say once."""
    known = isinstance(table, Mapping) and "memory" not in table and table.get("name") in framework_names()
    return {**table, "memory": as_table(load_framework(table["name"]).memory)} if known else table


def _convert(value: object, kind: Any, place: str, shown: str) -> Any:  # noqa: ANN401
    """Return a plain value as a typed one, of a record with no keys that are not known."""
    _refuse_unknown(value, kind, place, shown)
    return _typed(value, kind, place, shown)


def _typed(value: object, kind: Any, place: str, shown: str) -> Any:  # noqa: ANN401
    """Return a plain value as a typed one."""
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        what, at, path = str(error).partition(" - at `$")
        raise FormatError(f"cannot be run again: {what} at $.{place}{path.rstrip('`') if at else ''}", shown) from None


def _refuse_unknown(value: object, kind: Any, place: str, shown: str) -> None:  # noqa: ANN401
    """Refuse keys that this version does not know: leaving one out would run something else."""
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, Mapping):
        unknown = sorted(set(value).difference(kind.__struct_fields__))
        if unknown:
            raise FormatError(f"cannot be run again by this version: $.{place}.{unknown[0]} is not known", shown)
