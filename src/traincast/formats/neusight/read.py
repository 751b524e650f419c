"""Make the workload of a NeuSight file: its layout, its stages, what it leaves out.

Forward runs the rows in their order, backward in reverse, so that a gradient row, which stands
before its node, is launched right after the node's backward. A row computes and then
communicates; what is asynchronous holds nobody back.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError
from traincast.formats.contract import Source
from traincast.formats.layout import asked_dp, warn_single_microbatch
from traincast.formats.neusight.grammar import NEUSIGHT_DTYPE, Cell, Form, NeusightFile, Row
from traincast.formats.neusight.inspection import GRAVE, GRAVE_GRADIENTS, structural_warnings
from traincast.formats.neusight.kernels import Calls
from traincast.formats.neusight.layers import arrange, milliseconds
from traincast.hardware.dtypes import bytes_per_element
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted, format_size
from traincast.workload.builder import Place, Rows, WorkloadBuilder, collective_op, compute_op
from traincast.workload.ops import FloatArray
from traincast.workload.words import Group, OverlapClass, Phase
from traincast.workload.workload import Workload

NEUSIGHT_GPUS = 4
"""GPUs that NeuSight's own formula for communication is fixed at, whatever the layout."""

_Work = Sequence[tuple[int, int]]
"""Rows of the file, each with its layer (see `arrange`)."""


def build(file: NeusightFile, options: LayoutOptions, source: Source) -> Workload:
    """Make the workload of a file."""
    notes = source.notes
    inference = file.form is not Form.FORECAST and not file.has_backward
    options = replace(options, forward_only=options.forward_only or inference)
    work = arrange(file, options, notes)
    parallel = _parallel(file, work, options, notes)
    dtype = _dtype(file, work, options, notes)
    builder = source.builder(parallel, options.schedule or "1f1b")
    _lay_out(_Lowering(builder, file, dtype, _estimates_backward(file, work, options, notes)), work, options)
    _say_what_is_left_out(file, work, parallel, options, notes)
    _say_whose_communication(file, work, parallel, notes)
    grave = GRAVE if options.forward_only else GRAVE | GRAVE_GRADIENTS
    notes.warnings += [note for note in (*file.warnings, *structural_warnings(file)) if note.code in grave]
    message_bytes = _message_bytes(file, work, bytes_per_element(dtype), notes)
    return builder.workload(message_bytes, forward_only=options.forward_only)


def _parallel(file: NeusightFile, work: _Work, options: LayoutOptions, notes: Notebook) -> Parallel:
    """Work out degrees and microbatches; there are as many stages as SENDRECV rows separate."""
    pp = 1 + sum(file.rows[index].sends for index, _ in work)
    if options.pp not in (None, pp):
        text = f"is {options.pp}; {file.path} describes {counted(pp, 'stage')}, and SENDRECV rows separate stages"
        raise ConfigError(text, "pp")
    if options.vpp not in (None, 1):
        raise ConfigError(f"is {options.vpp}; the stages of a NeuSight file have no virtual stages", "vpp")
    if pp > 1 and options.microbatches is None:
        text = "the file says no number of microbatches; taken as 1, as NeuSight does (give --microbatches)"
        notes.assume("microbatches-absent", text, None)
    groups = {cell.group for row in file.rows for cell in row.cells}
    tp, dp = _degrees(file, options, pp, groups, notes)
    # Nothing in the file says which tp its times are of.
    if options.tp is not None and (options.tp != 1 or Group.TP in groups):
        text = f"the file says no tp; its compute times and elements are kept as they are for tp {options.tp}"
        unused = "" if Group.TP in groups else ", and no row communicates over tp"
        notes.warn("tp-not-rescaled", f"{text}{unused}", None)
    parallel = Parallel(tp=tp, dp=dp, pp=pp, microbatches=options.microbatches or 1)
    warn_single_microbatch(notes, pp, pp, parallel.microbatches, None)
    return parallel


