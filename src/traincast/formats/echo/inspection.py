"""Describe a rank trace: generation, counts, layout by name and shapes, totals, oddities."""

from collections import Counter
from pathlib import Path

from traincast.diagnostics import Note
from traincast.formats.contract import Inspection
from traincast.formats.echo.facts import shape_facts
from traincast.formats.echo.files import RankTrace, read_trace
from traincast.formats.echo.generation import generation
from traincast.formats.echo.oddities import oddities
from traincast.formats.echo.totals import totals


def inspect_file(path: Path) -> Inspection:
    """Describe a file.

    Parameters
    ----------
    path : Path
        Rank trace or scheduling plan.

    Returns
    -------
    Inspection
        Totals are over the file as written, which is one rank for one step.

    Raises
    ------
    FormatError
        If the file cannot be read; with the line.
    """
    trace = read_trace(path)
    kind = generation(trace.ops)
    layout = _layout(trace)
    return Inspection(
        path=str(path),
        format="echo",
        generation=kind.text,
        confidence=kind.confidence,
        evidence=kind.evidence,
        counts=_counts(trace),
        layout=layout,
        totals=totals(trace.ops),
        oddities=(*trace.notes, *_name_against_shapes(trace), *oddities(str(path), trace.ops)),
    )


def _counts(trace: RankTrace) -> dict[str, int]:
    counts = {"operations": len(trace.ops), "sub_operations": sum(len(op.sub_ops) for op in trace.ops)}
    return counts | dict(Counter(op.op for op in trace.ops))


def _layout(trace: RankTrace) -> dict[str, int | str | None]:
    name, shapes, first = trace.name, shape_facts(trace.ops), trace.ops[0]
    forwards = sum(op.op == "forward_step" for op in trace.ops)
    return {
        "rank": trace.rank if first.scope == "rank" else None,
        "stage": first.stage_id,
        "world_size": name.world,
        "tp": name.tp,
        "pp": name.pp,
        "dp": name.dp,
        "ep": name.ep,
        "experts": shapes.experts if shapes.experts is not None else name.experts,
        "layers": name.layers,
        "microbatches": forwards or None,
        "micro_batch": shapes.micro_batch if shapes.micro_batch is not None else name.micro_batch,
        "sequence": shapes.sequence if shapes.sequence is not None else name.sequence,
        "hidden": shapes.hidden if shapes.hidden is not None else name.hidden,
        "vocabulary_shard": shapes.vocabulary_shard,
        "gradient_elements": shapes.gradient_elements,
        "dtype": shapes.dtype,
    }


def _name_against_shapes(trace: RankTrace) -> list[Note]:
    """Remark sizes of which the name says one and the shapes another; the shapes were really there."""
    shapes = shape_facts(trace.ops)
    pairs = {
        "micro_batch": (trace.name.micro_batch, shapes.micro_batch),
        "hidden": (trace.name.hidden, shapes.hidden),
        "sequence": (trace.name.sequence, shapes.sequence),
    }
    return [
        Note(
            "name-against-shapes",
            f"{what} is {named} by the name and {found} by the shapes, which count",
            str(trace.path),
        )
        for what, (named, found) in pairs.items()
        if None not in {named, found} and named != found
    ]
