"""Experts: the ranks that hold them, how tokens get there and back, and what hides the way."""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.decisions import Decisions, Need
from traincast.job.fields import needing
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.model.dispatch import DISPATCHERS, Dispatch, dispatcher_of
from traincast.model.routing import POPULARITY_DEVIATION, busiest_rank, trained_deviation
from traincast.schedules.schedule import Pairing, schedules_that_pair


def _has_experts(request: JobRequest, *_: object) -> bool:
    return request.model.experts is not None


def _sends_tokens(request: JobRequest, parallel: Parallel, _: int) -> bool:
    return request.model.experts is None or parallel.ep > 1


_OF_EXCHANGES = needing("ep>1")
NEEDS = (
    *(Need(name, _has_experts, "on a model without experts") for name in _OF_EXCHANGES),
    *(Need(name, _sends_tokens, "with ep 1: no tokens are sent") for name in _OF_EXCHANGES),
)
"""What its fields need to have an effect."""


class ExpertExchange(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "dispatcher": "moe_dispatcher",
        "dispatch_dtype": "moe_dispatch_dtype",
        "a2a_overlap": "moe_a2a_overlap",
        "shared_expert_overlap": "moe_shared_expert_overlap",
        "paged_stash": "moe_paged_stash",
        "imbalance": "expert_imbalance",
        "routing": "moe_routing",
    },
):
    """How tokens get to their experts and back."""

    dispatcher: str = "alltoall"
    """What sends tokens: one of `traincast.model.dispatch.DISPATCHERS`."""
    dispatch_dtype: str = "bf16"
    """Type in which they are sent; they come back in 16 bits."""
    a2a_overlap: bool = False
    """Whether exchanges are overlapped with the computation of another microbatch."""
    delay_wgrad: bool = False
    """Whether weight gradients of experts hide the way of their inputs' gradients back, where exchanges overlap."""
    shared_expert_overlap: bool = False
    """Whether shared experts compute while tokens are on their way."""
    paged_stash: bool = False
    """Whether activations of experts have a fixed place, so that the host need not wait for the number of tokens."""
    fused_router: bool = False
    """Whether routing is a few fused kernels."""
    fused_permute: bool = False
    """Whether permuting tokens is."""
    imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean, in every exchange."""
    routing: str = "balanced"
    """How tokens are spread over experts: one of `traincast.model.routing.ROUTINGS`."""

    @property
    def dispatch(self) -> Dispatch:
        """What the blocks of experts read of it."""
        return Dispatch(
            dispatcher=self.dispatcher,
            dtype=self.dispatch_dtype,
            imbalance=self.imbalance,
            consecutive=self.routing == "consecutive",
        )

    @property
    def hides_exchanges(self) -> bool:
        """Whether something else is computed while tokens are on their way to experts and back."""
        return self.a2a_overlap or self.shared_expert_overlap

    @property
    def pairs_passes(self) -> bool:
        """Whether a forward and a backward pass run as one, each hiding what the other exchanges with experts."""
        return self.a2a_overlap


def check_imbalance(busiest: float, ep: int) -> None:
    """Refuse more tokens for the busiest of the expert ranks than there are."""
    if busiest > ep:
        raise ConfigError(
            f"is {busiest:g}; one of ep {ep} has at most all tokens, {ep} x the mean (give less, or another ep)",
            "expert_imbalance",
        )


def decide_experts(request: JobRequest, decided: Decisions, parallel: Parallel, schedule: str) -> ExpertExchange:
    """Decide how tokens get to their experts and back, and whether another microbatch's work hides that.

    Raises
    ------
    ConfigError
        If two fields contradict each other.
    """
    framework, matters = decided.framework, request.model.experts is not None and parallel.ep > 1
    dispatcher = _dispatcher(request)
    if matters:
        dispatcher = decided.by_framework("moe_dispatcher", dispatcher, framework.moe_dispatcher)
    overlaps = request.moe_a2a_overlap
    if matters and overlaps is None and schedule in schedules_that_pair(Pairing.ALWAYS):
        overlaps = True
        text = f"moe_a2a_overlap is not given: on, as schedule {schedule} runs two passes at once for just that"
        decided.note("assumed-moe-a2a-overlap", text)
    elif overlaps is None:
        overlaps = framework.moe_a2a_overlap
    if matters and overlaps and schedule not in (pairing := schedules_that_pair(Pairing.POSSIBLE, Pairing.ALWAYS)):
        overlaps = False
        text = (
            f"moe_a2a_overlap has no effect: schedule {schedule} runs no forward pass next to a backward pass that "
            f"could hide its exchanges; {', '.join(pairing)} do"
        )
        decided.note("moe-a2a-overlap-unused", text)
    delays = framework.delay_wgrad if request.delay_wgrad is None else request.delay_wgrad
    if request.delay_wgrad and not (matters and overlaps):
        decided.note("delay-wgrad-unused", "delay_wgrad has no effect where no exchanges with experts are overlapped")
    return ExpertExchange(
        dispatcher=dispatcher or framework.moe_dispatcher,
        dispatch_dtype=request.moe_dispatch_dtype or framework.moe_dispatch_dtype,
        a2a_overlap=bool(matters and overlaps),
        delay_wgrad=bool(matters and overlaps and delays),
        shared_expert_overlap=matters and _shared_experts_overlap(request, decided, others=bool(overlaps)),
        imbalance=_decide_imbalance(request, decided, parallel),
        routing=request.moe_routing or "balanced",
        paged_stash=bool(request.moe_paged_stash),
        fused_router=framework.fused_router if request.fused_router is None else request.fused_router,
        fused_permute=framework.fused_permute if request.fused_permute is None else request.fused_permute,
    )


def _shared_experts_overlap(request: JobRequest, decided: Decisions, *, others: bool) -> bool:
    """Return whether shared experts are computed while tokens are on their way; Megatron-LM refuses both overlaps."""
    asked, experts = request.moe_shared_expert_overlap, request.model.experts
    why = None
    if asked and (experts is None or not experts.shared_ffn_hidden):
        why = f"{request.model.name} has no shared experts"
    elif asked and others:
        why = "another microbatch hides the exchanges with experts already (moe_a2a_overlap)"
    if why is not None:
        decided.note("moe-shared-expert-overlap-unused", f"moe_shared_expert_overlap has no effect: {why}")
    overlaps = decided.framework.moe_shared_expert_overlap if asked is None else asked
    return bool(overlaps and experts is not None and experts.shared_ffn_hidden and not others)


def _decide_imbalance(request: JobRequest, decided: Decisions, parallel: Parallel) -> float:
    """Decide what the busiest expert rank gets of the tokens over the mean.

    Raises
    ------
    ConfigError
        If both a factor and a kind of routing that is not balanced are asked for.
    """
    given, experts, routing, ep = request.expert_imbalance, request.model.experts, request.moe_routing, parallel.ep
    if experts is None or ep == 1:
        return given
    if spreads_tokens(request) and given != 1:
        raise ConfigError(f"is {given:g}, and moe_routing is {routing}; give one of the two", "expert_imbalance")
    tokens = tokens_exchanged(request, parallel.tp, parallel.cp, ep, parallel.expert_tp, request.micro_batch or 1)
    if spreads_tokens(request):
        busiest = busiest_by_routing(request, ep, tokens)
        brief = f"moe_routing {routing}: the busiest of ep {ep} expert ranks gets {busiest:.2f} x the mean tokens"
        decided.note(f"{routing}-routing", f"{brief}, {_why(request, tokens)}", brief=brief)
        return busiest
    if routing == "consecutive":
        text = "moe_routing consecutive: experts are taken in their order, so that those of a token are on few ranks"
        decided.note("consecutive-routing", text)
    if given == 1 and routing is None:
        natural = busiest_rank(experts.experts, experts.topk, ep)
        text = (
            "moe_routing is not given: balanced, every expert gets equally many tokens, as in benchmarks; if it were "
            f"natural, as at initialisation, the busiest of ep {ep} expert ranks would get {natural:.2f} x the mean"
        )
        brief = f"moe_routing is not given: balanced (natural: the busiest rank gets {natural:.2f} x the mean)"
        decided.note("assumed-moe-routing", text, brief=brief)
    return given


def spreads_tokens(request: JobRequest) -> bool:
    """Say whether a request asks for a kind of routing that gives some expert ranks more tokens than others."""
    return request.model.experts is not None and request.moe_routing in ("trained", "natural")


def busiest_by_routing(request: JobRequest, ep: int, tokens: float) -> float:
    """Return the tokens of the busiest of `ep` expert ranks over the mean, of an exchange of so many tokens."""
    experts = request.model.experts
    if experts is None:
        return 1.0
    deviation = _deviation(request, tokens) if request.moe_routing == "trained" else POPULARITY_DEVIATION
    return busiest_rank(experts.experts, experts.topk, ep, deviation)


def tokens_exchanged(request: JobRequest, tp: int, cp: int, ep: int, etp: int, micro_batch: int) -> float:
    """Return the tokens that the expert ranks of one group exchange for a microbatch."""
    return micro_batch * request.seq_length / (cp * tp) * ep * etp


def _deviation(request: JobRequest, tokens: float) -> float:
    experts = request.model.experts
    if experts is None:
        return 0.0
    return trained_deviation(experts.experts, experts.topk, tokens, has_bias=experts.bias_balanced)


def _why(request: JobRequest, tokens: float) -> str:
    experts = request.model.experts
    count = "" if experts is None else f"{experts.experts} experts"
    if request.moe_routing == "natural":
        return (
            f"another one in each layer, as {count} at initialisation have log-normal popularities "
            f"(deviation {POPULARITY_DEVIATION:g})"
        )
    by_bias = experts is not None and experts.bias_balanced
    what = "biases of the router balance" if by_bias else "an auxiliary loss balances"
    return (
        f"as {what} {count} over the whole, and the {tokens:,.0f} tokens of an exchange are of some documents "
        f"(log-normal popularities, deviation {_deviation(request, tokens):.2g})"
    )


def _dispatcher(request: JobRequest) -> str | None:
    """Return the dispatcher that a request names, or says by whether a token crosses to a node once."""
    once, named = request.deduplicated_dispatch, request.moe_dispatcher
    if once is None:
        return named
    if named is not None and (DISPATCHERS[named].sends == "once") != once:
        shown = "on" if once else "off"
        text = f"is {named}, and deduplicated_dispatch, which says the same, is {shown}; give moe_dispatcher alone"
        raise ConfigError(text, "moe_dispatcher")
    return named or dispatcher_of(once)
