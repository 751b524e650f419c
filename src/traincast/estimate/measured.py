"""What was measured of operators on a cluster: names of what a factor covers, and what of a job no factor covers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.factors import CostFactors, host_class
from traincast.estimate.operators.constants import OperatorConstants, constants_of_text, shipped_constants
from traincast.estimate.operators.families import FAMILIES
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import GRACE, Gpu
from traincast.job.frameworks import Framework
from traincast.job.job import Job
from traincast.job.options import ConstantsFile
from traincast.workload.ops import OperatorCall
from traincast.workload.words import CostClass, Phase

FAR = 2.0
"""A size so many times below or above those that were measured is another operator."""
LAUNCH_S = 13.5e-6
"""What an x86 server takes to launch a linear layer of PyTorch, which slowdowns of hosts are relative to
(NVIDIA/TransformerEngine#2053)."""
OF_PROCESSOR = (CostClass.HOST_LAYERS, CostClass.FIXED)
"""Classes of work that the speed of the host decides."""
_SHOWN = 3


def cost_class(call: OperatorCall) -> str:
    """Return the class of work of an operator, whatever its pass: ``gemm bf16``."""
    return FAMILIES.get(call.family).cost_class(call)


def measured_class(call: OperatorCall) -> str:
    """Return the class of work of an operator with its pass, as traces tell it apart: ``gemm bf16 backward``.

    What memory binds is told apart by its families, too: ``memory norm backward``.
    """
    name = cost_class(call)
    kind = f"{name} {call.family}" if name == "memory" else name
    return (
        f"{kind} {'step' if call.family == 'optimizer' else 'forward' if call.direction == 'forward' else 'backward'}"
    )


def in_pass(name: str, phase: Phase) -> str:
    """Return a class of the host's work with its pass: ``host layers forward``."""
    return f"{name} {'forward' if phase is Phase.FORWARD else 'backward'}"


def of_pass(name: str) -> bool:
    """Say whether a class of work is one of a single pass, as traces tell them apart."""
    return name.rpartition(" ")[2] in ("forward", "backward", "step")


def operator_name(call: OperatorCall) -> str:
    """Return the name of an operator that a factor covers: ``gemm 4096x7680x5120``."""
    return f"{call.family} {'x'.join(map(str, call.shape))}"


def measured_constants(file: ConstantsFile | None) -> OperatorConstants | None:
    """Return the shipped constants with those of a file before them; None where there is none.

    Raises
    ------
    FormatError
        If it holds no operator constants, or a number of theirs is wrong.
    """
    return None if file is None else shipped_constants().with_rows(tuple(constants_of_text(file.text, file.name)))


def with_measured(factors: CostFactors, file: ConstantsFile | None, gpu: Gpu, framework: Framework) -> CostFactors:
    """Return factors with what was measured of a GPU and its host: constants of operators, and the time of a launch.

    Raises
    ------
    FormatError
        If the file holds no operator constants, or a number of theirs is wrong.
    """
    constants = measured_constants(file)
    launch_s = None if constants is None else constants.host_launch_s(gpu)
    of_class = factors.of_class
    if launch_s is not None:
        slower = launch_s / LAUNCH_S
        of_class = {**of_class} | {
            host_class(each): factors.factor(host_class(each)) * slower / processor_factor(framework, gpu, each)
            for each in OF_PROCESSOR
        }
    return replace(factors, of_class=of_class, constants=constants)


def processor_factor(framework: Framework, gpu: Gpu, cost_class: CostClass) -> float:
    """Return the factor that the processor of a GPU's host has on some work of a framework."""
    if cost_class not in OF_PROCESSOR:
        return 1.0
    launches = cost_class is CostClass.HOST_LAYERS and gpu.host_cpu == GRACE
    return gpu.host_slowdown * (framework.grace_slowdown if launches else 1.0)


def constants_notes(file: ConstantsFile | None, gpu: Gpu) -> tuple[Note, ...]:
    """Say of which families a file of constants takes the place of the shipped ones."""
    if file is None:
        return ()
    rows = constants_of_text(file.text, file.name)
    own = sorted({f"{row.family} {row.dtype}" for row in rows if row.gpu == gpu.name})
    if own:
        return (Note("constants", f"operators take the constants of {file.name}: {', '.join(own)}"),)
    others = ", ".join(sorted({row.gpu for row in rows}))
    return (Note("constants-unused", f"{file.name} has no constants of {gpu.name}, but of {others}"),)


def unmeasured(cluster: Cluster, job: Job, calls: Iterable[OperatorCall]) -> Iterator[Note]:
    """Yield what a job runs of which the traces that a cluster's factors come from say nothing."""
    name = job.framework.name
    known = {each.cost_class: each.operators for each in cluster.run_factors if each.framework == name}
    if not any(known.values()):
        return
    ordered = sorted(calls, key=lambda call: (measured_class(call), operator_name(call)))
    lacking, beyond = list[str](), dict[str, None]()
    for group, members in groupby(ordered, key=measured_class):
        if group not in known:
            lacking.append(group)
            continue
        ranges = _ranges(known[group])
        beyond |= dict.fromkeys(operator_name(call) for call in members if not _is_near(call, ranges))
    if lacking:
        text = f"the traces that {cluster.name} was calibrated with say nothing of {', '.join(lacking)}"
        yield Note("class-unmeasured", f"{text}; these take what is estimated without them")
    if far := [*beyond]:
        more = f" and {len(far) - _SHOWN} more" if len(far) > _SHOWN else ""
        text = f"{', '.join(far[:_SHOWN])}{more}: a size is more than {FAR:g} x away from those that {cluster.name} was"
        yield Note("shape-unmeasured", f"{text} calibrated with; its factors may not hold for them")


_OPERATOR = re.compile(r"(\w+) ([0-9]+(?:x[0-9]+)*)")


def _ranges(operators: Iterable[str]) -> Mapping[tuple[str, int], list[tuple[int, int]]]:
    """Return the least and greatest of each size that was measured, by family and number of sizes."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for match in filter(None, map(_OPERATOR.fullmatch, operators)):
        sizes = list(map(int, match[2].split("x")))
        before = found.get((match[1], len(sizes)), [(size, size) for size in sizes])
        found[match[1], len(sizes)] = [
            (min(low, size), max(high, size)) for (low, high), size in zip(before, sizes, strict=True)
        ]
    return found


def _is_near(call: OperatorCall, ranges: Mapping[tuple[str, int], list[tuple[int, int]]]) -> bool:
    known = ranges.get((call.family, len(call.shape)))
    return known is not None and all(
        low / FAR <= size <= high * FAR for (low, high), size in zip(known, call.shape, strict=True)
    )
