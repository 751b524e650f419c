"""Read straggler traces into the intermediate form: one step as it was recorded, and all others for whoever asks.

Letters: N operations of all ranks and steps, L of one rank in a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note, Notebook
from traincast.errors import FormatError
from traincast.files import InputFile, input_of
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.formats.straggler_st.grammar import COMPUTE, MESSAGES, TYPES, Table, meta_next_to, read_meta
from traincast.formats.straggler_st.grammar import read_table as read_rows
from traincast.formats.straggler_st.order import RankOrder, order_of
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.builder import collective_op, compute_op, host_op, message_op
from traincast.workload.ops import Op
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import Group, Kind, Operation, Phase
from traincast.workload.workload import Workload

_COLLECTIVES: Mapping[str, tuple[Group, Operation]] = {
    "params-all-gather": (Group.DP, Operation.ALL_GATHER),
    "grads-reduce-scatter": (Group.DP, Operation.REDUCE_SCATTER),
    "separate-grads-all-reduce": (Group.DP, Operation.ALL_REDUCE),
    "layernorm-grads-all-reduce": (Group.TP, Operation.ALL_REDUCE),
    "embedding-grads-all-reduce": (Group.EMB, Operation.ALL_REDUCE),
    "optimizer-clip-main-grad": (Group.WORLD, Operation.ALL_REDUCE),
}
"""Collectives, with the kind of their group: the norm of all gradients is where all ranks meet."""


def read_workload(paths: Sequence[Path], name: str, options: LayoutOptions) -> Workload:
    """Read the trace of a run (see `traincast.formats.contract.Format.read`)."""
    if len(paths) != 1:
        raise FormatError("a straggler trace is one table for all ranks; give one file", str(paths[1]))
    path, meta = paths[0], meta_next_to(paths[0])
    table = read_rows(path)
    inputs = (input_of(path, name), *([] if meta is None else [input_of(meta, "straggler-st-meta")]))
    parallel, notes = layout_of(table, meta)
    run = _Run(table, parallel, inputs, notes)
    numbers = run.numbers()
    step = run.usual() if options.step is None else options.step
    if step not in numbers:
        shown = f"{', '.join(map(str, numbers[:6]))}{' ...' if len(numbers) > 6 else ''}"
        raise FormatError(f"has no step {step}; its {counted(len(numbers), 'step')}: {shown}", str(path))
    if options.step is None and len(numbers) > 1:
        text = f"of {len(numbers)} steps {step} is taken, of median time (--step takes another); all are replayed"
        run.notes.append(Note("step-chosen", text))
    return run.workload(step, steps=run)


def inspect_file(path: Path) -> Inspection:
    """Describe a trace."""
    table, meta = read_rows(path), meta_next_to(path)
    parallel, notes = layout_of(table, meta)
    counts = {
        "rows": len(table),
        "steps": len(np.unique(table.columns["step"])),
        "recorded ranks": len(np.unique(table.columns["rank"])),
    }

    def found() -> Iterator[Counted]:
        for number in np.unique(table.optype_N).tolist():
            here, name = table.optype_N == number, TYPES[number]
            time_s = float(table.duration_s_N[here].sum())
            kind = _COLLECTIVES[name][0] if name in _COLLECTIVES else Group.PP if name in MESSAGES else Group.NONE
            yield Counted(kind, name, int(here.sum()), 0, time_s)

    return Inspection(
        generation="straggler study, 2025",
        evidence=("its columns",),
        counts=counts,
        layout={
            name: getattr(parallel, name) for name in ("world_size", "tp", "cp", "dp", "pp", "vpp", "microbatches")
        },
        totals=tuple(totals_of(found())),
        oddities=tuple(notes),
    )


def layout_of(table: Table, meta: Path | None) -> tuple[Parallel, list[Note]]:
    """Return the layout that a trace and the description next to it say, and what was assumed.

    Raises
    ------
    FormatError
        If ranks are not where the layout has them.
    """
    rank_N, stage_N, dp_N = (table.columns[name] for name in ("rank", "stage", "dp_rank"))
    notes: list[Note] = []
    sizes = {} if meta is None else read_meta(meta)
    if meta is None:
        text = "there is no meta.yaml next to it; degrees are what the rows show, ranks between those recorded tp"
        notes.append(Note("layout-from-rows", text, table.path))
    pp, dp = sizes.get("pp_size", int(stage_N.max()) + 1), sizes.get("dp_size", int(dp_N.max()) + 1)
    ranks = np.unique(rank_N)
    between = int(np.diff(ranks).min()) if len(ranks) > 1 else 1
    tp, cp = sizes.get("tp_size", 1 if "dsp_size" in sizes else between), sizes.get("dsp_size", 1)
    chunks = sizes.get("vpp_size", int(table.columns["mc"].max()) + 1)
    one = (rank_N == ranks[0]) & (table.columns["step"] == table.columns["step"][0])
    forward = int((table.optype_N[one] == TYPES.index("forward-compute")).sum())
    microbatches = max(forward // max(chunks, 1), 1)
    parallel = Parallel(tp=tp, cp=cp, dp=dp, pp=pp, vpp=max(chunks, 1), microbatches=microbatches)
    expected_N = stage_N * parallel.ranks_per_stage + dp_N * tp * cp
    wrong = np.flatnonzero((rank_N != expected_N) | (stage_N >= pp) | (dp_N >= dp))
    if len(wrong):
        at = int(wrong[0])
        text = (
            f"rank {rank_N[at]} is of stage {stage_N[at]} and dp_rank {dp_N[at]}; with tp {tp}, dsp {cp}, dp {dp} and "
            f"pp {pp} that is rank {expected_N[at]} (does the meta.yaml next to it belong to this trace?)"
        )
        raise FormatError(text, table.path, int(table.line_N[at]))
    if len(ranks) < parallel.world_size:
        text = (
            f"{len(ranks)} of {parallel.world_size} ranks are recorded; each stands for the others of its layers, and "
            "nobody waits for those that are not"
        )
        notes.append(Note("ranks-not-recorded", text, table.path))
    return parallel, notes


class _Run(Struct, frozen=True):
    """All steps of a trace; iterating reads one after the other."""

    table: Table
    parallel: Parallel
    inputs: tuple[InputFile, ...]
    notes: list[Note]

    def numbers(self) -> list[int]:
        """Return the numbers of the steps."""
        return list(map(int, np.unique(self.table.columns["step"])))

    def usual(self) -> int:
        """Return the step of median time, the lower one of two."""
        number_N, end_N = self.table.columns["step"], self.table.start_s_N + self.table.duration_s_N
        times = sorted(
            (float(end_N[number_N == each].max() - self.table.start_s_N[number_N == each].min()), each)
            for each in self.numbers()
        )
        return times[(len(times) - 1) // 2][1]

    def __iter__(self) -> Iterator[tuple[int, Workload]]:
        for number in self.numbers():
            yield number, self.workload(number)

    def workload(self, step: int, steps: "_Run | None" = None) -> Workload:
        """Return one step as it was recorded."""
        rows = self.table.where(self.table.columns["step"] == step)
        notes = Notebook(self.table.path)
        notes.assumptions.extend(self.notes)
        recorder = Recorder(Path(self.table.path).name, self.parallel, self.inputs, notes)
        writer = _Writer(recorder, rows)
        for rank in writer.ranks:
            recorder.add(writer.record(order_of(rows.where(rows.columns["rank"] == rank), *self._shape())))
        workload = recorder.workload()
        return workload if steps is None else replace(workload, steps=steps)

    def _shape(self) -> tuple[int, int]:
        return self.parallel.pp, self.parallel.vpp


class _Writer:
    """Writes down what each rank ran in a step."""

    def __init__(self, recorder: Recorder, rows: Table) -> None:
        self.recorder, self.parallel = recorder, recorder.parallel
        self.ranks = np.unique(rows.columns["rank"]).tolist()

    def record(self, order: RankOrder) -> RankRecord:
        """Return the record of a rank."""
        rows = order.rows
        rank, names = int(rows.columns["rank"][0]), [TYPES[number] for number in rows.optype_N.tolist()]
        return RankRecord(
            rank=rank,
            file=0,
            row_L=[self.recorder.row(self._op(name)) for name in names],
            group_L=[self._group(name, rank, at) for name, at in zip(names, order.partner_L.tolist(), strict=True)],
            queue_L=order.queue_L,
            key_L=[
                (name.startswith("backward") if name in MESSAGES and at >= 0 else -1)
                for name, at in zip(names, order.partner_L.tolist(), strict=True)
            ],
            microbatch_L=rows.columns["mb_id"],
            start_s_L=order.start_s_L,
            end_s_L=order.end_s_L,
            edge_src_E=order.edge_src_E,
            edge_dst_E=order.edge_dst_E,
            line_L=rows.line_N,
        )

    @staticmethod
    def _op(name: str) -> Op:
        if name in _COLLECTIVES:
            kind, operation = _COLLECTIVES[name]
            return collective_op(name, Phase.STEP, kind, operation, None)
        phase = Phase.BACKWARD if name.startswith("backward") else Phase.FORWARD
        if name in MESSAGES:
            return message_op(name, Kind.SEND if name.endswith("send") else Kind.RECV, phase, Group.PP, None)
        if name in COMPUTE:
            return compute_op(name, phase)
        return host_op(name, Phase.STEP, 0.0) if name == "gc" else compute_op(name, Phase.STEP)

    def _group(self, name: str, rank: int, partner: int) -> int:
        if name in MESSAGES:
            return self._pair(name, rank) if partner >= 0 else self.recorder.group(Group.PP, (rank,))
        if name not in _COLLECTIVES:
            return -1
        kind = _COLLECTIVES[name][0]
        stage_of, of_dp = self.parallel.ranks_per_stage, rank % self.parallel.ranks_per_stage
        members = [rank]
        if kind is Group.WORLD:
            members = self.ranks
        elif kind is Group.DP:
            members = [each for each in self.ranks if each // stage_of == rank // stage_of]
        elif kind is Group.EMB:
            last = (self.parallel.pp - 1) * stage_of
            members = [each for each in self.ranks if each in (of_dp, of_dp + last)]
        return self.recorder.group(kind, members)

    def _pair(self, name: str, rank: int) -> int:
        """Return the group of a message: its rank and that of the next or the previous stage, around the pipeline."""
        word, way = name.split("-")
        per_stage = self.parallel.ranks_per_stage
        change = 1 if (word == "forward") == (way == "send") else -1
        stage = (rank // per_stage + change) % self.parallel.pp
        peer = stage * per_stage + rank % per_stage
        return self.recorder.pair(*((rank, peer) if way == "send" else (peer, rank)))
