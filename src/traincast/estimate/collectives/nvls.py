"""Reduction in the switch (NVLS, NVLink SHARP): every rank sends its data once and gets the sum back."""

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("nvls")
def nvls(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of an all-reduce that the NVSwitch of one node sums.

    A rank sends S and receives S, where a ring moves nearly twice that. The steps are
    counted as those of the ring: what 8 GPUs show at small sizes, and 72 GPUs are slower
    still. NCCL also gathers and scatters through the switch; the measured runs do not.

    Source: NVIDIA/nccl, src/transport/nvls.cc; rates in src/graph/tuning.cc.
    """
    if operation is not Operation.ALL_REDUCE or placement.nodes > 1:
        return None
    return Traffic(
        intra_hops=2 * (placement.ranks - 1),
        port_load=1.0,
        inside_load=float(placement.ranks),
        copy_load=1 / placement.ranks,
        share=1 / placement.ranks,
        members=placement.max_members,
        in_switch=True,
    )
