"""The closed vocabularies of the intermediate form, as small integers for columns."""

from enum import IntEnum

from traincast.errors import UnknownNameError


class Phase(IntEnum):
    """Part of the training step an operation belongs to."""

    FORWARD = 0
    BACKWARD = 1
    """Input gradient."""
    WEIGHT_GRADIENT = 2
    RECOMPUTE = 3
    """Forward work repeated in the backward pass."""
    STEP = 4
    """Once per step."""


class Kind(IntEnum):
    """What an operation is."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    GAP = 4
    """The host is busy and the GPU idle."""
    WAIT = 5
    """Hold the program until everything launched on another stream has ended."""
    COPY = 6
    """The GPU copies memory, or sets it to a value."""


class Group(IntEnum):
    """Kind of a communication group."""

    NONE = -1
    TP = 0
    CP = 1
    EP = 2
    PP = 3
    DP = 4
    ETP = 5
    EDP = 6
    """Expert data parallel (AICB ``DP_EP``, Echo ``exp_dp``)."""
    EMB = 7
    """First and last stage, for tied embeddings."""
    MP = 8
    """TP x PP, the optimizer's norm."""
    WORLD = 9
    SHARD = 10
    """Data parallel ranks that share one copy of sharded state (ZeRO, FSDP), where that is not all of them."""
    REPLICA = 11
    """Data parallel ranks that hold the same share of it (HSDP)."""
    COPY = 12
    """Two stages that hold copies of the same layers (DualPipe)."""


class Stream(IntEnum):
    """In-order queue of a rank. A send and a receive in each pipeline direction have their own."""

    COMPUTE = 0
    TP = 1
    CP = 2
    EP = 3
    DP = 4
    ETP = 5
    EDP = 6
    EMB = 7
    MP = 8
    WORLD = 9
    SEND_FORWARD = 10
    SEND_BACKWARD = 11
    RECV_FORWARD = 12
    RECV_BACKWARD = 13
    PP = 14
    """Collectives over the stages of a pipeline; messages have streams of their own."""
    SEND_FORWARD_REVERSED = 15
    """Where virtual stages run down the stages: the second half of a V, a second model copy."""
    SEND_BACKWARD_REVERSED = 16
    RECV_FORWARD_REVERSED = 17
    RECV_BACKWARD_REVERSED = 18
    SHARD = 19
    REPLICA = 20
    HOST = 21
    """The host, which launches the kernels of what comes next."""
    COPY = 22
    OFFLOAD_OUT = 23
    """Copies to the memory of the host of what is offloaded to it."""
    OFFLOAD_IN = 24
    """Copies back; links to the host have both directions."""
    HOST_MEMORY = 25
    """The optimizer on the host, which the rate of its memory bounds."""
    NONE = 26


STREAM_OF_GROUP: dict[Group, Stream] = {group: Stream[group.name] for group in Group if group is not Group.NONE}
"""The stream that a collective of a group runs on."""


class Operation(IntEnum):
    """What a communication does; sizes follow nccl-tests (`size_bytes` of the result page).

    Where members move unequal amounts each says the size that it would be were all like it.
    """

    NONE = -1
    ALL_REDUCE = 0
    ALL_GATHER = 1
    """Size: the gathered tensor."""
    REDUCE_SCATTER = 2
    """Size: the tensor before it is scattered."""
    ALL_TO_ALL = 3
    """Size: bytes that leave one rank's buffer."""
    BROADCAST = 4
    REDUCE = 5
    SEND_RECV = 6
    GATHER = 7
    """Pieces of all ranks to one. Size: the gathered tensor."""
    SCATTER = 8
    """Pieces from one rank to all. Size: the tensor before it is scattered."""


UNEQUAL = frozenset({Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER})
"""Operations whose members may move unequal amounts without a form of their own (`Op.unequal`)."""


_OF_SHARES = frozenset(
    {
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.ALL_TO_ALL,
        Operation.GATHER,
        Operation.SCATTER,
    }
)
"""Operations in which the busiest rank keeps its own share of the size."""


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if operation in _OF_SHARES:
        return (ranks - 1) / ranks
    return 1.0


class Provenance(IntEnum):
    """Where a duration comes from."""

    UNKNOWN = 0
    FILE = 1
    """Written in the input, at its line."""
    PRICED = 2
    """Worked out by a cost model."""
    ASSUMED = 3
    """Supposed, and listed among the assumptions."""


class OverlapClass(IntEnum):
    """How an operation slows down while it overlaps with communication."""

    UNKNOWN = 0
    COMPUTE_BOUND = 1
    MEMORY_BOUND = 2
    SMALL = 3


class CostClass(IntEnum):
    """What a fitted factor scales (`traincast.estimate.factors`), where kind, group and calls leave it open."""

    NONE = 0
    FIXED = 1
    """Host time once per step."""
    HANDOVER = 2
    """Host time of launching P2P between pipeline stages."""
    HOST_LAYERS = 3
    """Launches of the kernels of layers."""
    UNHIDDEN = 4
    """The share of an exchange that no framework overlaps with computation, where it overlaps the rest."""
    HIDDEN = 5
    """The rest of such an exchange."""


def operation_named(text: str) -> Operation:
    """Return an operation by its name however it is spelled: ``all_reduce``, ``All-Reduce``, ``allreduce``.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    """
    known = {each.name.replace("_", ""): each for each in Operation if each is not Operation.NONE}
    letters = "".join(char for char in text.upper() if char.isalpha())
    if letters not in known:
        raise UnknownNameError("operation", text, (each.name.lower() for each in known.values()))
    return known[letters]