def _degrees(
    file: NeusightFile, options: LayoutOptions, pp: int, groups: set[Group], notes: Notebook
) -> tuple[int, int]:
    """Return tp and dp: what the user leaves open follows from the GPUs, else from NeuSight's 4."""
    tp = options.tp
    if tp is None and Group.TP in groups and Group.DP not in groups and options.gpus is not None:
        tp = max(1, options.gpus // (pp * (options.dp or 1)))
        text = f"the file communicates over tp only, so {counted(options.gpus, 'GPU makes', 'GPUs make')} tp {tp}"
        notes.assume("tp-from-gpus", text, None)
    elif tp is None:
        tp = _default(Group.TP, groups, notes)
    dp = asked_dp(options, {"tp": tp, "pp": pp}, file.path)
    return tp, _default(Group.DP, groups, notes) if dp is None else dp


def _default(group: Group, groups: set[Group], notes: Notebook) -> int:
    if group not in groups:
        return 1
    name = group.name.lower()
    notes.assume(
        f"{name}-absent",
        f"the file communicates over {name} and says no number of ranks; taken as {NEUSIGHT_GPUS}, which NeuSight's "
        f"exporter fixes (give --{name} or --gpus)",
        None,
        brief=f"the file says no number of ranks of {name}; taken as {NEUSIGHT_GPUS} (give --{name} or --gpus)",
    )
    return NEUSIGHT_GPUS


def _dtype(file: NeusightFile, work: _Work, options: LayoutOptions, notes: Notebook) -> str:
    if options.dtype is not None:
        return options.dtype
    rows = [file.rows[index] for index, _ in work]
    cells = [cell for row in rows for cell in (row.cells[:1] if options.forward_only else row.cells)]
    elements = sum(cell.elements for cell in cells if cell.group is not Group.NONE)
    if any(cell.calls for cell in cells):
        text = f"the graph says no type of its tensors; taken as NeuSight's {NEUSIGHT_DTYPE} (give --dtype)"
        notes.assume("dtype-absent", text, None)
    elif elements:
        each = bytes_per_element(NEUSIGHT_DTYPE)
        notes.assume(
            "dtype-absent",
            f"the file counts elements and says no type; taken as NeuSight's {NEUSIGHT_DTYPE}: {elements} elements x "
            f"{each} bytes = {elements * each} bytes (give --dtype)",
            None,
            brief=f"the file counts elements and says no type; taken as {NEUSIGHT_DTYPE} (give --dtype)",
        )
    return NEUSIGHT_DTYPE


def _estimates_backward(file: NeusightFile, work: _Work, options: LayoutOptions, notes: Notebook) -> bool:
    """Tell whether the backward pass has to be estimated; note it with its arithmetic."""
    if options.forward_only or file.has_backward:
        return False
    forward_s = math.fsum(file.rows[index].forward.compute_s for index, _ in work)
    notes.assume(
        "backward-estimated",
        "the file has no time of a backward pass (NeuSight traced it without training); every operator's is taken as "
        f"2 x its forward, 1 x for the input and 1 x for the weight gradient: 2 x {milliseconds(forward_s)} = "
        f"{milliseconds(2 * forward_s)} (--forward-only leaves it out)",
        None,
        brief="no backward pass is listed; each operator's is taken as 2 x its forward",
    )
    return True


class _Lowering(Struct):
    """Turns rows into operations."""

    builder: WorkloadBuilder
    file: NeusightFile
    dtype: str
    """Type of the elements that sizes are counted in."""
    estimate_backward: bool
    """Whether the file lacks the backward pass, and each operator's is taken as twice its forward."""
    reductions: set[int] = field(default_factory=set)
    """Operations that reduce gradients over dp."""
    typed: dict[int, Calls] = field(default_factory=dict)
    """Operator calls of the file by their identity, in that type."""

    def forward(self, work: _Work) -> Rows:
        """Lower the forward pass of rows."""
        ops = []
        for index, layer in work:
            row = self.file.rows[index]
            ops += self._compute(row, Phase.FORWARD, row.forward, layer)
            ops += self._communicate(row, row.forward, Phase.FORWARD, layer)
        return ops

    def backward(self, work: _Work) -> Rows:
        """Lower the backward pass of rows, last row first."""
        ops = []
        for index, layer in reversed(work):
            row = self.file.rows[index]
            of_input, of_weight = row.backward, row.weight_grad
            if self.estimate_backward:
                of_input = of_weight = row.forward
            ops += self._compute(row, Phase.BACKWARD, of_input, layer)
            # What blocks needs the input gradient; a reduction needs the accumulated gradient.
            if row.backward.group is Group.TP:
                ops += self._communicate(row, row.backward, Phase.BACKWARD, layer)
            ops += self._compute(row, Phase.WEIGHT_GRADIENT, of_weight, layer)
            if row.backward.group is not Group.TP:
                ops += self._communicate(row, row.backward, Phase.BACKWARD, layer)
            ops += self._communicate(row, row.weight_grad, Phase.WEIGHT_GRADIENT, layer)
        return ops

    def _compute(self, row: Row, phase: Phase, cell: Cell, layer: int) -> Rows:
        """Add the computation of a cell: its time, or the operators that are to be estimated."""
        place = self._place(row)
        if cell.calls:
            return self.builder.add(
                compute_op(row.name, phase, calls=self._typed(cell.calls), place=place, layer=layer)
            )
        if cell.compute_s == 0:
            return []
        assumed, bound = self.estimate_backward and phase is not Phase.FORWARD, overlap_class_of(row.name)
        return self.builder.add(
            compute_op(row.name, phase, cell.compute_s, overlap_class=bound, assumed=assumed, place=place, layer=layer)
        )

    def _typed(self, calls: Calls) -> Calls:
        """Return operator calls in the type of the elements; those of a row are the very same ones each time."""
        if id(calls) not in self.typed:
            self.typed[id(calls)] = tuple((replace(call, dtype=self.dtype), count) for call, count in calls)
        return self.typed[id(calls)]

    def _communicate(self, row: Row, cell: Cell, phase: Phase, layer: int) -> Rows:
        """Add the collective of a cell; pipeline P2P comes with the schedule."""
        if cell.group in (Group.NONE, Group.PP) or cell.elements == 0:
            return []
        added = self.builder.add(
            collective_op(
                row.name,
                phase,
                cell.group,
                cell.operation,
                cell.elements * bytes_per_element(self.dtype),
                self._given_s(cell),
                blocking=not cell.asynchronous,
                dtype=self.dtype,
                process_s=row.process_s,
                place=self._place(row),
                layer=layer,
            )
        )
        if phase is not Phase.FORWARD and cell.group is Group.DP:
            self.reductions.update(added)
        return added

    def _given_s(self, cell: Cell) -> float | None:
        """Return the time that the file says for a communication, where as many ranks take part as it is of."""
        ranks = self.builder.parallel.tp if cell.group is Group.TP else self.builder.parallel.dp
        return cell.comm_s if ranks == NEUSIGHT_GPUS else None

    def message_s_DQM(self, work: _Work) -> FloatArray | None:
        """Return the time of the message over each boundary, forward and backward; None where the file says none."""
        sends = [row for row in (self.file.rows[index] for index, _ in work) if row.sends]
        if not any(cell.comm_s is not None for row in sends for cell in row.cells):
            return None
        ways = [[row.forward.comm_s, row.backward.comm_s] for row in sends]
        time_s_QD = np.array([*ways, [None, None]], np.float64)
        return np.repeat(time_s_QD.T[:, :, None], self.builder.parallel.microbatches, axis=2)

    def _place(self, row: Row) -> Place:
        return Place(0, 0 if self.file.entries else row.number)


_GEMMS = frozenset({"addmm", "baddbmm", "bmm", "dense", "einsum", "head", "linear", "matmul", "mm", "proj"})
_STREAMS = frozenset(
    {
        *("softmax", "norm", "layernorm", "ln", "dropout", "gelu", "relu", "silu", "tanh", "sigmoid", "erf", "rsqrt"),
        *("add", "sub", "rsub", "mul", "div", "truediv", "pow", "neg", "exp", "mean", "sum", "where", "cat", "to"),
        *("contiguous", "clone", "type", "float", "embedding", "embeddings", "wte", "wpe", "act"),
    }
)
_ENDINGS = frozenset({"grad", "f"})
"""Last words that say nothing of the work: a gradient's row, and GPT-2's final norm ``ln_f``."""


def overlap_class_of(name: str) -> OverlapClass:
    """Return the class of an operator by the last telling word of its name; unknown where none is known.

    It is that of a node of a traced model: a function with a running number (``addmm_12``, ``softmax``) or the path
    of a module (``transformer_h_0_ln_1``, ``lm_head``). Source: sitar-lab/NeuSight, the operator names of its traced
    graphs, which are those of ``torch.fx``.
    """
    words = [word for word in name.lower().split("_") if word and not word.isdigit() and word not in _ENDINGS]
    last = words[-1] if words else ""
    if last in _GEMMS:
        return OverlapClass.COMPUTE_BOUND
    return OverlapClass.MEMORY_BOUND if last in _STREAMS else OverlapClass.UNKNOWN


def _lay_out(lowering: _Lowering, work: _Work, options: LayoutOptions) -> None:
    """Write the template of every rank; a stage ends at a SENDRECV row, and only the last microbatch reduces."""
    builder = lowering.builder
    template = builder.template(message_s_DQM=lowering.message_s_DQM(work))
    ends = [place + 1 for place, (index, _) in enumerate(work) if lowering.file.rows[index].sends]
    for stage, (begin, end) in enumerate(zip([0, *ends], [*ends, len(work)], strict=True)):
        forward = lowering.forward(work[begin:end])
        backward = [] if options.forward_only else lowering.backward(work[begin:end])
        template.forward_QM[stage] = builder.segment(forward)
        template.backward_QM[stage, -1] = builder.segment(backward)
        if builder.parallel.microbatches > 1:
            others = [row for row in backward if row not in lowering.reductions]
            template.backward_QM[stage, :-1] = builder.segment(others)
        template.end_P[stage] = builder.segment(builder.drained([*forward, *backward]))


def _say_what_is_left_out(
    file: NeusightFile, work: _Work, parallel: Parallel, options: LayoutOptions, notes: Notebook
) -> None:
    """Note what the step does without: what no row describes, and what does not run."""
    rows = [file.rows[index] for index, _ in work]
    reductions = [cell.elements for row in rows for cell in row.reductions]
    empty = {row.number for row in rows for cell in row.cells if cell.group is not Group.NONE and not cell.elements}
    if empty:
        text = f"{counted(len(empty), 'row communicates', 'rows communicate')} 0 elements, which takes no time"
        notes.assume("zero-size", text, None if file.entries else min(empty))
    if file.form is not Form.FORECAST and not file.has_backward:
        text = f"the {file.form} has no backward pass: its model was traced for inference, and the forward pass runs"
        notes.warn("traced-for-inference", f"{text} alone; trace it in training for a training step", None)
        return
    if options.forward_only:
        text = "only the forward pass runs, as asked; the backward pass does not"
        if reductions:
            what, does = counted(len(reductions), "gradient reduction"), "does" if len(reductions) == 1 else "do"
            text += f", and neither {does} {what} of {sum(reductions)} elements in all"
        notes.assume("forward-only", text, None)
        return
    notes.assume("optimizer-absent", "the file has no optimizer rows; the step ends with the gradients", None)
    if reductions and parallel.microbatches > 1:
        text = f"gradients are reduced once, in the backward pass of the last of {parallel.microbatches} microbatches"
        notes.assume("reduced-once", text, None)


def _say_whose_communication(file: NeusightFile, work: _Work, parallel: Parallel, notes: Notebook) -> None:
    """Note which times of communication are the prediction's: NeuSight's formula knows its number of ranks alone."""
    cells = [cell for index, _ in work for cell in file.rows[index].cells if cell.comm_s]
    ranks = {Group.TP: parallel.tp, Group.DP: parallel.dp, Group.PP: NEUSIGHT_GPUS}
    if any(ranks[cell.group] == NEUSIGHT_GPUS for cell in cells):
        text = f"communication takes the times of the prediction, of {NEUSIGHT_GPUS} GPUs, whatever the cluster"
        notes.assume("communication-as-given", text, None)
    if any(ranks[cell.group] != NEUSIGHT_GPUS for cell in cells):
        text = f"the prediction is of {NEUSIGHT_GPUS} GPUs: communication of other numbers is estimated on the cluster"
        notes.assume("communication-estimated", text, None)


def _message_bytes(file: NeusightFile, work: _Work, element_bytes: int, notes: Notebook) -> list[int]:
    """Return the bytes of the message that leaves each stage."""
    sizes = []
    for index, _ in work:
        row = file.rows[index]
        if not row.sends:
            continue
        written = {cell.elements for cell in row.cells if cell.group is Group.PP}
        if len(written) > 1:
            size = format_size(max(written) * element_bytes)
            text = f"SENDRECV has two sizes, forward and backward; the larger one, {size}, is taken for both"
            notes.warn("message-sizes-differ", text, file.line(index))
        sizes.append(max(written) * element_bytes)
    return [*sizes, 0]
