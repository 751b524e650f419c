"""Find what the ranks of a traced run ended together, and bring them on one clock (`traincast.workload.clocks`)."""

from collections import defaultdict

from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import MESSAGES
from traincast.workload.clocks import Alignment, Ends
from traincast.workload.clocks import align as align_clocks
from traincast.workload.words import Group

_Place = tuple[object, ...]


def align(run: Run, world: int, pp: int) -> Alignment:
    """Find the offsets that bring all ranks of a run on one clock, for its world size and its pipeline stages.

    Some ranks may be missing; those without any time get the offset of the first host.
    """
    stride = world // max(pp, 1)
    first_s = {rank: trace.first_start_s for rank, trace in run.traces.items()}
    return align_clocks(first_s, _message_ends(run, stride) | _collective_ends(run, stride), run.key)


def _message_ends(run: Run, stride: int) -> Ends:
    ends_s: dict[tuple[str, int, int, int | None], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for rank, trace in run.traces.items():
        for op in trace.ops:
            if op.op in MESSAGES and op.end_s is not None:
                side, direction = op.op.split("_")
                ahead = stride if direction == "forward" else -stride
                source = rank if side == "send" else rank - ahead
                sent_s, received_s = ends_s[direction, source, source + ahead, op.batch_id]
                (sent_s if side == "send" else received_s).append(op.end_s)
    both = [
        (source, target, *pair) for (_, source, target, _), ends in ends_s.items() for pair in zip(*ends, strict=False)
    ]
    return Ends.of_messages(*zip(*both, strict=True)) if both else Ends()


def _collective_ends(run: Run, stride: int) -> Ends:
    """Match the collectives of the tensor-parallel groups that the names of the files tell."""
    numbers: dict[_Place, int] = {}
    met: list[tuple[int, int, float]] = []
    for rank, trace in run.traces.items():
        tp = trace.name.tp or 1
        if stride % tp == 0:
            for place, end_s in _tensor_ends(trace).items():
                met.append((numbers.setdefault((rank // tp, *place), len(numbers)), rank, end_s))
    return Ends.of_collectives(*zip(*met, strict=True)) if met else Ends()


def _tensor_ends(trace: RankTrace) -> dict[_Place, float]:
    """Return the ends of a rank's synchronous tensor-parallel collectives by operation, microbatch and number."""
    found: dict[_Place, float] = {}
    for op in trace.ops:
        # one GPU that plays all ranks does so one after the other: alike places are not one rendezvous
        if op.sub_ops and not op.is_simulated:
            collectives = [sub for sub in op.sub_ops if sub.call.group is Group.TP and not sub.call.is_async]
            for number, sub in enumerate(collectives):
                if sub.end_s is not None:
                    found[op.op, op.batch_id, number] = sub.end_s
    return found
