"""Give every rank of the run to simulate a traced rank to stand for it, and make up stages nobody traced."""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.formats.echo.files import Run
from traincast.formats.echo.layout import Layouts
from traincast.formats.echo.work import RankWork
from traincast.schedules.slots import SlotKind
from traincast.workload.builder import compute_op
from traincast.workload.ops import Op
from traincast.workload.words import Group, Kind, OverlapClass, Phase, Provenance

_FORWARD_SHARE = 1 / 3
"""Forward's share of a layer's work: the backward does two GEMMs for each one."""

_WORTH_SCALING = 0.05
"""Difference between a stage's work and what a wait shows of it from which the wait is believed."""

_NO_WAIT = 0.1
"""Share of a stage's work below which a wait for the first gradient cannot be one."""


class Stages(Struct):
    """Work of every stage, traced or made up, and who stands for whom."""

    run: Run
    layouts: Layouts
    works: Mapping[int, RankWork]
    """By traced rank."""
    notes: Notebook
    _of_stage: dict[int, dict[int, RankWork]] = field(default_factory=dict)
    """Per traced stage: rank -> its work."""

    def __post_init__(self) -> None:
        stages, world = self.layouts.traced.pp, self.layouts.target.world_size
        for rank, work in self.works.items():
            self._of_stage.setdefault(self.layouts.stage_of(self.run.traces[rank]), {})[rank] = work
        present = sorted(self._of_stage)
        for stage in range(stages):
            if stage not in self._of_stage:
                # A middle stage stands for a middle stage, then the nearest.
                nearest = min(
                    present,
                    key=lambda known: ((known in (0, stages - 1)) != (stage in (0, stages - 1)), abs(known - stage)),
                )
                self._of_stage[stage] = self._made_up(stage, nearest)
        missing = world - len(self.works)
        if missing > 0:
            does = f"each of the other {missing} does what a traced rank of its stage, or else of another stage, did"
            traced = f"{len(self.works)} of {world} ranks were traced"
            brief = f"{traced}; the others do what these did"
            self.notes.assume("ranks-mirrored", f"{traced}; {does}", None, brief=brief)

    def source(self, rank: int) -> tuple[int, int]:
        """Return the traced stage and rank whose work a rank of the run to simulate does."""
        original, target = self.layouts.traced, self.layouts.target
        stage, place = divmod(rank, target.ranks_per_stage)
        # Of a longer or shorter pipeline the first and last stage are like those, and others like a middle one.
        from_stage = min(stage, max(0, original.pp - 2))
        if stage and stage == target.pp - 1:
            from_stage = original.pp - 1
        tp_index, replica = place % target.tp % original.tp, place // target.tp % (original.dp * original.cp)
        expert_rank = place // target.expert_tp % target.ep % original.ep

        def unlike(other: int) -> tuple[bool, bool, bool, int]:
            theirs = other % original.ranks_per_stage
            tokens = theirs // original.expert_tp % original.ep != expert_rank
            return theirs % original.tp != tp_index, tokens, theirs // original.tp != replica, other

        # the very rank, where it was traced: nothing has to be looked for
        same = from_stage * original.ranks_per_stage + replica * original.tp + tp_index
        if same in self._of_stage[from_stage] and not any(unlike(same)[:3]):
            return from_stage, same
        return from_stage, min(self._of_stage[from_stage], key=unlike)

    def work(self, stage: int, source: tuple[int, int]) -> RankWork:
        """Return the work of a stage of the run to simulate."""
        from_stage, rank = source
        work = self._of_stage[from_stage][rank]
        outer = stage in (0, self.layouts.target.pp - 1)
        return work if outer else _without_embedding(work)

    def _made_up(self, stage: int, nearest: int) -> dict[int, RankWork]:
        """Return the work of a stage nobody traced: that of another one, brought to what the waits show."""
        last = self.layouts.traced.pp - 1
        source = min(self._of_stage[nearest])
        self.notes.assume("stage-made-up", f"stage {stage} was not traced; it does what rank {source} did", None)
        factor, head_s = self._upstream(source) if stage < nearest else self._downstream(source)
        made = {}
        for rank, work in self._of_stage[nearest].items():
            alike = replace(work, start=[], before_recv={})
            alike = _scaled(alike, factor) if factor != 1 else alike
            alike = alike if stage in (0, last) else _without_embedding(alike)
            made[rank] = _with_head(alike, head_s) if stage == last else alike
        return made

    def _upstream(self, rank: int) -> tuple[float, float]:
        """Return how a stage before a rank compares with its own: the first activation came after so much work."""
        trace = self.run.traces[rank]
        stage = self.layouts.stage_of(trace)
        waits, forwards = trace.named("recv_forward"), trace.named("forward_step")
        if self.run.is_profile or not (stage and waits and forwards) or not waits[0].duration_s:
            return 1.0, 0.0
        own_s, wait_s = forwards[0].duration_s or 0.0, waits[0].duration_s
        factor = wait_s / stage / own_s if own_s else 1.0
        if abs(factor - 1) < _WORTH_SCALING:
            return 1.0, 0.0
        self.notes.assume(
            "upstream-from-wait",
            f"rank {rank} got its first activation after {1e3 * wait_s:.1f} ms, so each of the {stage} stage(s) before "
            f"it works {1e3 * wait_s / stage:.1f} ms forward, {factor:.2f} x the {1e3 * own_s:.1f} ms of rank {rank}; "
            "their backward is scaled alike",
            waits[0].line,
            brief=f"each stage before rank {rank} works {factor:.2f} x as long, by its wait for an activation",
        )
        return factor, 0.0

    def _downstream(self, rank: int) -> tuple[float, float]:
        """Return how a stage after a rank compares with its own, and the head's and loss's work on the last.

        With one microbatch the first gradient comes after all further stages have worked.
        """
        trace = self.run.traces[rank]
        waits, sends = trace.named("recv_backward"), trace.named("send_forward")
        forwards, backwards = trace.named("forward_step"), trace.named("backward_step")
        told = bool(waits and forwards and backwards) and bool(waits[0].duration_s)
        further = self.layouts.traced.pp - 1 - self.layouts.stage_of(trace)
        if self.run.is_profile or self.run.microbatches > 1 or not told or not further:
            return 1.0, 0.0
        stage_s = (forwards[0].duration_s or 0.0) + (backwards[0].duration_s or 0.0)
        travel_s = (2 * further - 1) * (sends[0].duration_s or 0.0) if sends else 0.0
        wait_s = waits[0].duration_s or 0.0
        if wait_s < _NO_WAIT * stage_s:
            text = (
                f"rank {rank} got its first gradient after {1e3 * wait_s:.2f} ms, in which no stage can have worked: "
                "its wait was not traced, and the stages after it do what it did"
            )
            self.notes.warn("wait-untraced", text, waits[0].line)
            return 1.0, 0.0
        left_s = wait_s - travel_s - further * stage_s
        shown = (
            f"{1e3 * wait_s:.2f} ms of waiting - {1e3 * travel_s:.2f} ms of P2P - {further} x "
            f"{1e3 * stage_s:.2f} ms of a stage's work = {1e3 * left_s:.2f} ms"
        )
        if left_s >= 0 or not stage_s:
            head = "LM head and loss on the last stage"
            brief = f"LM head and loss take {1e3 * left_s:.2f} ms, by the wait for the first gradient"
            self.notes.assume("head-from-wait", f"{head}: {shown}", waits[0].line, brief=brief)
            return 1.0, left_s
        factor = max(0.0, wait_s - travel_s) / (further * stage_s)
        text = f"{shown}: the stages after rank {rank} work {factor:.2f} x what it does"
        brief = f"the stages after rank {rank} work {factor:.2f} x what it does, by its wait for a gradient"
        self.notes.assume("downstream-from-wait", text, waits[0].line, brief=brief)
        return factor, 0.0


