"""The sum that SimAI-Analytical makes of a workload."""

from os import fspath

from msgspec.structs import replace

from traincast.api.files import Files, StrPath, expand
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.estimate.simai.machine import simai_machine
from traincast.estimate.simai.total import SimaiReport, refuse_with_simai, simai_sum
from traincast.formats.aicb.grammar import load
from traincast.formats.open import identify
from traincast.hardware.cluster import Cluster
from traincast.job.options import SimaiOverlap, SimulateOptions
from traincast.simulation.reproducible import DEFAULT_CLUSTER


def simai(files: Files, options: SimulateOptions | None = None, overlap: SimaiOverlap | None = None) -> SimaiReport:
    """Add up an AICB/SimAI workload as SimAI-Analytical does, for those who compare with it.

    Its numbers are its own; nothing in them is scheduled or overlapped. Of the options it takes the cluster preset
    (default ``h100``), world size, degrees and microbatches; `overlap` says what SimAI is told to leave out.

    Raises
    ------
    ConfigError
        If the file is not an AICB/SimAI workload, an option means nothing to SimAI, or SimAI would
        crash on the file.

    Examples
    --------
    >>> from traincast import api
    >>> report = api.simai("examples/aicb_gpt_405b_1024gpu.txt")
    >>> 0 < report.compute_s
    True
    """
    chosen = options or SimulateOptions()
    refuse_with_simai(chosen)
    path, *others = expand(files)
    form = identify(path)
    if others or form.name != "aicb":
        what = f"{1 + len(others)} files" if others else form.title
        raise ConfigError(f"SimAI's sum is that of one AICB/SimAI workload, but this is {what}", str(path))
    report = simai_sum(load(path), simai_machine(_name_of(chosen.cluster or DEFAULT_CLUSTER)), chosen.layout, overlap)
    if chosen.cluster:
        return report
    warning = Note(
        "cluster-default", f"SimAI's constants of {DEFAULT_CLUSTER} were taken, because no cluster was given"
    )
    return replace(report, warnings=(*report.warnings, warning))


def _name_of(cluster: StrPath | Cluster) -> str:
    return cluster.name if isinstance(cluster, Cluster) else fspath(cluster)
