"""Decide the layout of an AICB file: what the user says, then what the file says, then a stated default."""

from math import gcd

from msgspec import Struct

from traincast.diagnostics import Notebook
from traincast.errors import InfeasibleError
from traincast.formats.aicb.grammar import AicbFile
from traincast.formats.aicb.header import Header
from traincast.formats.aicb.meaning import Positions, Structure, gathers_parameters, group_of, positions_of
from traincast.formats.aicb.policies import POLICIES, WITH_DIMENSIONS, Span
from traincast.formats.layout import NODE_RANKS, asked_dp, microbatches_of, replicas, warn_single_microbatch
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.words import Group


class Layout(Struct, frozen=True):
    """The decided layout and schedule."""

    parallel: Parallel
    schedule: str
    forward_only: bool
    positions: Positions
    """Groups of communications that only their column gives one."""


def decide_layout(file: AicbFile, parts: Structure, options: LayoutOptions, notes: Notebook) -> Layout:
    """Work out degrees, microbatches and schedule; notes say what is assumed and what looks wrong.

    Raises
    ------
    InfeasibleError
        If degrees do not divide the world or the layers.
    """
    header = file.header
    tp, ep, pp = (_degree(header, name, getattr(options, name), notes) for name in ("tp", "ep", "pp"))
    if POLICIES[header.policy].of_astra_sim:
        notes.assume("cycles", "compute times are taken as ns: a cycle of ASTRA-sim's default clock is one")
    cp = options.cp or 1
    shares = gathers_parameters(file.rows, tp)
    world = _world(header, options, (tp, cp, pp, ep), NODE_RANKS if shares else 1, notes)
    tp = _inner(header, tp, max(1, world // (cp * pp)), notes)
    dp = replicas(world, {"tp": tp, "cp": cp, "pp": pp}, notes.path)
    layers = min((len(block.layers) for block in parts.blocks), default=0)
    _warn_not_rescaled(header, options, layers, notes)
    positions = _positions(file, tp, world, notes)
    _warn_unused(file, options, tp, positions, notes)
    vpp = _virtual_stages(header, options, pp, layers, notes)
    microbatches = _microbatches(header, len(parts.blocks), options, notes)
    parallel = Parallel(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, ep=ep, etp=options.etp, microbatches=microbatches)
    warn_single_microbatch(notes, pp, pp * vpp, microbatches)
    schedule = options.schedule or ("interleaved" if vpp > 1 else "1f1b")
    forward_only = header.inference or header.policy == "DISTRIBUTED_INFERENCE"
    return Layout(parallel, schedule, forward_only, positions)


def _inner(header: Header, tp: int, ranks: int, notes: Notebook) -> int:
    """Return tp in a stage of so many ranks: as it is, or what the policy makes of it."""
    policy = POLICIES[header.policy]
    if policy.activation is Span.WORLD:
        return ranks
    if policy.gradient is Span.WORLD:
        if tp > 1:
            notes.warn("tp-unused", f"policy {header.policy} has no tensor parallel group; tp {tp} is not used")
        return 1
    if policy.activation is not Span.OUTER:
        return tp
    notes.assume(
        "data-inside",
        f"policy {header.policy} reduces gradients inside a node and exchanges activations between nodes: gradients "
        "are shown as tp, which is innermost, and activations as dp",
        brief=f"policy {header.policy}: gradients are shown as tp, activations as dp",
    )
    # As many ranks as share the model lie outside of those that share the data.
    return max(1, ranks // tp) if header.tp else tp


def _positions(file: AicbFile, tp: int, world: int, notes: Notebook) -> Positions:
    """Decide which groups the columns stand for, and say so where it is not what SimAI reads into them."""
    positions = positions_of(file, tp, world)
    if POLICIES[file.header.policy].of_astra_sim:
        return positions
    if positions.activation is Group.DP:
        notes.assume(
            "gathers-over-dp",
            "tp is 1 and the forward and input-gradient columns hold all-gathers only: they are taken as ZeRO-3's "
            "gathers of parameters that dp shares, and run over dp",
            brief="tp is 1: all-gathers of the forward pass are taken as ZeRO-3's of parameters, over dp",
        )
    if positions.gradient is Group.TP:
        notes.assume(
            "gradients-over-tp",
            f"every communication stands in the weight-gradient column, and the {world} ranks are one tp group: they "
            "run over tp, because a dp group would have one member",
            brief=f"the {world} ranks are one tp group; the weight gradients' communications run over it",
        )
    return positions


def _warn_not_rescaled(header: Header, options: LayoutOptions, layers: int, notes: Notebook) -> None:
    """Warn where a degree of the user's asks for more than other groups: for other times, or another model."""
    if options.tp is not None and header.tp not in (None, 0, options.tp):
        notes.warn(
            "tp-not-rescaled",
            f"the file's compute times are those of tp {header.tp}; they and the message sizes are kept for tp "
            f"{options.tp}",
        )
    if options.pp is not None and header.pp not in (None, 0, options.pp):
        notes.warn(
            "pp-not-rescaled",
            f"the file describes one stage of pp {header.pp} with {counted(layers, 'layer')}; every stage of pp "
            f"{options.pp} has as many, so the model is another one",
        )


def _warn_unused(file: AicbFile, options: LayoutOptions, tp: int, positions: Positions, notes: Notebook) -> None:
    """Warn where a degree that the user chose has nothing to act on: no row communicates in its groups."""
    groups = {
        group_of(file.rows[row].name, column, cell, positions)
        for row, column, cell in file.communications
        if cell.size_bytes
    }
    # What the run would have without the flag: to say that again is not to ask for a change.
    usual = {"cp": 1, "ep": file.header.ep or 1, "etp": tp}
    if options.cp not in (None, usual["cp"]) and Group.CP not in groups:
        notes.warn(
            "cp-unused",
            f"no row communicates over cp, so cp {options.cp} adds nothing: compute times and sizes are kept as "
            "written, and only the ranks that are left for dp change",
        )
    for name in ("ep", "etp"):
        chosen = getattr(options, name)
        if chosen not in (None, usual[name]) and groups.isdisjoint({Group.EP, Group.EDP, Group.ETP}):
            notes.warn(
                f"{name}-unused",
                f"no row communicates over ep, edp or etp, so {name} {chosen} changes nothing: compute times and sizes "
                "are kept as written",
            )


def _degree(header: Header, name: str, chosen: int | None, notes: Notebook) -> int:
    """Return a degree: the user's, else the file's, else 1 with a note."""
    if chosen is not None:
        return chosen
    written: int | None = getattr(header, name)
    if written:
        return written
    if written == 0:
        notes.warn(f"{name}-zero", f"the header says {name} 0; taken as 1")
    elif not POLICIES[header.policy].of_astra_sim:
        notes.assume(f"{name}-absent", f"the header says no {name}; taken as 1")
    elif name == "tp" and header.policy in WITH_DIMENSIONS:
        text = f"the first dimension of the network is not in the file; taken as a node of {NODE_RANKS} (give --tp)"
        notes.assume("dimension-absent", text)
        return NODE_RANKS
    return 1


def _world(
    header: Header, options: LayoutOptions, degrees: tuple[int, int, int, int], least_dp: int, notes: Notebook
) -> int:
    """Return the number of ranks; where nothing says it, the smallest that fits, with a dp of `least_dp` or more."""
    tp, cp, pp, ep = degrees
    if options.dp is not None:
        return tp * cp * pp * (asked_dp(options, {"tp": tp, "cp": cp, "pp": pp}, notes.path) or 1)
    if known := options.gpus or header.all_gpus:
        return known
    if POLICIES[header.policy].of_astra_sim:
        ranks = cp * pp * (2 * tp if header.policy in WITH_DIMENSIONS else NODE_RANKS)
        notes.assume("world-absent", f"the file says no world size; taken as {ranks} ranks (give --gpus)")
        return ranks
    experts = ep * (options.etp or tp)
    unit = experts // gcd(experts, tp * cp)
    dp = -(-least_dp // unit) * unit
    why = (
        "the smallest that fits, in which gradients may have nobody to be reduced with"
        if least_dp == 1
        else f"so that there are {least_dp} to share the parameters that the rows gather, one node"
    )
    notes.warn(
        "world-absent",
        f"the header says no all_gpus; taken as tp {tp} x cp {cp} x pp {pp} x dp {dp} = "
        f"{counted(tp * cp * pp * dp, 'rank')}, {why} (give --gpus)",
    )
    return tp * cp * pp * dp


def _microbatches(header: Header, blocks: int, options: LayoutOptions, notes: Notebook) -> int:
    if options.microbatches is not None:
        return microbatches_of(options, blocks, "the file", notes)
    found = counted(blocks, "block")
    if not header.ga and not POLICIES[header.policy].of_astra_sim:
        said = "no ga" if header.ga is None else "ga 0"
        notes.assume("ga-absent", f"the header says {said}; the file has {found}, one per microbatch")
    elif header.ga not in (None, blocks):
        notes.warn("ga-mismatch", f"the header says ga {header.ga}, but the file has {found}; the blocks count")
    return max(1, blocks)


def _virtual_stages(header: Header, options: LayoutOptions, pp: int, layers: int, notes: Notebook) -> int:
    """Return the number of virtual stages per stage."""
    written = header.vpp
    if written == 0:
        notes.warn("vpp-zero", "the header says vpp 0; taken as 1")
    if options.vpp is not None:
        vpp = options.vpp
    elif written and pp > 1 and options.schedule in (None, "interleaved"):
        vpp = written
    else:
        vpp = 1
        if written and written > 1:
            why = "a single stage has no virtual stages" if pp == 1 else f"--schedule {options.schedule} has none"
            notes.assume("vpp-unused", f"the header says vpp {written}, but {why}")
        elif written is None and pp > 1:
            notes.assume("vpp-absent", "the header says no vpp; taken as 1")
    if vpp > max(1, layers):
        raise InfeasibleError(
            f"{notes.path}: vpp {vpp} is more than the {counted(layers, 'layer')} of a stage; "
            f"use vpp={max(1, layers)}{' or less' if layers > 1 else ''}"
        ).typed(vpp="--vpp")
    if vpp > 1 and layers % vpp:
        notes.warn("uneven-chunks", f"{layers} layers do not divide into {vpp} virtual stages; the first ones get more")
    return vpp