def _without_embedding(work: RankWork) -> RankWork:
    return replace(work, end=[op for op in work.end if op.group is not Group.EMB])


def _scaled(work: RankWork, factor: float) -> RankWork:
    """Scale the computations of every microbatch."""

    def scale(op: Op) -> Op:
        if op.kind is not Kind.COMPUTE or op.duration_s is None:
            return op
        return replace(op, duration_s=op.duration_s * factor, provenance=Provenance.ASSUMED)

    return replace(work, slots={slot: list(map(scale, ops)) for slot, ops in work.slots.items()})


def _with_head(work: RankWork, head_s: float) -> RankWork:
    """Add the head's and loss's work to every forward (a third) and backward (two thirds)."""
    if head_s <= 0:
        return work
    forward_s, bound = head_s * _FORWARD_SHARE, OverlapClass.COMPUTE_BOUND
    forward = compute_op(
        "head_and_loss", Phase.FORWARD, forward_s, overlap_class=bound, assumed=True, part="forward_step"
    )
    backward = replace(forward, phase=Phase.BACKWARD, duration_s=head_s * (1 - _FORWARD_SHARE), part="backward_step")
    slots = {slot: [*ops, forward] if slot[0] is SlotKind.F else [backward, *ops] for slot, ops in work.slots.items()}
    return replace(work, slots=slots)
