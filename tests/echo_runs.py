"""Write rank traces of a run as Echo's tracer would: 1F1B, expert layers, and a clock of its own on each host.

A small simulator of its own says when everything ran, so that what a replay must find is known. Times
are milliseconds, as in the files.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.spelling import listed, milliseconds, spelled

HOST_CLOCK_MS = (3_370_854_000.0, 3_975_635_000.0, 12_345.0)
"""What the clock of each host reads when the run starts, in turn; they were booted weeks apart."""
ROUTED = 2048
HIDDEN = 4096
_MESSAGE = (("input__shape", "[1024, 1, 4096]"), ("input__dtype", "torch.bfloat16"))
_NOTHING = (("input__shape", "None"), ("input__dtype", "None"))

Post = tuple[tuple[object, ...], int, float]
"""What ranks meet for: its key, how many take part, and how long it takes."""


@dataclass(frozen=True)
class MoeRun:
    """A run of `pp` stages of `dp` ranks, whose experts are on `ep` ranks each."""

    pp: int = 2
    dp: int = 4
    ep: int = 4
    microbatches: int = 4
    layers: int = 2
    ranks_per_host: int = 4
    tokens: Callable[[int, int], int] = lambda place, microbatch: (2173, 3667, 2167, 185)[place]  # noqa: ARG005
    """Tokens that an expert rank gets, by its place in the group and the microbatch."""
    slow: dict[int, float] = field(default_factory=dict)
    """Factor on the computations of some ranks."""
    norm: bool = False
    """The optimizer begins with a norm over the pipeline."""

    @property
    def world(self) -> int:
        """Ranks of the run."""
        return self.pp * self.dp

    def name(self, rank: int, stamp: int = 20250818085710) -> str:
        """Return the name of a rank's file."""
        stamp += rank // self.ranks_per_host
        layout = f"wd{self.world}_tp1_pp{self.pp}_exp{self.ep}_expNum{2 * self.ep}_l{self.layers * self.pp}_bs1"
        return f"{layout}_rank{rank}_{stamp}.txt"

    def busiest_bytes(self, microbatch: int) -> int:
        """Return what the busiest rank of an exchange sends or receives."""
        tokens = [self.tokens(place, microbatch) for place in range(self.ep)]
        return 2 * HIDDEN * max(ROUTED, *tokens)

    def write(self, folder: Path, ranks: range | list[int] | None = None, stamp: int = 20250818085710) -> list[Path]:
        """Write the files of some ranks, or of all."""
        folder.mkdir(exist_ok=True)
        lines = _simulate([_Rank(self, rank) for rank in range(self.world)])
        paths = []
        for rank in range(self.world) if ranks is None else ranks:
            paths.append(folder / self.name(rank, stamp))
            paths[-1].write_text("".join(f"{line}\n" for line in lines[rank]), encoding="utf-8")
        return paths

    @property
    def step_ms(self) -> float:
        """How long the step takes."""
        ranks = [_Rank(self, rank) for rank in range(self.world)]
        _simulate(ranks)
        return max(rank.now for rank in ranks)


