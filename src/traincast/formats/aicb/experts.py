"""What unequal loads of expert ranks mean for an AICB file: what stretches, and what to say of it."""

from traincast.formats.aicb.lower import RowLowering
from traincast.formats.building import Notebook
from traincast.spec.options import LayoutOptions
from traincast.spec.parallel import Parallel
from traincast.workload.experts import ExpertLoads, describe, expert_loads
from traincast.workload.words import Group, Operation


def decide_loads(
    lowering: RowLowering, options: LayoutOptions, parallel: Parallel, notes: Notebook
) -> ExpertLoads | None:
    """Work out the loads of the expert ranks of a file.

    Parameters
    ----------
    lowering : RowLowering
        The lowered rows of the file.
    options : LayoutOptions
        What the user asks for.
    parallel : Parallel
        The layout.
    notes : Notebook
        Receives what is assumed, and a warning where there is nothing, or only half of it, to stretch.

    Returns
    -------
    tuple of float [E], or None
        None where all are equal.

    Raises
    ------
    ConfigError
        If the loads do not fit `ep`.
    """
    given = [name for name in ("expert_imbalance", "expert_loads") if getattr(options, name) is not None]
    if not given:
        return None
    exchanges = any(op.group is Group.EP and op.operation is Operation.ALL_TO_ALL for op in lowering.builder.ops)
    if not (exchanges or lowering.expert_rows):
        flag = given[0].replace("_", "-")
        notes.warn(f"{flag}-unused", f"--{flag} changes nothing: no row of the file is of experts", None)
        return None
    loads = expert_loads(options, parallel.ep)
    if loads is None:
        return None
    notes.assume(
        "expert-loads", f"{describe(loads)}, in every layer and microbatch; {_what_stretches(lowering, parallel)}", None
    )
    if not lowering.expert_rows:
        notes.warn(
            "expert-compute-unknown",
            "no row of the file is named as the experts' computation (moe, expert), so only the all-to-alls over ep "
            "are stretched by their loads",
            None,
        )
    if not exchanges:
        notes.warn(
            "expert-exchange-unknown",
            "no row of the file is an all-to-all over ep, so only the experts' computations are stretched by their "
            "loads",
            None,
        )
    return loads


def stretched_rows(lowering: RowLowering, parallel: Parallel) -> list[int]:
    """Return the template rows that stretch with a rank's load: computations, and what their tp ranks exchange.

    The tp ranks of an expert get the same tokens only where the expert is split over as many (`etp`).
    """
    return lowering.expert_rows + (lowering.token_rows if parallel.expert_tp == parallel.tp else [])


def _what_stretches(lowering: RowLowering, parallel: Parallel) -> str:
    computed, exchanged = "the computations of expert rows", "the all-to-alls over ep"
    inside = "the tp communications between dispatch and combine"
    if not lowering.token_rows:
        return f"{computed} and {exchanged} are stretched"
    if parallel.expert_tp == parallel.tp:
        return f"{computed}, {inside} and {exchanged} are stretched"
    return (
        f"{computed} and {exchanged} are stretched; {inside} are not, because an expert is on etp "
        f"{parallel.expert_tp} ranks and not on tp {parallel.tp}"
    )
