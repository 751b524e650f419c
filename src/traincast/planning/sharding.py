"""Where a plan may keep the state of the parameters: which ranks share it (ZeRO), and what of it the host has."""

from traincast.planning.axes import Axes, divisors


def shardings_of(axes: Axes, replicas: int) -> list[tuple[int, int]]:
    """Return the stages of ZeRO, each with the ranks that share one copy of the state."""
    whole = not axes.request.offload_parameters
    if replicas == 1:
        return [(0, 1)] if whole else []
    framework = axes.framework
    usual = 3 if framework.fsdp else 1 if framework.distributed_optimizer else 0
    found = []
    for zero in axes.among("zero", ((0, 1, 2, 3) if axes.full else (usual,)) if whole else (3,)):
        domain = axes.cluster.gpus_per_node
        splits = [replicas]
        if axes.full:
            splits = [each for each in divisors(replicas) if each > 1]
        elif zero == 3 and replicas % domain == 0 and replicas > domain:
            splits = [replicas, domain]
        if zero == 0:
            found.append((0, 1))
            continue
        found += [(zero, each) for each in axes.among("shard", splits) if replicas % each == 0 and each > 1]
    return found


def only_zero_of(axes: Axes, replicas: int) -> dict[str, int]:
    """Return the stage of ZeRO as a fact, where only one is tried."""
    zeros = {zero for zero, _ in shardings_of(axes, replicas)}
    return {"zero": next(iter(zeros))} if len(zeros) == 1 else {}


def reshards_of(axes: Axes, zero: int, pp: int) -> tuple[bool, ...]:
    """Return whether gathered parameters may be freed after the forward pass, and gathered again.

    Where stages of a pipeline keep them whole over all microbatches, freeing them spares no memory.
    """
    if zero < 3:
        return (True,)
    framework = axes.framework
    if framework.pipelined_fsdp and pp > 1:
        return axes.among("reshard_after_forward", (False,))
    chooses = axes.full or (framework.fsdp and framework.reshard_choice)
    return axes.among("reshard_after_forward", (True, False) if chooses else (True,))


def offloaded_shares_of(axes: Axes) -> tuple[float, ...]:
    """Return which shares of the optimizer's states may be offloaded; offloaded parameters take all along."""
    if axes.request.offload_parameters:
        usual: tuple[float, ...] = (1.0,)
    else:
        usual = (0.0, 1.0) if axes.offloads("optimizer") else (0.0,)
    return axes.among("offload_optimizer", usual)