@dataclass
class _Rank:
    """One rank; `program` yields what it waits for, and goes on when `now` is set."""

    run: MoeRun
    rank: int
    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    met: dict[object, int] = field(default_factory=dict)

    @property
    def stage(self) -> int:
        return self.rank // self.run.dp

    @property
    def place(self) -> int:
        return self.rank % self.run.dp % self.run.ep

    def clock(self, at: float) -> float:
        return at + HOST_CLOCK_MS[self.rank // self.run.ranks_per_host % len(HOST_CLOCK_MS)]

    def program(self) -> Iterator[list[Post]]:
        run, last = self.run, self.stage == self.run.pp - 1
        warm_up = min(run.pp - 1 - self.stage, run.microbatches)
        order = [("F", each) for each in range(warm_up)]
        for each in range(run.microbatches - warm_up):
            order += [("F", warm_up + each), ("B", each)]
        order += [("B", each) for each in range(run.microbatches - warm_up, run.microbatches)]
        steady = range(warm_up, 2 * run.microbatches - warm_up)
        received = False
        for at, ((kind, batch), (next_kind, next_batch)) in enumerate(zip(order, [*order[1:], ("", -1)], strict=True)):
            come, leave = self.message(kind, batch, comes=True), self.message(kind, batch, comes=False)
            if come and not received:
                yield from self.exchange([("recv_forward" if kind == "F" else "recv_backward", batch, come)])
            if kind == "F":
                yield from self.forward(batch, first=self.stage == 0, last=last)
            else:
                yield from self.whole("backward_step", batch, 3.0, 0.95e-3, counts=False)
            fused = at in steady and at + 1 in steady
            reply = self.message(next_kind, next_batch, comes=True) if fused else None
            received = bool(leave and reply)
            if leave:
                posts = [("send_forward" if kind == "F" else "send_backward", batch, leave)]
                if reply:
                    posts.append(("recv_backward" if kind == "F" else "recv_forward", next_batch, reply))
                yield from self.exchange(posts)
        yield from self.reduce("dp_allreduce", "dp", ("dp", self.stage), run.dp, 100_000, 2.0)
        replicas = run.dp // run.ep
        yield from self.reduce("ep_dp_allreduce", "ep_dp", ("edp", self.stage, self.place), replicas, 300_000, 4.0)
        start = self.now + 0.1
        if run.norm:
            yield from self.meet(("norm", self.rank % run.dp), run.pp, 0.01)
        self.now = max(self.now, start) + 5.0 + 3.0 * (self.stage == 0)
        self.say("optimizer_step", 0, start, "None", _NOTHING)

    def message(self, kind: str, batch: int, *, comes: bool) -> tuple[object, ...] | None:
        """Return the message that a pass receives or sends, None for none."""
        forward = kind == "F"
        boundary = self.stage - 1 if forward == comes else self.stage
        return (forward, boundary, self.rank % self.run.dp, batch) if 0 <= boundary < self.run.pp - 1 else None

    def exchange(self, posts: list[tuple[str, int, tuple[object, ...]]]) -> Iterator[list[Post]]:
        start = self.now + 0.1
        self.now = start
        yield [(key, 2, 0.4) for _, _, key in posts]
        for op, batch, _ in posts:
            self.say(op, batch, start, "pp", _MESSAGE)

    def forward(self, batch: int, *, first: bool, last: bool) -> Iterator[list[Post]]:
        if first or last:
            start, self.now = self.now + 0.1, self.now + 0.3
            self.say("get_batch", batch, start, "None", _NOTHING)
        yield from self.whole("forward_step", batch, 2.0, 0.5e-3, counts=True)
        if last:
            start = self.now + 0.05
            self.now = start + 0.2
            sub = yield from self.sub(("loss", self.stage), self.run.dp, 0.1, "allreduce", "[1]", "float32", "dp")
            description = "loss_func, calculate and DP allreduce for the last stage"
            self.say("loss_func", batch, start, "None", _NOTHING, [sub], description)

    def whole(self, op: str, batch: int, base: float, per_token: float, *, counts: bool) -> Iterator[list[Post]]:
        """Run the layers of a pass: counts, dispatch, experts, combine."""
        run = self.run
        tokens, slow = run.tokens(self.place, batch), run.slow.get(self.rank, 1.0)
        group = ("ep", self.stage, self.rank % run.dp // run.ep)
        transfer = 0.05 + run.busiest_bytes(batch) / 200e6
        start, subs = self.now + 0.08, []
        self.now = start
        for _ in range(run.layers):
            self.now += base * slow
            if counts:
                experts = f"[{2 * run.ep}]"
                subs.append((yield from self.sub(group, run.ep, 0.1, "allgather", experts, "int64", "exp")))
            routed, received = f"[{ROUTED}, {HIDDEN}]", f"[{tokens}, {HIDDEN}]"
            subs.append((yield from self.sub(group, run.ep, transfer, "all_to_all", routed, "bfloat16", "exp")))
            self.now += per_token * tokens * slow
            subs.append((yield from self.sub(group, run.ep, transfer, "all_to_all", received, "bfloat16", "exp")))
        self.now += 0.1
        self.say(op, batch, start, "None", _NOTHING, subs)

    def sub(
        self, group: tuple[object, ...], size: int, transfer: float, comm: str, shape: str, dtype: str, kind: str
    ) -> Iterator[list[Post]]:
        start = self.now
        yield from self.meet(group, size, transfer)
        source = {"all_to_all": "_profiled_all_to_all_single", "allreduce": "allreduce"}
        function = source.get(comm, "_gather_along_first_dim_expert_parallel")
        named = f"func_name={function[1:]}," if comm == "allgather" else ""
        return (
            f"trace_src_func={function},duration={self.now - start:.2f},timestamp={self.clock(self.now):.2f},"
            f"input__shape={shape},input__dtype=torch.{dtype},{named}group={kind},comm_func={comm}"
        )

    def meet(self, group: tuple[object, ...], size: int, transfer: float) -> Iterator[list[Post]]:
        self.met[group] = self.met.get(group, 0) + 1
        yield [((*group, self.met[group]), size, transfer)]

    def reduce(self, op: str, kind: str, group: tuple[object, ...], size: int, count: int, transfer: float):
        start = self.now + 0.05
        self.now = start
        yield from self.meet((op, *group), size, transfer)
        self.say(op, 0, start, kind, (("input__shape", f"[{count}]"), ("input__dtype", "torch.float32")))

    def say(self, op, batch, start, kind, tensor, subs=(), description="None") -> None:
        fields = [("stage_id", self.stage), ("batch_id", batch), ("mg_state", "steady")]
        fields += [("duration", f"{self.now - start:.2f}"), ("description", description), ("group_kind", kind)]
        fields += [*tensor, ("timestamp", f"{self.clock(self.now):.2f}"), ("sub_operations", list(subs))]
        self.lines.append(f"rank:{self.rank}:{op}({','.join(f'{key}={value}' for key, value in fields)})")


def _simulate(ranks: list[_Rank]) -> list[list[str]]:
    """Run the ranks' programs: what all have come to begins with the last of them and ends for all together."""
    programs = [rank.program() for rank in ranks]
    posts: dict[int, list[Post] | None] = {rank: next(program) for rank, program in enumerate(programs)}
    arrived: dict[object, dict[int, float]] = {}
    while any(posted is not None for posted in posts.values()):
        for rank, posted in posts.items():
            for key, _, _ in posted or ():
                arrived.setdefault(key, {}).setdefault(rank, ranks[rank].now)
        ready = [rank for rank, each in posts.items() if each and all(len(arrived[key]) == n for key, n, _ in each)]
        assert ready, "the run waits for itself"
        for rank in ready:
            ranks[rank].now = max(max(arrived[key].values()) + duration for key, _, duration in posts[rank])
            posts[rank] = next(programs[rank], None)
    return [rank.lines for rank in ranks]


def line_read(op: TraceOp) -> str:
    """Return the line that an operation was read from, with its numbers as the tracer writes them."""

    def time(value_s: float | None, clock_s: float = 0.0) -> str:
        return "None" if value_s is None else milliseconds(value_s, clock_s)

    subs = [
        spelled(sub.call.fields, {"duration": time(sub.duration_s), "timestamp": time(sub.end_s, sub.end_s or 0.0)})
        for sub in op.sub_ops
    ]
    values = {"batch_id": str(op.batch_id), "cmd_uid": str(op.uid), "sub_operations": listed(subs)}
    times = {"duration": time(op.duration_s), "timestamp": time(op.timestamp_s, op.timestamp_s or 0.0)}
    return f"{op.scope}:{op.rank}:{op.raw_op}({spelled(op.fields, values | times)})"


def joined(line: str) -> str:
    """Return a line without what says nothing: blanks after commas, which are not part of a field, and how many digits
    a time has."""
    line = re.sub(", +", ",", line)
    return re.sub(r"(?<![\w.])(duration|timestamp)=([0-9]+(?:\.[0-9]*)?)(?=[,)\"'])", _rounded, line)


def _rounded(match: re.Match[str]) -> str:
    return f"{match[1]}={milliseconds(float(match[2]) / 1e3, float(match[2]) / 1e3)}"
