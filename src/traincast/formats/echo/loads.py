"""The loads of the expert ranks of a run that was traced, to simulate another one with them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from traincast.diagnostics import Note, Notebook
from traincast.errors import FormatError
from traincast.formats.echo.experts import ExpertLayer, expert_layers, over_routed
from traincast.formats.echo.layout import Traced, decide_layouts
from traincast.formats.echo.read import only_run
from traincast.spec.options import LayoutOptions
from traincast.units import counted
from traincast.workload.experts import ExpertLoads, describe, expert_rank_W


def traced_loads(paths: Sequence[Path], ep: int | None = None) -> tuple[ExpertLoads, Note]:
    """Return the tokens that each expert rank of a traced run got, over the mean.

    Parameters
    ----------
    paths : sequence of Path
        Rank traces of one run: of every expert rank at least one.
    ep : int, optional
        Expert ranks of a group, where the files do not tell.

    Returns
    -------
    loads : tuple of float [ep]
        Means over the layers, microbatches, stages and groups that were traced.
    note : Note
        Says so, with the highest load that a single exchange had.

    Raises
    ------
    FormatError
        If the files are not of one run, show no expert layers, or lack an expert rank.
    """
    run = only_run(paths)
    traced, place = Traced(run.traces, profile=False), str(paths[0])
    layers_W = {rank: [layer for op in trace.ops for layer in expert_layers(op)] for rank, trace in run.traces.items()}
    if not any(layers_W.values()):
        raise FormatError("shows no tokens of experts: there are no all-to-alls over ep, two by two", place)
    said = run.traces[traced.first_rank].name.ep
    layout = decide_layouts(traced, LayoutOptions(ep=ep if said is None else None), Notebook(place)).traced
    place_W = expert_rank_W(layout)
    layers_E: dict[int, list[ExpertLayer]] = defaultdict(list)
    for rank, layers in layers_W.items():
        layers_E[int(place_W[rank])] += layers
    missing = [str(expert) for expert in range(layout.ep) if not layers_E[expert]]
    if missing:
        raise FormatError(
            f"lacks the trace of any rank with expert rank {', '.join(missing)} of {layout.ep}; give them too", place
        )
    share_E = [over_routed(layers_E[expert]) or 0.0 for expert in range(layout.ep)]
    mean = math.fsum(share_E) / layout.ep
    if not mean:
        raise FormatError("gives no expert rank any tokens", place)
    loads = tuple(share / mean for share in share_E)
    most = max(over_routed([layer]) or 0.0 for layers in layers_E.values() for layer in layers)
    text = f"from {counted(len(run.traces), 'traced rank')}, {describe(loads)}" if len(loads) > 1 else "one expert rank"
    single = f"; the mean of all layers, microbatches and groups, of which single ones had up to {most / mean:.3g} x"
    return loads, Note("expert-loads-traced", text + single, place)
