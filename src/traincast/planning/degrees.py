"""How a plan may split the work over ranks: degrees, sequences of a microbatch, norms, dispatchers of tokens."""

import math
from collections.abc import Iterator

from msgspec import Struct

from traincast.errors import InfeasibleError
from traincast.job.degrees import check_model
from traincast.model.dispatch import DISPATCHERS, dispatcher_of
from traincast.planning.axes import Axes, divisors

MOST_MICRO_BATCH = 8
"""Largest micro batch of the default space: published recipes of large models have 1 to 4."""

LEAST_CONTEXT = 4096
"""Fewest tokens of a sequence that a rank has in the default space: NVIDIA's recipes of Llama 3 70B and Llama 3.1 405B
split 8,192 tokens over two ranks (NVIDIA/dgxc-benchmarking, llama3.1)."""


class Degrees(Struct, frozen=True):
    """What says which rank holds what, but for the pipeline's order."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int

    @property
    def replicas(self) -> int:
        """Ranks with equal dense parameters: dp x cp."""
        return self.dp * self.cp


def degrees_of(axes: Axes) -> Iterator[Degrees]:
    """Yield every set of degrees that divides the GPUs and the model."""
    gpus, model = axes.request.gpus, axes.request.model
    for tp in axes.among("tp", _tensor(axes)):
        for cp in axes.among("cp", _context(axes, tp)):
            for pp in axes.among("pp", divisors(gpus // (tp * cp)) if gpus % (tp * cp) == 0 else ()):
                if gpus % (tp * cp * pp) or pp > model.layers:
                    continue
                dp = gpus // (tp * cp * pp)
                if axes.request.global_batch % dp:
                    continue
                for ep, etp in _experts(axes, tp, cp, dp):
                    if _divides_model(axes, tp, ep, etp):
                        yield Degrees(tp, pp, cp, dp, ep, etp)


def _tensor(axes: Axes) -> list[int]:
    gpus, heads = axes.request.gpus, axes.request.model.attention.heads
    most = heads if axes.full else min(heads, axes.cluster.gpus_per_node)
    found = [tp for tp in divisors(gpus) if tp <= most and heads % tp == 0]
    return found if axes.full else [tp for tp in found if tp & (tp - 1) == 0]


def _context(axes: Axes, tp: int) -> list[int]:
    gpus, tokens = axes.request.gpus, axes.request.seq_length
    found = [cp for cp in divisors(gpus // tp) if tokens % (2 * cp) == 0 or cp == 1]
    if axes.full:
        return [cp for cp in found if cp <= 64]
    return [cp for cp in found if cp == 1 or (tokens // cp >= LEAST_CONTEXT and cp & (cp - 1) == 0)]


def _experts(axes: Axes, tp: int, cp: int, dp: int) -> Iterator[tuple[int, int]]:
    """Yield the degrees of experts, and of their tensor parallelism: tp, with ep dividing dp, if not folded."""
    experts = axes.request.model.experts
    if experts is None:
        yield 1, tp
        return
    folded, usual = axes.framework.folded_experts, tp if axes.framework.expert_tp else 1
    tried = {usual, 1, *(divisors(tp) if axes.full else ())} if folded else {tp}
    for etp in axes.among("etp", sorted(tried)):
        stride = etp if folded else tp * cp
        most = tp * cp * dp // stride
        choices = [ep for ep in divisors(experts.experts) if most % ep == 0]
        if not axes.full:
            domain = axes.cluster.gpus_per_node
            choices = [ep for ep in choices if ep * stride <= domain or _crosses_domains(axes, ep)]
        for ep in axes.among("ep", choices):
            if tp * cp * dp % (stride * ep) == 0 and (folded or etp == tp):
                yield ep, etp


def dispatchers_of(axes: Axes, ep: int, switched: str | None = None) -> tuple[str | None, ...]:
    """Return the kinds of dispatchers that may send tokens to their experts; `switched` is what software has."""
    request = axes.request
    if request.model.experts is None:
        return (None,)
    if request.moe_dispatcher is None and request.deduplicated_dispatch is not None:
        return axes.among("moe_dispatcher", (dispatcher_of(request.deduplicated_dispatch),))
    usual = (switched or axes.framework.moe_dispatcher,)
    return axes.among("moe_dispatcher", DISPATCHERS if axes.full and ep > 1 else usual)


def _crosses_domains(axes: Axes, ep: int) -> bool:
    """Return whether a dispatcher may be used that sends a token once to each node of its experts."""
    switched = axes.software.values("moe_dispatcher")
    kinds = {kind for each in (None, *switched) for kind in dispatchers_of(axes, ep, each)}
    return any(DISPATCHERS[kind].sends == "once" for kind in kinds if kind is not None)


def _divides_model(axes: Axes, tp: int, ep: int, etp: int) -> bool:
    try:
        check_model(axes.request.model, tp=tp, ep=ep, etp=etp)
    except InfeasibleError:
        return False
    return True


def micro_batches_of(axes: Axes, dp: int) -> tuple[int, ...]:
    """Return the sequences that a microbatch may have."""
    each = axes.request.global_batch // dp
    found = divisors(each)
    if not axes.full:
        found = [mbs for mbs in found if mbs <= MOST_MICRO_BATCH and mbs & (mbs - 1) == 0]
    parts = each if axes.request.local_batch is None else math.gcd(each, axes.request.local_batch)
    return tuple(mbs for mbs in axes.among("micro_batch", found) if parts % mbs == 0)


def sequence_parallel_of(axes: Axes, tp: int, cp: int) -> tuple[bool, ...]:
    """Return whether norms may be split along the sequence."""
    if tp == 1:
        return (False,)
    divides = axes.request.seq_length % (tp * cp) == 0
    usual = (True, False) if axes.full else (axes.framework.sequence_parallel,)
    return tuple(dict.fromkeys(each and divides for each in axes.among("sequence_parallel", usual)))
