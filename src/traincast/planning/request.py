"""What is asked of a plan, where a job is only begun: sequences as long as the model is made for."""

from os import PathLike

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.request import JobRequest
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.model.model import Model
from traincast.planning.goals import CHINCHILLA
from traincast.planning.options import PlanKeywords
from traincast.units import checked_field, format_count

LONGEST_SEQUENCE = 8192
"""Longest sequence that is assumed: that of the pre-training of Llama 3 (arXiv 2407.21783, section 3.4)."""

USUAL_SEQUENCE = 4096
"""What is assumed of a model that does not say how long its sequences are."""


def requested(job: JobRequest | Draft) -> tuple[JobRequest, tuple[Note, ...], str | PathLike[str] | Cluster | None]:
    """Return what is asked for, with what was assumed, and the cluster that it names."""
    if isinstance(job, JobRequest):
        return job, (), None
    notes = job.notes
    if job.model is not None and job.missing() == "seq_length":
        model = load_model(job.model) if isinstance(job.model, str) else job.model
        length = min(model.max_positions or model.learned_positions or USUAL_SEQUENCE, LONGEST_SEQUENCE)
        job = replace(job, fields={**job.fields, "seq_length": length})
        text = f"seq_length is not given: {length}, as far as {model.name} is made for and no longer than is usual"
        notes = (*notes, Note("assumed-seq-length", text))
    return job.request(), notes, job.cluster


def with_tokens(options: PlanKeywords, model: Model) -> tuple[PlanKeywords, tuple[Note, ...]]:
    """Return options with the tokens that a model has at so many for each parameter, and how they were counted.

    Raises
    ------
    ConfigError
        If the tokens are given, too, or are none.
    """
    each = options.get("tokens_per_parameter")
    said: PlanKeywords = {**options}
    said.pop("tokens_per_parameter", None)
    if each is None:
        return said, ()
    if options.get("tokens") is not None:
        raise ConfigError("says the tokens of the run, as tokens does; give one of them", "tokens_per_parameter")
    checked_field("tokens_per_parameter", each, "tokens_per_parameter")
    counts = parameters(model)
    said["tokens"] = tokens = each * counts.active
    active = "" if counts.active == counts.total else " active"
    usual = " (compute-optimal for dense models, arXiv 2203.15556)" if each == CHINCHILLA else ""
    text = (
        f"{model.name} trains on {format_count(tokens)} tokens, {each:g} for each of its {format_count(counts.active)}"
        f"{active} parameters{usual}"
    )
    source = " (compute-optimal, arXiv 2203.15556)" if usual else ""
    brief = f"{each:g} tokens a parameter{source}: {format_count(tokens)} for {model.name}"
    return said, (Note("tokens-per-parameter", text, brief=brief),)


def as_trained(job: JobRequest, tokens: float | str | None) -> tuple[JobRequest, tuple[Note, ...]]:
    """Return a job whose experts are routed as after the first thousand steps, where it is one step of a whole run.

    What the job says itself stays; without `tokens` it is a step that is timed, as benchmarks do.
    """
    open_ = job.moe_routing is None and job.expert_imbalance == 1
    if tokens is None or job.model.experts is None or not open_:
        return job, ()
    text = (
        "moe_routing is not given: trained, as a run of so many tokens spends nearly all of its steps with a router "
        "that is balanced but not forced; balanced is what benchmarks time"
    )
    note = Note("assumed-moe-routing", text, brief="moe_routing is not given: trained, as in a run of many tokens")
    return replace(job, moe_routing="trained"), (note,)
