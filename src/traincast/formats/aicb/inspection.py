"""Describe an AICB file: generation, counts, layout as written, totals, and what looks wrong in it.

Source: AICB, ``workload_generator/`` at its dated commits, and ``workload/simAI/``; SimAI, ``example/``. Header and
rows changed independently, so each is dated by itself.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from traincast.diagnostics import Note
from traincast.formats.aicb.grammar import PHASES, AicbFile, Cell
from traincast.formats.aicb.header import Header
from traincast.formats.aicb.meaning import Block, Structure, group_of, positions_as_written, structure
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.units import counted
from traincast.workload.words import Group, Operation, Phase

_V1_0 = "AICB v1.0 (2024-07 to 2024-08)"
_UNKNOWN_WRITER = "SimAI workload of an unknown writer"


def describe(file: AicbFile) -> Inspection:
    """Describe a file.

    Totals are over the file as written, which is one stage for one step; compute of once-per-step
    rows is the phase ``step``.
    """
    parts, header = structure(file), file.header
    once = {*parts.leading, *parts.trailing, *parts.embedding_norm}
    declared = {} if file.declared_rows is None else {"declared_rows": file.declared_rows}
    text, confidence, evidence = generation(file)
    return Inspection(
        generation=text,
        confidence=confidence,
        evidence=evidence,
        counts={
            "rows": len(file.rows),
            "microbatches": len(parts.blocks),
            "layers_per_microbatch": max((len(block.layers) for block in parts.blocks), default=0),
            "once_per_step_rows": len(once),
            **declared,
        },
        layout={
            **{name: getattr(header, name) for name in ("policy", "tp", "ep", "pp", "vpp")},
            "microbatches": header.ga,
            "world_size": header.all_gpus,
            "pp_message_bytes": header.pp_message_bytes,
            **header.extra,
        },
        totals=tuple(totals_of(_parts(file, once))),
        oddities=(*file.warnings, *structural_warnings(file, parts)),
    )


def _parts(file: AicbFile, once: set[int]) -> Iterator[Counted]:
    positions = positions_as_written(file)
    for index, row in enumerate(file.rows):
        for column, phase in PHASES.items():
            cell = row.cell(column)
            part = Phase.STEP if index in once else phase
            yield Counted(Group.NONE, part, int(cell.compute_s > 0), 0, cell.compute_s)
            if cell.operation is not Operation.NONE:
                yield Counted(group_of(row.name, column, cell, positions), cell.operation, 1, cell.size_bytes)


# --- generations of the format


class Generation(NamedTuple):
    """Which generation of the format a file is, how sure that is (0 to 1), and why."""

    text: str
    confidence: float
    evidence: tuple[str, ...]


def generation(file: AicbFile) -> Generation:
    """Tell which generation of the format a file is."""
    header = file.header
    if header.policy == "MICRO":
        why = "the policy is MICRO: a communication micro-benchmark, not a training step"
        return Generation("SimAI micro test", 0.95, (why,))
    if header.policy not in ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"):
        why = f"the policy is {header.policy}; AICB writes HYBRID_TRANSFORMER_FWD_IN_BCKWD"
        if header.all_gpus is None:
            return Generation("ASTRA-sim 1.0 workload", 0.8, (why, "the header has no all_gpus"))
        return Generation("SimAI workload that AICB did not write", 0.8, (why,))
    dated, why = _header_clue(header)
    old, reasons, details = _row_clues(file)
    evidence = (why, *reasons)
    suffix = f" ({details})" if details else ""
    mixed = (*evidence, "header and rows are of different generations")
    if old and dated != _V1_0:
        return Generation(f"mixed: AICB v1.0 rows under a newer header{suffix}", 0.5, mixed)
    if old is False and dated == _V1_0:
        return Generation(f"mixed: rows of AICB v1.1 or later under a v1.0 header{suffix}", 0.5, mixed)
    return Generation(dated + suffix, 0.9 if old is not None and dated != _UNKNOWN_WRITER else 0.5, evidence)


def _header_clue(header: Header) -> tuple[str, str]:
    """Date the header by its keys and their order, and say why; the first test that holds decides."""
    keys = [key.lower() for key in header.keys]
    bare = [key.lower() for key in header.bare_keys]
    early = "pp_comm" in keys and "checkpoints" in keys and keys.index("pp_comm") < keys.index("checkpoints")
    instead = "expert_parallel_npu_group" in keys
    middle = not {"ep", "pp", "ga", "all_gpus"}.isdisjoint(keys)
    tests = (
        ("mode" in keys, "AICB inference (2025-11 or later)", "the header has mode"),
        (instead, "AICB micro test", "the header has expert_parallel_npu_group in place of ep"),
        ("pp_comm" in bare, "SimAI example (2024-12 or later)", "pp_comm has no colon, as in SimAI's own example"),
        (early, _UNKNOWN_WRITER, "pp_comm stands before checkpoints, where no AICB version writes it"),
        ("pp_comm" in keys, "AICB with pp_comm (2024-12 or later)", "the header has pp_comm"),
        ("vpp" in keys, "AICB with vpp (2024-11)", "the header has vpp and no pp_comm"),
        (
            middle,
            "AICB v1.1 (2024-09 to 2024-11)",
            "the header has ep, pp, ga or all_gpus, and neither vpp nor pp_comm",
        ),
        (True, _V1_0, "the header has no ep, pp, vpp, ga and all_gpus"),
    )
    return next((text, reason) for holds, text, reason in tests if holds)


def _row_clues(file: AicbFile) -> tuple[bool | None, list[str], str]:
    """Return whether the rows are of v1.0 (None: they do not tell), why, and what they add."""
    names = {row.name for row in file.rows}
    old = _old_rows(file, names)
    new = sorted(names & {"attention_column", "attention_row", "mlp_column", "mlp_row", "grad_param_compute"})
    reasons = []
    if old:
        reasons.append(f"v1.0 rows: {old}")
    elif new:
        reasons.append(f"rows of v1.1 or later: {', '.join(new)}")
    moe = _moe_rows(file)
    details = []
    if "attention_linear_q_lora" in names or "attention_linear_kv_lora" in names:
        reasons.append("DeepSeek attention rows (attention_linear_q_lora and the like)")
        details.append("DeepSeek")
    if moe:
        since = "since 2025-09-24" if moe == 5 else "before 2025-09-24"
        reasons.append(f"{moe} mlp_moelayer rows per layer, as AICB writes {since}")
        details.append(f"{moe}-row MoE, {since}")
    inference = sorted(names & {"moe_route", "moe_expert"})
    if inference:
        reasons.append(f"rows that only the inference generator writes: {', '.join(inference)}")
    if names == {"micro_test"}:
        reasons.append("every row is a micro_test")
        details.append("micro test")
    is_old = True if old else False if new or moe or inference else None
    return is_old, reasons, ", ".join(details)


def _old_rows(file: AicbFile, names: set[str]) -> str:
    """Return what only v1.0 files have, or nothing."""
    marks: list[str] = [name for name in ("norm", "grad_param", "attention_norm") if name in names]
    marks += sorted(name for name in names if name.endswith(("_column_layer", "_row_layer")))
    if file.header.inference:
        marks = [name for name in marks if name != "attention_norm"]
    if any(row.forward.operation is Operation.BROADCAST for row in file.rows):
        marks.append("BROADCAST")
    return ", ".join(marks)


def _moe_rows(file: AicbFile) -> int:
    """Return how many ``mlp_moelayer`` rows a layer has, where it is 5 or 7 throughout; else 0."""
    together = groupby(file.rows, key=lambda row: row.name == "mlp_moelayer")
    runs = {len(list(rows)) for of_experts, rows in together if of_experts}
    return runs.pop() if len(runs) == 1 and runs <= {5, 7} else 0


# --- what is odd about the structure

_Warning = tuple[str, str, int]
"""Code, text, and row."""


def structural_warnings(file: AicbFile, parts: Structure) -> tuple[Note, ...]:
    """List what is odd about the structure of a file, each with its ``file:line``; `AicbFile` has what is in values."""
    found = [*_odd_counts(file, parts), *_unequal_blocks(file, parts), *_lonely_groups(file)]
    return tuple(Note(code, text, f"{file.path}:{file.rows[row].line}") for code, text, row in found)


def _odd_counts(file: AicbFile, parts: Structure) -> Iterator[_Warning]:
    written, blocks, norms = file.header.ga, len(parts.blocks), len(parts.embedding_norm)
    if written is not None and written != blocks:
        held = counted(blocks, "microbatch", "microbatches")
        yield "microbatches-mismatch", f"the header says ga {written}, but the rows hold {held}", 0
    if norms > 1:
        text = f"embedding_norm appears {norms} times; tied embeddings are reduced once per step"
        yield "embedding-norm-repeated", f"{text}, so the first one counts", parts.embedding_norm[0]


def _unequal_blocks(file: AicbFile, parts: Structure) -> Iterator[_Warning]:
    """Report each kind of microbatch that differs from the last one, which is the steady state."""
    if not parts.blocks:
        return
    usual = _signature(file, parts.blocks[-1])
    differing = [block for block in parts.blocks if _signature(file, block) != usual]
    if differing:
        pairs = zip(differing[0].rows, _signature(file, differing[0]), usual, strict=False)
        row = next((row for row, one, other in pairs if one != other), differing[0].rows[-1])
        differ = "differs" if len(differing) == 1 else "differ"
        text = f"{len(differing)} of {len(parts.blocks)} microbatches {differ} from the last one, first in this row"
        yield "microbatches-differ", text, row


def _signature(file: AicbFile, block: Block) -> list[tuple[str, Cell, Cell, Cell]]:
    rows = (file.rows[index] for index in block.rows)
    return [(row.name, row.forward, row.input_grad, row.weight_grad) for row in rows]


def _lonely_groups(file: AicbFile) -> Iterator[_Warning]:
    """Report communications in a group that the header says has one member: they would cost nothing."""
    positions = positions_as_written(file)
    for group, degree in ((Group.TP, file.header.tp), (Group.EP, file.header.ep)):
        found = [
            index
            for index, column, cell in (file.communications if degree == 1 else ())
            if cell.size_bytes and group_of(file.rows[index].name, column, cell, positions) is group
        ]
        if found:
            name, are = group.name.lower(), counted(len(found), "communication is", "communications are")
            yield "group-of-one", f"{are} in the {name} group by position or suffix, but {name} is 1", found[0]
