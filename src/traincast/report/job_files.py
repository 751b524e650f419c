"""Job files of forecasts: all that a forecast was asked for, perhaps with its advice, for ``traincast predict``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from traincast.dialects.writing import toml_of
from traincast.errors import ConfigError
from traincast.files import InputFile
from traincast.hardware.clusters import cluster_names, cluster_table, load_cluster
from traincast.job.record import RunRecord, record_to_table
from traincast.job.request import JobRequest
from traincast.model.load import load_model, model_names
from traincast.simulation.advised import advised_request
from traincast.simulation.reproducible import record_of
from traincast.simulation.result import Result


def advised_job_file(result: Result, *, numbers: bool = False) -> str:
    """Return a job file of a forecast with its advice; what changes the numbers that a model learns only where asked.

    Files that the forecast was made from are named with their whole path.

    Raises
    ------
    ConfigError
        If it is not a forecast of what a job file can say.
    """
    record = record_of(result)
    if not isinstance(record.job, JobRequest):
        raise ConfigError("is not of a job that can be written into a file, so that no advice is applied", "apply")
    return job_file_of(replace(record, job=advised_request(record.job, result.advice, numbers=numbers)))


def job_file_of(record: RunRecord) -> str:
    """Return the job file of what was forecast (errors as above)."""
    request, table = record.job, record_to_table(record)
    if not isinstance(request, JobRequest):
        raise ConfigError("has everything decided; a job file says what a request says", "job")
    sections = cast("dict[str, dict[str, Any]]", table["job"])
    model = _file(record, "model") or _file(record, "hugging-face")
    if model is None and request.model.name in model_names() and load_model(request.model.name) == request.model:
        model = request.model.name
    if model is not None:
        sections["model"] = {"name": model}
    if "framework" in table:
        framework = _file(record, "framework")
        if framework is None:
            raise ConfigError("has a framework of its own, which no file names; save it as a TOML first", "framework")
        sections["software"]["framework"] = framework
    sections["cluster"] = {**_cluster(record), **sections["cluster"]}
    return toml_of({name: each for name, each in sections.items() if each})


def _cluster(record: RunRecord) -> Mapping[str, str]:
    """Return what names the cluster: its file, or a preset that is equal; nothing of one that was made in Python."""
    name = _file(record, "cluster") or record.cluster.name
    known = name in cluster_names() and cluster_table(load_cluster(name)) == cluster_table(record.cluster)
    return {"name": name} if known or Path(name).is_file() else {}


def _file(record: RunRecord, form: str) -> str | None:
    """Return the whole path of a file of a kind that a forecast was made from."""
    found: InputFile | None = next((each for each in record.inputs if each.format == form), None)
    return None if found is None else str(Path(found.path).resolve())
