"""What a user should know of a traced run as it was read."""

from collections.abc import Sequence

from traincast.diagnostics import Notebook
from traincast.formats.echo.experts import ExpertLayer, expert_layers, received_over_mean
from traincast.formats.echo.inspection import oddities
from traincast.formats.echo.layout import Layouts, Traced
from traincast.formats.layout import warn_single_microbatch
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.experts import ExpertLoads, describe, expert_loads
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group

_SHOWN_LOADS = 8
_GRAVE = frozenset({"unknown-operation", "unknown-group", "unknown-communication"})
"""Oddities of a trace that change the forecast, and so are warnings of a simulation."""


def changes_loads(traced: Traced, options: LayoutOptions) -> bool:
    """Tell whether other loads of the experts are asked for than a run was traced with, and can be given.

    A measured all-to-all is one of the traced tokens, so only a priced one can have others.
    """
    asked = options.expert_imbalance is not None or options.expert_loads is not None
    return asked and not traced.profile and options.comm == "model" and _exchanges_tokens(traced)


def chosen_loads(traced: Traced, options: LayoutOptions, ep: int) -> ExpertLoads | None:
    """Return the loads of the expert ranks to simulate; None where they are equal, or as traced.

    Raises
    ------
    ConfigError
        If the loads do not fit `ep`.
    """
    chosen = (traced.profile and _exchanges_tokens(traced)) or changes_loads(traced, options)
    return expert_loads(options, ep) if chosen else None


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
    if traced.profile or changes_loads(traced, options):
        _say_of_experts(traced, options, loads, notes)
    elif _exchanges_tokens(traced):
        _say_of_untraced_experts(traced, layouts.traced, notes)


def _exchanges_tokens(traced: Traced) -> bool:
    return any(sub.group is Group.EP for trace in traced.traces.values() for op in trace.ops for sub in op.sub_ops)


def _say_what_is_unused(traced: Traced, options: LayoutOptions, notes: Notebook) -> None:
    """Warn of flags that change nothing, and of passes that are missing."""
    experts = _exchanges_tokens(traced)
    real = not traced.profile
    as_traced = real and not changes_loads(traced, options)
    unused = {
        "--ep": options.ep is not None and not experts,
        "--etp": options.etp is not None and not experts,
        "--expert-imbalance": options.expert_imbalance is not None and (as_traced or not experts),
        "--expert-loads": options.expert_loads is not None and (as_traced or not experts),
        "--pp-comm": options.pp_message_bytes is not None and real and options.comm != "model",
    }
    for flag, idle in unused.items():
        if idle:
            measured = (real and experts) or flag == "--pp-comm"
            why = "its times are as measured (give --comm model)" if measured else "no experts exchange tokens"
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


def _say_of_untraced_experts(traced: Traced, layout: Parallel, notes: Notebook) -> None:
    """Warn where ranks that exchange tokens with traced ones were not traced: who came last is not known."""
    table = rank_groups(layout, [Group.EP])[Group.EP]
    groups = table.members_GK[sorted({int(table.group_of_rank_W[rank]) for rank in traced.traces})]
    lacking = [members for members in groups.tolist() if not traced.traces.keys() >= set(members)]
    if not lacking:
        return
    load_of = {rank: received_over_mean(trace.ops) for rank, trace in traced.traces.items()}
    loads = sorted({f"{load:.2f}" for load in load_of.values() if load is not None})
    notes.warn(
        "expert-ranks-untraced",
        f"{len(lacking)} of {counted(len(groups), 'group')} of expert ranks {'was' if len(lacking) == 1 else 'were'} "
        f"traced in part, by ranks whose experts got {', '.join(loads[:_SHOWN_LOADS])} x the mean tokens: the spans of "
        "their all-to-alls may hold waiting for busier ranks, and who was not traced does as these did (give all "
        "ranks, or --comm model with --expert-loads or --expert-imbalance)",
        None,
    )


def _say_of_experts(traced: Traced, options: LayoutOptions, loads: ExpertLoads | None, notes: Notebook) -> None:
    layers = [layer for trace in traced.traces.values() for op in trace.ops for layer in expert_layers(op)]
    if not layers:
        return
    unequal = "" if loads is None else f"; of these {describe(loads)}, in every layer and microbatch"
    notes.assume(
        "expert-tokens",
        f"expert layers were traced with {_tokens(layers)} tokens; a balanced rank receives as many as it "
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


def _tokens(layers: Sequence[ExpertLayer]) -> str:
    fewest, most = (pick(layer.traced for layer in layers) for pick in (min, max))
    return str(most) if fewest == most else f"{fewest} to {most}"
