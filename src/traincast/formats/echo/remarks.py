"""What a user should know of a traced run as it was read."""

from traincast.formats.building import Notebook, warn_single_microbatch
from traincast.formats.echo.experts import expert_layers
from traincast.formats.echo.layout import Layouts, Traced
from traincast.formats.echo.oddities import oddities
from traincast.spec.options import LayoutOptions
from traincast.workload.experts import ExpertLoads, describe, expert_loads
from traincast.workload.words import Group

_GRAVE = frozenset({"unknown-operation", "unknown-group", "unknown-communication"})
"""Oddities of a trace that change the forecast, and so are warnings of a simulation."""


def profile_loads(traced: Traced, options: LayoutOptions, ep: int) -> ExpertLoads | None:
    """Return the loads of the expert ranks that a profile is to stand for; None where they are equal.

    Raises
    ------
    ConfigError
        If the loads do not fit `ep`.
    """
    return expert_loads(options, ep) if traced.profile and _exchanges_tokens(traced) else None


def say_what_was_read(
    traced: Traced, layouts: Layouts, options: LayoutOptions, loads: ExpertLoads | None, notes: Notebook
) -> None:
    """Note repeated microbatches, rescaled experts, and words that nobody knows.

    Parameters
    ----------
    traced : Traced
        The traces.
    layouts : Layouts
        How they were laid out, and how the run to simulate is.
    options : LayoutOptions
        What the user said.
    loads : tuple of float, optional
        Loads of the expert ranks; None where they are equal.
    notes : Notebook
        Receives the notes.
    """
    target = layouts.target
    if target.microbatches > traced.microbatches:
        notes.assume(
            "microbatches-repeated",
            f"the trace has {traced.microbatches} microbatch(es); the last one is repeated to make "
            f"{target.microbatches}",
            None,
        )
    if not (traced.microbatches == target.microbatches == 1 and len(traced.traces) == target.world_size):
        warn_single_microbatch(notes, target.pp, target.pp, target.microbatches, None)
    for trace in traced.traces.values():
        notes.warnings += trace.notes
        notes.warnings += [note for note in oddities(str(trace.path), trace.ops) if note.code in _GRAVE]
    _say_what_is_unused(traced, options, notes)
    if traced.profile:
        _say_of_experts(traced, options, loads, notes)


def _exchanges_tokens(traced: Traced) -> bool:
    return any(sub.group is Group.EP for trace in traced.traces.values() for op in trace.ops for sub in op.sub_ops)


def _say_what_is_unused(traced: Traced, options: LayoutOptions, notes: Notebook) -> None:
    """Warn of flags that change nothing, and of passes that are missing."""
    experts = _exchanges_tokens(traced)
    real = not traced.profile
    unused = {
        "--ep": options.ep is not None and not experts,
        "--etp": options.etp is not None and not experts,
        "--expert-imbalance": options.expert_imbalance is not None and (real or not experts),
        "--expert-loads": options.expert_loads is not None and (real or not experts),
        "--pp-comm": options.pp_message_bytes is not None and real and options.comm != "model",
    }
    for flag, idle in unused.items():
        if idle:
            measured = (real and experts) or flag == "--pp-comm"
            why = "its times are as measured" if measured else "no experts exchange tokens"
            notes.warn(f"{flag[2:]}-unused", f"{flag} changes nothing in this trace: {why}", None)
    for rank, trace in traced.traces.items():
        passes = [sum(op.op == name for op in trace.ops) for name in ("forward_step", "backward_step")]
        if passes[0] != passes[1]:
            notes.warn(
                "passes-differ",
                f"rank {rank} was traced with {passes[0]} forward and {passes[1]} backward steps; the time of what is "
                "missing is a gap of the host, or lost",
                None,
            )


def _say_of_experts(traced: Traced, options: LayoutOptions, loads: ExpertLoads | None, notes: Notebook) -> None:
    layers = [layer for trace in traced.traces.values() for op in trace.ops for layer in expert_layers(op)]
    if not layers:
        return
    unequal = "" if loads is None else f"; of these {describe(loads)}, in every layer and microbatch"
    notes.assume(
        "expert-tokens",
        f"expert layers were traced with {layers[0].traced} tokens; a balanced rank receives as many as it "
        f"routes, {layers[0].routed}{unequal}: dispatch and combine carry these tokens, and the experts' work is "
        "brought to them at 0.5 us forward and 0.95 us backward per token at hidden size 4096",
        None,
    )
    if options.expert_imbalance is None and options.expert_loads is None:
        notes.warn(
            "expert-balance",
            "experts are taken as balanced; measured runs of this kind were 9 to 50 % slower (give --expert-imbalance)",
            None,
        )
